"""The environment of a job, its result, and the order in which a worker claims tickets."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from snakemake_kochi.queue.views import find_worker, list_workers


def test_a_failure_keeps_its_exit_status_and_the_worker_goes_on(site):
    site.submit("exit 3", "kill -SEGV $$", "true")
    assert site.start().wait() == 0
    assert site.job(0).result.describe() == "exit status 3"
    assert site.job(1).result.describe() == "killed by SIGSEGV"
    assert site.job(2).result.ok


def test_a_command_that_cannot_be_executed_fails_with_a_message_in_its_log(site):
    site.submit("", command=("no-such-command", "x"))
    site.submit("", directory=site.directory / "missing")
    (site.directory / "script").write_text("no program")
    site.submit("", command=(str(site.directory / "script"),))
    site.submit("true")
    assert site.start().wait() == 0
    assert site.job(0).result.describe() == "exit status 127"
    assert "'no-such-command' was not found" in site.log(0)
    assert site.job(1).result.describe() == "exit status 126"
    assert "missing': No such file" in site.log(1)
    assert site.job(2).result.describe() == "exit status 126"
    assert "script' cannot be executed" in site.log(2)
    assert site.job(3).result.ok


def test_a_job_sees_its_environment(site):
    code = "import json, os, sys; json.dump([dict(os.environ), os.getcwd(), sys.stdin.read()],"
    code += "open(sys.argv[1], 'w'))"
    site.submit(
        "",
        command=(sys.executable, "-c", code, "seen.json"),
        environment={"MINE": "a b\nc=d", "KOCHI_QUEUE": "forged"},
        name="the name",
    )
    environment = {**os.environ, "SNAKEMAKE_PROFILE": "p", "FROM_WORKER": "w"}
    assert site.start(env=environment).wait() == 0
    seen, directory, stdin = json.loads((site.directory / "seen.json").read_text())
    assert seen["MINE"] == "a b\nc=d"
    assert seen["FROM_WORKER"] == "w"
    assert "SNAKEMAKE_PROFILE" not in seen
    assert seen["PWD"] == directory == str(site.directory)
    assert stdin == ""
    kochi = {name: value for name, value in seen.items() if name.startswith("KOCHI_")}
    for name in ("KOCHI_ATTEMPT_NONCE", "KOCHI_WORKER_NONCE"):
        kochi.pop(name)
    # Of the tests' own surroundings.
    for name in ("KOCHI_ROOT", "KOCHI_SITE_CONF", "KOCHI_NODE_LOCK"):
        kochi.pop(name, None)
    assert kochi == {
        "KOCHI_MACHINE": "local",
        "KOCHI_WORKER_ID": "1",
        "KOCHI_QUEUE": "q",
        "KOCHI_JOB_ID": "1",
        "KOCHI_JOB_NAME": "the name",
        "KOCHI_ATTEMPT": "1",
        "KOCHI_CPUS": seen["KOCHI_CPUS"],  # see test_devices.py
        "KOCHI_GPUS": "",
        "KOCHI_NODE_LOCK_HELD": os.uname().nodename,
        "KOCHI_RUNNER": "command",
    }


def test_a_job_has_the_signals_and_files_of_a_shell(site):
    site.submit("yes | head -1; echo ${PIPESTATUS[0]}; ls /proc/self/fd | wc -l")
    read, write = os.pipe()
    try:
        assert site.start(pass_fds=[write]).wait() == 0
    finally:
        os.close(read)
        os.close(write)
    # SIGPIPE ends `yes`; ls has 0, 1, 2 and the directory it lists, and not the inherited pipe.
    assert site.log(0).split() == ["y", "141", "4"]


def test_arguments_arrive_as_they_were_given(site):
    odd = [
        "a b",
        "$HOME",
        "*",
        ";",
        "`id`",
        "",
        "'",
        "\n",
        "--",
        "ü",
        b"\xe9".decode("utf-8", "surrogateescape"),
    ]
    code = "import sys; sys.stdout.write(repr(sys.argv[1:]))"
    site.submit("", command=(sys.executable, "-X", "utf8", "-c", code, *odd))
    assert site.start().wait() == 0
    assert site.log(0) == repr(odd)


def test_a_background_child_that_holds_stdout_does_not_block(site):
    site.submit("sleep 1000 & echo $! > pid; echo done", "true")
    assert site.start(cores=1).wait() == 0
    assert site.job(0).result.ok
    done, remark = site.log(0).splitlines()
    assert done == "done"
    assert remark.startswith("kochi: ending sleep (")
    assert not Path(f"/proc/{site.wait_for('pid').strip()}").exists()


def test_leftover_processes_of_a_job_end_even_in_a_session_of_their_own(site):
    script = "setsid bash -c 'trap \"\" TERM; echo $$ > pid; while :; do sleep 0.1; done' & "
    script += "while [ ! -s pid ]; do sleep 0.1; done"
    site.submit(script)
    assert site.start().wait() == 0
    assert site.job(0).result.ok
    assert not Path(f"/proc/{site.wait_for('pid').strip()}").exists()


def test_orphaned_processes_of_a_running_job_are_left_alone(site):
    # The intermediate process ends at once; its child belongs to a job that is still running.
    orphan = "(sleep 0.2; echo orphan > orphaned) & "
    site.submit(f"bash -c '{orphan}'; while [ ! -e orphaned ]; do sleep 0.1; done", "true")
    assert site.start(cores=2).wait() == 0
    assert site.job(0).result.ok


def test_jobs_run_beside_each_other_as_cores_allow(site):
    meet = "touch here{0}; while [ ! -e here{1} ]; do sleep 0.1; done"
    site.submit(meet.format(0, 1), meet.format(1, 0))
    assert site.start(cores=2).wait() == 0
    assert site.job(0).result.ok and site.job(1).result.ok


def overlaps(site, one, other):
    a, b = site.job(one).result, site.job(other).result
    return a.started < b.ended and b.started < a.ended


@pytest.mark.parametrize("fields", [{"exclusive": True}, {"cores": 2}])
def test_a_job_that_needs_the_whole_worker_runs_alone_and_in_its_turn(site, fields):
    site.submit("sleep 0.2")
    site.submit("sleep 0.2", **fields)
    site.submit("sleep 0.2")
    assert site.start(cores=2).wait() == 0
    assert all(site.job(n).result.ok for n in range(3))
    assert not overlaps(site, 0, 1)
    assert not overlaps(site, 1, 2)
    assert site.job(1).result.started < site.job(2).result.started


def test_a_ticket_that_does_not_fit_yet_is_not_overtaken_from_the_next_queue(site):
    site.submit("sleep 0.2")
    site.submit("true", cores=2)
    site.submit("true", queue="other")
    assert (
        site.start(
            cores=2,
            queues=(
                "q",
                "other",
            ),
        ).wait()
        == 0
    )
    assert site.job(1).result.started < site.job(2).result.started


def test_one_worker_serves_two_queues(site):
    site.submit("echo $KOCHI_QUEUE", queue="a")
    site.submit("echo $KOCHI_QUEUE", queue="b")
    assert (
        site.start(
            queues=(
                "a",
                "b",
            )
        ).wait()
        == 0
    )
    assert (site.log(0), site.log(1)) == ("a\n", "b\n")


def test_two_workers_share_a_queue(site):
    site.submit(*["sleep 0.05; echo x >> ran"] * 30)
    workers = [site.start(cores=2) for _ in range(2)]
    assert [worker.wait() for worker in workers] == [0, 0]
    assert len((site.directory / "ran").read_text().split()) == 30
    assert all(site.job(n).result.attempt == 1 for n in range(30))
    assert [state.worker for state in list_workers(site.machine)] == [1, 2]


def test_a_submitted_ticket_wakes_an_idle_worker(site):
    # Without a notification it would look again after an hour.
    worker = site.start(stay=True, idle_wait=7200)
    for number, name in enumerate(("first", "second")):
        site.wait_until(
            lambda: any(state.state == "running" for state in list_workers(site.machine))
        )
        site.submit(f"echo {name}")
        assert site.ended(number).result.ok
    assert worker.poll() is None


def test_the_output_is_shown_while_the_job_runs(site):
    site.submit("echo begun; while [ ! -e go ]; do sleep 0.1; done")
    worker = site.start(echo=True)
    while worker.stdout.readline() != "begun\n":
        pass
    (site.directory / "go").touch()
    assert worker.wait() == 0


def test_without_echo_nothing_is_shown(site):
    site.submit("echo secret")
    shown, _ = site.start().communicate()
    assert (shown, site.log(0)) == ("", "secret\n")


def test_a_reader_that_goes_away_does_not_disturb_the_jobs(site):
    site.submit("while [ ! -e go ]; do sleep 0.1; done; echo x; echo y", "true")
    worker = site.start(echo=True, cores=1)
    worker.stdout.readline()
    worker.stdout.close()
    (site.directory / "go").touch()
    assert worker.wait() == 0
    worker.stdout = None
    assert site.job(1).result.ok


def test_directories_are_private(site):
    site.submit("true")
    assert site.start(umask=0).wait() == 0
    for directory in (site.root.directory, *site.root.directory.rglob("*")):
        if directory.is_dir() and not directory.is_symlink():
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700, directory


def test_a_worker_shows_what_it_runs(site):
    site.submit("while [ ! -e go ]; do sleep 0.1; done")
    site.start()
    site.wait_until(
        lambda: list_workers(site.machine) and 1 in find_worker(site.machine, 1).running
    )
    view = site.job(0)
    assert (view.state, view.worker, view.job) == ("running", 1, 1)
    assert view.started == find_worker(site.machine, 1).running[1]
    (site.directory / "go").touch()
    assert site.ended(0).result.signal is None


def test_the_end_of_a_job_wakes_the_worker(site):
    site.submit(*["true"] * 60)
    # Otherwise it would find each end only when it writes its state.
    assert site.start(cores=1, idle_wait=7200).wait() == 0
    assert all(site.job(number).result.ok for number in range(60))


def test_a_process_hidden_from_its_job_ends_with_it_if_the_job_was_alone(site):
    # Neither session nor environment nor parent shows its job.
    hidden = "env -i bash -c 'echo \\$\\$ > pid; while :; do sleep 0.1; done' &"
    script = f'setsid bash -c "{hidden}"; while [ ! -s pid ]; do sleep 0.1; done'
    site.submit(script)
    worker = site.start(stay=True)
    assert site.ended(0).result.ok
    pid = site.wait_for("pid").strip()
    assert not Path(f"/proc/{pid}").exists()
    assert worker.poll() is None
