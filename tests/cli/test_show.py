"""`kochi show`."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pexpect
import pytest
from seen import FIRST
from support import wait_until

from snakemake_kochi.paths import Root

from .conftest import COMMAND, Outcome, install, make_repository

NUMBER = str(FIRST)  # of the first job, and of the first worker
Kochi = Callable[..., Outcome]
Work = Callable[..., str]
Worker = Callable[..., "subprocess.Popen[str]"]


def submit(kochi: Kochi, *words: str, queue: str = "test", name: str = "ANON") -> None:
    outcome = kochi("enqueue", "-q", queue, "-n", name, "--", *words)
    assert outcome.status == 0, outcome.err


def listed(kochi: Kochi, *words: object) -> list[int]:
    """The jobs, from 0."""
    return [job["job"] - FIRST for job in kochi("show", "jobs", *words, "--json").data]


def test_jobs_are_those_that_wait_or_run_and_with_t_all(kochi: Kochi, work: Work) -> None:
    submit(kochi, "false", queue="first")
    submit(kochi, "true", name="mine")
    work("first")
    assert listed(kochi) == [1]
    assert listed(kochi, "-t") == [1, 0]
    table = kochi("show", "jobs", "-t").out.splitlines()
    assert re.split("  +", table[0]) == [
        *("ID", "Name", "What it runs", "Queue", "State", "Worker"),
        *("Submitted", "Started", "Running Time"),
    ]
    assert table[2].split()[:5] == [str(FIRST + 1), "mine", "true", "test", "waiting"]
    said = f"{FIRST} +ANON +false +first +failed: exit status 1 +{FIRST} .* 0:00:0"
    assert re.match(said, table[3])


def test_jobs_of_one_name_are_told_apart_and_those_that_failed_are_found(
    installed: Path, kochi: Kochi, work: Work
) -> None:
    long = "x" * 60
    for last in ("true", "false", "kill -9 $$"):
        submit(kochi, "sh", "-c", f": {long}; {last}")
    kochi("enqueue", "-q", "test", "fib.yaml", "n=38")
    kochi("enqueue", "-q", "test", "-c", "--", "cat", "code")
    submit(kochi, "never", "begun")
    kochi("cancel", FIRST + 5)
    rows = [line.split("  ", 2)[2].strip() for line in kochi("show", "jobs").out.splitlines()[2:]]
    told = [re.split("  +", row)[1] for row in rows]
    assert told[:2] == ["cat code", "n=38, debug=0"]
    assert [text[-6:] for text in told[2:]] == ["-9 $$'", "false'", " true'"]
    assert all(len(text) == 48 and "..." in text for text in told[2:])
    work()
    states = {job["job"]: job["state"] for job in kochi("show", "jobs", "-t", "--json").data}
    ends = ("succeeded", "failed", "failed", "succeeded", "succeeded", "cancelled")
    assert states == dict(enumerate(ends, FIRST))
    # The same words as in the table, where the failed ones say how.
    table = kochi("show", "jobs", "-t", "-l", "9").out
    assert all(f"  {state}" in table for state in ends)
    assert "failed: exit status 1" in table
    assert "failed: killed by SIGKILL" in table
    assert listed(kochi, "--failed") == [2, 1]
    assert listed(kochi, "--failed", "-l", 1) == [2]
    seconds = [job["seconds"] for job in kochi("show", "jobs", "--failed", "--json").data]
    assert all(each > 0 for each in seconds)
    assert (
        kochi("show", "jobs", "--failed", "-n", "fib").err == "This project has no failed jobs.\n"
    )


def test_jobs_are_limited_and_chosen(kochi: Kochi, work: Work) -> None:
    for index in range(6):
        submit(kochi, "true", queue=f"queue{index % 2}", name=f"name{index % 3}")
    assert listed(kochi, "-l", 2) == [5, 4]
    assert "to see more, add: -l 20" in kochi("show", "jobs", "-l", 2).err
    assert listed(kochi, "-q", "queue1") == [5, 3, 1]
    assert listed(kochi, "-n", "name0", "-l", 1) == [3]
    assert "queue name '../../x' cannot be used" in kochi("show", "jobs", "-q", "../../x").err
    assert listed(kochi, "-n", "name0", "-q", "queue0") == [0]
    assert listed(kochi, "-n", "name0", "-n", "name1") == [4, 3, 1, 0]
    assert listed(kochi, "-q", "queue0", "-q", "queue1") == [5, 4, 3, 2, 1, 0]
    work("queue0")
    assert listed(kochi, "--show-terminated", "-n", "name2", "-l", 5) == [5, 2]


def test_all_jobs_have_no_limit(kochi: Kochi) -> None:
    for _ in range(31):
        assert kochi("enqueue", "-q", "test", "true").status == 0
    assert len(listed(kochi)) == 30
    assert len(listed(kochi, "-a")) == 31
    assert len(listed(kochi, "-a", "-l", 3)) == 3


def test_jobs_are_those_of_this_project_and_with_a_of_all(
    project: Path, tmp_path: Path, kochi: Kochi, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(kochi, "true")
    other = make_repository(tmp_path / "other", {"kochi.yaml": ""})
    monkeypatch.chdir(other)
    submit(kochi, "true")
    assert listed(kochi) == [1]
    assert listed(kochi, "-a") == [1, 0]
    monkeypatch.chdir(tmp_path / "home")
    assert listed(kochi) == [1, 0]
    monkeypatch.chdir(project)
    assert listed(kochi, "-t") == [0]


def test_a_name_cannot_write_to_the_terminal(kochi: Kochi) -> None:
    from snakemake_kochi.cli.output import shown

    assert shown("a\x1b[2Jb\nc") == r"a\x1b[2Jb\nc"
    assert shown(["ü", 1, None]) == "ü, 1, "


def test_a_job_is_told_with_all_that_is_known(installed: Path, kochi: Kochi, work: Work) -> None:
    kochi("enqueue", "-q", "test", "fib.yaml", "n=38")
    waiting = kochi("show", "job", NUMBER).out
    assert "State: waiting\n" in waiting
    work()
    text = kochi("show", "job", NUMBER).out
    for line in (
        f"ID: {FIRST}",
        "Name: fib",
        "Queue: test",
        "State: succeeded",
        "Attempt: 1",
        f"Worker: {FIRST}",
        "Exit status: 0",
        "Experiment: fib.yaml",
        "Parameters: n=38, debug=0",
        "Recipes: tool:release",
    ):
        assert f"{line}\n" in text
    data = kochi("show", "job", NUMBER, "--json").data
    assert data["state"] == "succeeded"
    assert data["reason"] == "success"
    assert data["labels"]["parameters"] == "n=38, debug=0"
    assert Path(data["log"]).read_text() == "Compiling with debug=0\nfib of 38\n"


def test_a_job_says_how_it_ended(kochi: Kochi, work: Work) -> None:
    submit(kochi, "sh", "-c", "kill -9 $$")
    work()
    assert "State: failed: killed by SIGKILL\n" in kochi("show", "job", NUMBER).out
    assert kochi("show", "job", NUMBER, "--json").data["signal"] == signal.SIGKILL


def test_a_failed_job_says_what_it_used(kochi: Kochi, work: Work) -> None:
    submit(kochi, sys.executable, "-c", "x = bytearray(200 << 20); sum(range(10**6)); exit(3)")
    work()
    job = kochi("show", "job", NUMBER, "--json").data
    for used in (job, job["attempts"][0]):
        assert 200 <= used["peak_memory_mb"] < 600
        assert used["cpu_seconds"] > 0.01
    said = f"Used: {job['cpu_seconds']} s of CPU time, {job['peak_memory_mb']} MiB at most\n"
    assert said in kochi("show", "job", NUMBER).out


def test_a_job_says_why_it_waits_and_who_runs_it(kochi: Kochi, worker: Worker) -> None:
    submit(kochi, "sh", "-c", "while [ ! -e go-on ]; do sleep 0.1; done")
    nobody = "no worker serves queue test; start one with: kochi work -q test -b"
    assert f"Waiting: {nobody}\n" in kochi("show", "job", NUMBER).out
    data = kochi("show", "job", NUMBER, "--json").data
    assert (data["why"], data["attempts"]) == ([nobody], [])
    worker()
    wait_until(lambda: kochi("show", "job", NUMBER, "--json").data["started"] is not None)
    text = kochi("show", "job", NUMBER).out
    assert f"Running: worker {FIRST} on {os.uname().nodename} runs it" in text
    assert f"Attempt 1: worker {FIRST} on {os.uname().nodename}, 0:00:0" in text
    (Path.cwd() / "go-on").touch()
    wait_until(lambda: kochi("show", "job", NUMBER, "--json").data["state"] == "succeeded")
    (attempt,) = kochi("show", "job", NUMBER, "--json").data["attempts"]
    assert (attempt["worker"], attempt["ending"], attempt["counts"]) == (FIRST, "succeeded", True)


def test_a_job_tells_how_its_attempts_ended(kochi: Kochi, work: Work, worker: Worker) -> None:
    submit(kochi, "sh", "-c", "[ -e again ] && exit 3; echo first; touch again; sleep 1000")
    process = worker()
    wait_until((Path.cwd() / "again").exists)
    process.send_signal(signal.SIGTERM)
    process.wait()
    here = os.uname().nodename
    assert "first" in kochi("show", "log", "job", NUMBER).out, "it waits for its second attempt"
    lines = kochi("show", "job", NUMBER).out.splitlines()
    (waiting,) = (line for line in lines if line.startswith("Waiting:"))
    assert f"attempt 1, worker {FIRST} on {here}: drained" in waiting
    work()
    lines = kochi("show", "job", NUMBER).out.splitlines()
    first, second = (line for line in lines if line.startswith("Attempt "))
    assert first.startswith(f"Attempt 1: worker {FIRST} on {here}, 0:00:")
    assert "drained" in first
    assert second.startswith(f"Attempt 2: worker {FIRST + 1} on {here}, 0:00:")
    assert second.endswith(", exit status 3")


def test_queues_tell_what_waits_and_who_serves(kochi: Kochi, worker: Worker) -> None:
    assert kochi("show", "queues", "--json").data == []
    submit(kochi, "true", queue="other")
    worker("test")
    assert kochi("show", "queues", "--json").data == [
        {"queue": "other", "waiting": 1, "running": 0, "workers": []},
        {"queue": "test", "waiting": 0, "running": 0, "workers": [FIRST]},
    ]
    table = kochi("show", "queues").out.splitlines()
    assert [line.split() for line in (table[0], *table[2:])] == [
        ["Queue", "Waiting", "Running", "Workers"],
        ["other", "1", "0"],
        ["test", "0", "0", str(FIRST)],
    ]


def test_workers_are_those_that_are_there_and_with_a_all(
    kochi: Kochi, work: Work, worker: Worker
) -> None:
    work("test")
    assert kochi("show", "workers", "--json").data == []
    worker("test")
    (there,) = kochi("show", "workers", "--json").data
    assert (there["worker"], there["state"], there["queues"]) == (FIRST + 1, "running", ["test"])
    chosen = kochi("show", "workers", "-a", "-q", "other", "-q", "test", "--json").data
    assert [row["worker"] for row in chosen] == [FIRST, FIRST + 1]
    assert "kochi work -q other -b" in kochi("show", "workers", "-q", "other").err
    assert kochi("show", "workers", "-q", "../x").status == 1
    states = [row["state"] for row in kochi("show", "workers", "-a", "--json").data]
    assert states == ["left", "running"]
    assert kochi("show", "workers").out.splitlines()[2].split()[:2] == [str(FIRST + 1), "running"]


def test_a_worker_tells_what_it_has_what_it_does_and_why_it_went(
    kochi: Kochi, worker: Worker
) -> None:
    submit(kochi, "sh", "-c", "touch there; sleep 1000", name="long")
    submit(kochi, "true")
    process = worker()
    wait_until((Path.cwd() / "there").exists)
    wait_until(lambda: NUMBER in kochi("show", "workers", "--json").data[0]["running"])
    (data,) = kochi("show", "workers", "--json").data
    assert data["cores"] == len(os.sched_getaffinity(0))
    assert data["memory_mb"] > 0
    headers, _, row = kochi("show", "workers").out.splitlines()
    assert headers.split() == [
        *("ID", "State", "Node", "Queues", "Cores", "Memory", "GPUs", "Left", "Does"),
    ]
    assert f"job {FIRST} (long) for " in row
    waiting, running = kochi("show", "jobs", "--json").data
    assert (running["node"], waiting["node"]) == (data["node"], None)
    process.send_signal(signal.SIGTERM)
    process.wait()
    (gone,) = kochi("show", "workers", "-a", "--json").data
    assert gone["state"] == "left"
    assert gone["running"] == {}
    assert "SIGTERM" in gone["reason"]
    assert kochi("show", "workers", "-a").out.splitlines()[2].endswith(gone["reason"])


def test_a_worker_leaves_when_the_command_that_started_it_was_killed(
    kochi: Kochi, worker: Worker
) -> None:
    process = worker("test")
    process.kill()
    process.wait()
    wait_until(lambda: kochi("show", "workers", "--json").data == [])
    (row,) = kochi("show", "workers", "-a", "--json").data
    assert row["state"] == "left"


def test_installs_tell_the_state_of_every_recipe(project: Path, kochi: Kochi) -> None:
    install("tool:release")
    install("user:plain")

    def states() -> dict[str, str]:
        rows = kochi("show", "installs", "--json").data
        return {f"{row['dependency']}:{row['recipe']}": row["state"] for row in rows}

    assert states() == {
        "tool:release": "installed",
        "tool:debug": "not_installed",
        "tool:broken": "not_installed",
        "user:plain": "installed",
    }
    table = kochi("show", "installs").out
    assert table.splitlines()[0].split() == [
        *("Dependency", "Recipe", "State", "Installed", "Time", "Prefix")
    ]
    assert "NOT installed" in table
    install("tool:release", again=True)
    assert states()["user:plain"] == "stale"
    assert states()["tool:release"] == "installed"
    install("user:plain")
    assert states()["user:plain"] == "installed"


def test_a_recipe_that_was_edited_is_stale(project: Path, kochi: Kochi) -> None:
    install("tool:release")
    text = (project / "kochi.yaml").read_text()
    # What is not part of the installation may change.
    (project / "kochi.yaml").write_text(text.replace("export TOOL_IS", "export TOOL_WAS"))
    assert kochi("show", "install", "tool:release", "--json").data["state"] == "installed"
    (project / "kochi.yaml").write_text(text.replace("cp tool.sh", "cp -p tool.sh"))
    assert kochi("show", "install", "tool:release", "--json").data["state"] == "stale"
    outcome = kochi("enqueue", "-q", "test", "-d", "tool:release", "true")
    assert outcome.status == 1
    assert "Type: kochi install -d tool:release" in outcome.err


def test_one_recipe_is_told_with_its_source(installed: Path, kochi: Kochi) -> None:
    text = kochi("show", "install", "tool:release").out
    assert "State: installed\n" in text
    assert "Git: ../tool\n" in text
    data = kochi("show", "install", "tool:release", "--json").data
    assert len(data["source"]["commit"]) == 40
    several = ("-d", "tool:release", "-d", "tool:debug")
    assert kochi("show", "install", "-d", "tool:release").out == text
    states = [each["state"] for each in kochi("show", "install", *several, "--json").data]
    assert states == ["installed", "not_installed"]
    assert kochi("show", "install", *several).out.startswith(f"{text}\nDependency: tool\n")
    assert kochi("show", "install").status == 2
    outcome = kochi("show", "install", "tool:debug")
    assert "State: NOT installed\n" in outcome.out
    assert outcome.err == "To install it, type: kochi install -d tool:debug\n"
    outcome = kochi("show", "install", "tol:debug")
    assert outcome.status == 1
    assert "did you mean 'tool'?" in outcome.err


def test_projects_tell_where_their_repository_is(
    installed: Path, kochi: Kochi, monkeypatch: pytest.MonkeyPatch
) -> None:
    (row,) = kochi("show", "projects", "--json").data
    assert row["repository"] == str(installed)
    assert row["exists"] is True
    assert Path(row["directory"]).is_dir()
    # Two of one name have a directory each, which names them, too.
    (installed.parent / "below").mkdir()
    other = make_repository(installed.parent / "below" / installed.name, {"kochi.yaml": ""})
    monkeypatch.chdir(other)
    assert kochi("enqueue", "-q", "test", "-c", "true").status == 0
    both = kochi("show", "path", "project", installed.name)
    assert both.status == 1
    assert f"2 projects are called '{installed.name}'" in both.err
    assert f"({other})" in both.err
    assert kochi("show", "path", "project", row["project"]).out == f"{row['directory']}\n"
    monkeypatch.chdir(installed.parent / "home")
    installed.rename(installed.with_name("elsewhere"))
    assert f"{installed} (gone)" in kochi("show", "projects").out


def test_the_log_of_a_job_is_shown_byte_by_byte(kochi: Kochi, work: Work) -> None:
    submit(kochi, "printf", r"\377\n\033[1mbold")
    assert kochi("show", "log", "job", NUMBER).out == ""
    work()
    done = subprocess.run([*COMMAND, "show", "log", "job", NUMBER], capture_output=True)
    assert done.stdout == b"\xff\n\x1b[1mbold"


def test_a_job_that_printed_nothing_says_how_it_ended(kochi: Kochi, work: Work) -> None:
    submit(kochi, "false")
    work()
    shown = kochi("show", "log", "job", NUMBER)
    assert (shown.out, shown.err) == ("", f"Job {FIRST} printed nothing: exit status 1\n")


def test_a_log_is_followed_until_the_job_ends(
    own_surroundings: Path, kochi: Kochi, worker: Worker
) -> None:
    go_on = own_surroundings / "go-on"
    submit(
        kochi, "sh", "-c", f"echo before; while [ ! -e {go_on} ]; do sleep 0.1; done; echo after"
    )
    # Also one that has not started.
    follower = subprocess.Popen(
        [*COMMAND, "show", "log", "job", NUMBER, "-f"], stdout=subprocess.PIPE, text=True
    )
    assert follower.stdout is not None
    worker()
    assert follower.stdout.readline() == "before\n"
    assert follower.poll() is None
    go_on.write_text("")
    assert follower.communicate()[0] == "after\n"
    assert follower.returncode == 0


def test_states_have_their_colours_on_a_terminal_and_names_cannot_bring_their_own(
    kochi: Kochi, work: Work
) -> None:
    submit(kochi, "false", "\x1b[41m", name="mine")
    work("test")
    shown, status = pexpect.run(
        shlex.join([*COMMAND, "show", "jobs", "-t"]), withexitstatus=True, encoding="utf-8"
    )
    assert status == 0
    assert "\x1b[31mfailed: exit status 1\x1b[0m" in shown
    assert "\x1b[41m" not in shown and "\\x1b[41m" in shown


def test_the_log_of_a_worker_is_shown_and_followed_until_it_leaves(
    kochi: Kochi, worker: Worker
) -> None:
    process = worker()
    assert f"worker {FIRST} started" in kochi("show", "log", "worker", NUMBER).out
    follower = subprocess.Popen(
        [*COMMAND, "show", "log", "worker", NUMBER, "-f"], stdout=subprocess.PIPE, text=True
    )
    process.send_signal(signal.SIGTERM)
    assert f"worker {FIRST} left" in follower.communicate()[0]


def test_the_log_of_an_installation_is_the_newest_one_even_if_it_failed(
    project: Path, kochi: Kochi
) -> None:
    from snakemake_kochi.errors import PhaseError

    outcome = kochi("show", "log", "install", "tool:broken")
    assert outcome.status == 1
    assert "Type: kochi install -d tool:broken" in outcome.err
    with pytest.raises(PhaseError):
        install("tool:broken")
    assert kochi("show", "log", "install", "tool:broken").out == "trying\n"
    assert kochi("show", "log", "install", "-d", "tool:broken").out == "trying\n"
    # Nobody is installing: there is nothing to follow.
    assert kochi("show", "log", "install", "tool:broken", "-f").out == "trying\n"


def test_who_only_reads_does_not_settle_which_locks_the_machine_uses(
    project: Path, kochi: Kochi, shell: Kochi, tmp_path: Path
) -> None:
    """With those of the default settled, all that hands over or works would be refused."""
    submit(kochi, "true")
    install("tool:release")
    machine = Root.find().machine("local")
    machine.lock_settings.unlink()  # as one is told to, who is to use others
    (tmp_path / "locks").mkdir()
    with open(project / "kochi.yaml", "a") as file:
        file.write(f"machines: {{local: {{lock_dir: {tmp_path}/locks}}}}\n")
    assert shell("show", "log", "install", "tool:release", "-f").status == 0
    assert shell("show", "job", 99).status == 1
    assert not machine.lock_settings.exists()
    assert shell("cancel", FIRST).status == 0
    assert shell("enqueue", "-q", "test", "true").status == 0


def test_paths_are_told(installed: Path, kochi: Kochi, work: Work) -> None:
    submit(kochi, "true")
    work()
    root = Root(Path(os.environ["KOCHI_ROOT"]))
    machine = root.machine("local")
    assert kochi("show", "path", "root").out == f"{root.directory}\n"
    assert kochi("show", "path", "project").out == f"{root.project(installed).directory}\n"
    assert kochi("show", "path", "project", installed.name).out == (
        f"{root.project(installed).directory}\n"
    )
    unknown = kochi("show", "path", "project", f"{installed.name}s")
    assert unknown.status == 1
    assert "did you mean" in unknown.err
    of_job = machine.directory / "runs" / NUMBER / "logs"
    assert kochi("show", "path", "job", NUMBER).out == f"{of_job}\n"
    assert of_job.is_dir()
    assert (
        kochi("show", "path", "worker", NUMBER).out == f"{machine.layout.worker(FIRST).directory}\n"
    )
    prefix = kochi("show", "path", "install", "tool:release", "--json").data["path"]
    assert (Path(prefix) / "tool").read_text() == "echo the tool\n"
    assert kochi("show", "path", "worker", "7").status == 1
    assert kochi("show", "path", "job", "7").status == 1
    assert "kochi install" in kochi("show", "path", "install", "tool:debug").err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("job", "7"), "kochi show jobs"),
        (("log", "job", "7"), "kochi show jobs"),
        (("log", "worker", "7"), "kochi show workers"),
        (("installs",), "git init"),
        (("path", "project"), "git init"),
        (("jobs", "-m", "spica"), "machines:\n  spica:\n"),
    ],
)
def test_what_is_not_there_is_an_error_with_what_to_type_or_write(
    words: tuple[str, ...], hint: str, kochi: Kochi
) -> None:
    outcome = kochi("show", *words)
    assert outcome.status == 1
    assert outcome.err.startswith("kochi: ")
    assert hint in outcome.err


def test_a_damaged_ticket_is_listed_as_such(kochi: Kochi, worker: Worker) -> None:
    submit(kochi, "true")
    machine = Root(Path(os.environ["KOCHI_ROOT"])).machine("local")
    (ticket,) = machine.directory.glob("queues/test/waiting/*/*")
    ticket.write_text("{")
    assert "(damaged)" in kochi("show", "jobs").out
    worker()
    wait_until(lambda: kochi("show", "job", NUMBER, "--json").data["state"] == "failed")
    assert "State: failed: " in kochi("show", "job", NUMBER).out
