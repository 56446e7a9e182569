"""The spawner, the small process that forks the processes of shell jobs, and its failures."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from support import run, write

from snakemake_kochi.queue import Queue, ShellJob, Ticket
from snakemake_kochi.worker.runners import spawner_process

# Tells the job's parent, session and process number, and then waits for the file `go`.
_TELL = "echo $PPID $(cut -d' ' -f6 /proc/$$/stat) $$ > told; until [ -e go ]; do sleep 0.1; done"


def submit(site: Any, *scripts: str) -> list[Ticket]:
    tickets = [
        Ticket(
            name="one",
            command=("bash", "-c", "echo by command > by-command"),
            directory=str(site.directory),
            shell=ShellJob(script=script, executable="/bin/bash"),
        )
        for script in scripts
    ]
    return Queue(site.machine, "q").submit(tickets)


def worker_and_spawners(site: Any) -> tuple[int, list[int]]:
    worker = site.worker_of(site.workers[-1])
    found = [pid for pid in site.children_of(worker) if "spawner_process" in command_of(pid)]
    return worker, found


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def spawner_of(site: Any) -> int:
    _, spawners = worker_and_spawners(site)
    assert len(spawners) == 1
    return spawners[0]


def test_a_shell_job_is_a_child_of_the_worker_in_a_session_of_its_own(site):
    submit(site, _TELL)
    process = site.start()
    parent, session, own = site.wait_for("told").split()
    worker, spawners = worker_and_spawners(site)
    assert (int(parent), session) == (worker, own)
    assert len(spawners) == 1
    (site.directory / "go").touch()
    assert site.ended(0).result.runner == "shell"
    assert process.wait(60) == 0
    assert not command_of(spawners[0])


def test_a_shell_job_has_the_signals_files_and_score_of_any_other(site):
    tell = "grep ^Sig[BIC] /proc/self/status; ls /proc/$$/fd; cat /proc/self/oom_score_adj; cat"
    submit(site, tell)
    site.submit(tell)
    assert site.start().wait(60) == 0
    assert [site.ended(number).result.runner for number in (0, 1)] == ["shell", "command"]
    assert site.log(0) == site.log(1) != ""


@pytest.mark.parametrize("way", ["a sibling", "two forks"])
def test_a_job_is_the_same_whichever_way_its_process_is_made(site, tmp_path, way):
    program = tmp_path / "spawner.py"
    other = "import os; os.confstr = lambda name: 'musl'\n" if way == "two forks" else ""
    run = "import runpy; runpy.run_path({!r}, run_name='__main__')\n"
    write(program, other + run.format(spawner_process.__file__))
    runners = f"Runners([ShellRunner(Spawner(program={str(program)!r})), CommandRunner()])"
    submit(site, _TELL, "exit 7", "kill -TERM $$")
    site.start_with_runners(runners, cores=3)
    parent, session, own = site.wait_for("told").split()
    assert (int(parent), session) == (site.worker_of(site.workers[-1]), own)
    (site.directory / "go").touch()
    results = [site.ended(number).result for number in range(3)]
    assert [each.runner for each in results] == ["shell"] * 3
    assert results[0].ok
    assert (results[1].exit_status, results[2].signal) == (7, signal.SIGTERM)


def test_a_sibling_is_a_process_of_its_own(tmp_path):
    # The process in the middle makes a sibling, which tells what it is, also by a thread.
    program = """
        import os, signal, sys, threading
        from snakemake_kochi.next.worker.sibling import sibling_fork

        parent = os.getpid()
        if os.fork() == 0:
            fork = sibling_fork()
            assert fork is not None
            number = fork()
            if number == 0:
                seen = []
                thread = threading.Thread(target=lambda: seen.append(os.getppid()))
                thread.start()
                thread.join()
                assert seen == [parent]
                assert threading.get_native_id() == os.getpid()
                os.waitpid(os.fork() or os._exit(0), 0)
                os.write(1, b"sibling\\n")
                os.kill(os.getpid(), signal.SIGTERM)
            try:
                os.waitpid(number, 0)
            except ChildProcessError:
                os.write(1, b"no child\\n")
            os._exit(0)
        ends = sorted(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(2))
        print(ends)
        """
    done = run(sys.executable, "-c", textwrap.dedent(program), cwd=tmp_path)
    assert done.returncode == 0
    assert sorted(done.stdout.split("\n")[:2]) == ["no child", "sibling"]
    assert done.stdout.endswith("[-15, 0]\n")


def test_a_spawner_that_was_killed_is_replaced(site):
    submit(site, "true")
    site.start(stay=True)
    site.ended(0)
    killed = spawner_of(site)
    os.kill(killed, signal.SIGKILL)
    submit(site, "echo once >> second")
    assert site.ended(1).result.ok
    submit(site, "echo once >> third")
    assert site.ended(2).result.ok
    for name in ("second", "third"):
        assert (site.directory / name).read_text() == "once\n"
    assert spawner_of(site) != killed


def test_a_request_to_a_stopped_spawner_is_executed_once(site):
    runners = "Runners([ShellRunner(Spawner(patience=4)), CommandRunner()])"
    submit(site, "true")
    site.start_with_runners(runners, stay=True)
    site.ended(0)
    os.kill(spawner_of(site), signal.SIGSTOP)
    submit(site, "echo once >> second")
    assert site.ended(1).result.runner == "shell"
    assert (site.directory / "second").read_text() == "once\n"


def test_no_job_is_lost_or_done_twice_while_spawners_are_killed(site):
    scripts = [f"echo {number} >> done" for number in range(60)]
    runners = "Runners([ShellRunner(Spawner(most_failures=10_000)), CommandRunner()])"
    site.start_with_runners(runners, stay=True, cores=2)
    jobs = submit(site, *scripts)
    site.wait_for("done")
    kills = 0
    while any(not site.machine.job(ticket.job).result.exists() for ticket in jobs):
        for pid in worker_and_spawners(site)[1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                kills += 1
    assert kills
    done = sorted(map(int, (site.directory / "done").read_text().split()))
    results = [site.job(ticket.job).result for ticket in jobs]
    assert done == [number for number, result in enumerate(results) if result.ok]
    # A job's own process that has not become its command yet looks like a spawner.
    assert {result.reason for result in results} <= {"success", "signal"}


# Kills the process between spawner and job of the first request, just after it has forked the job.
_KILLED_BETWEEN = """
import os, runpy, signal, sys

spawner, fork = os.getpid(), os.fork
os.confstr = lambda name: "musl"  # so that it forks twice

def fork_and_die():
    is_between = os.getpid() != spawner
    pid = fork()
    if pid and is_between and not os.path.exists({marker!r}):
        open({marker!r}, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return pid

os.fork = fork_and_die
runpy.run_path({program!r}, run_name="__main__")
"""


def test_a_process_killed_between_spawner_and_job_gives_no_job_the_process_of_another(
    site, tmp_path
):
    marker = tmp_path / "killed"
    values = {"marker": str(marker), "program": spawner_process.__file__}
    program = write(tmp_path / "killed_between.py", _KILLED_BETWEEN.format(**values))
    runners = f"Runners([ShellRunner(Spawner(program={str(program)!r})), CommandRunner()])"
    submit(site, *[f"echo {number} >> done" for number in range(6)])
    assert site.start_with_runners(runners, cores=1).wait(60) == 0
    assert marker.exists()
    assert [site.ended(number).result.runner for number in range(6)] == ["shell"] * 6
    assert sorted((site.directory / "done").read_text().split()) == list("012345")


def test_a_shell_job_ends_with_its_worker(site):
    submit(site, _TELL)
    process = site.start()
    own = int(site.wait_for("told").split()[2])
    site.kill_worker(process)
    site.wait_until(lambda: not site.is_running(own), "the end of the job")


def test_a_command_too_long_for_the_spawner_is_executed_all_the_same(site):
    submit(site, f": {'x' * 130_000}; echo once >> done")
    assert site.start().wait(60) == 0
    result = site.ended(0).result
    assert (result.runner, result.ok) == ("shell", True)
    assert (site.directory / "done").read_text() == "once\n"
