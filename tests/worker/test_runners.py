"""Shell jobs and phases: what they find, and the servers that fork some of them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support import PYTHON_PATH, REPOSITORY
from workers_site import QUEUE, Site, is_running, pid_in, servers, until

from snakemake_kochi.processes import NONCE_VARIABLE
from snakemake_kochi.thread_variables import THREAD_VARIABLES
from snakemake_kochi.tickets.hand import cancel
from snakemake_kochi.tickets.names import wake_workers
from snakemake_kochi.tickets.run import End
from snakemake_kochi.tickets.ticket import Benchmark, ShellJob
from snakemake_kochi.worker import start_command
from snakemake_kochi.worker.settings import save_settings


def run(site: Site, script: str, **fields: Any) -> End:
    """The end of a shell job, whose command only tells that it was executed."""
    own = {name: fields.pop(name) for name in ShellJob.__dataclass_fields__ if name in fields}
    fields["shell"] = ShellJob(script=script, **{"executable": "/bin/bash", **own})
    return site.end_of(script, **{"command": ("bash", "-c", "echo by command"), **fields})


def phases(site: Site, *words: str, count: int = 1, **environment: str) -> list[End]:
    """The ends of phases, which print what they know of themselves."""
    words = words or ("--help",)
    environment = {"KOCHI_PYTHON": sys.executable, "PYTHONPATH": PYTHON_PATH, **environment}
    script = f'set -euo pipefail; "$KOCHI_PYTHON" -P -m snakemake_kochi.phases {" ".join(words)}'
    shell = ShellJob(script=script, executable="/bin/bash", environment=environment, phase=words)
    site.run.submit(QUEUE, {f"{n}": site.ticket(script, shell=shell) for n in range(count)})
    wake_workers(site.layout, QUEUE)
    return sorted(site.collect(count), key=lambda end: end.name.job)


def runner_of(end: End) -> str:
    details = end.line["details"]
    return f"{details['runner']} {details['skipped_runners']}".strip()


def package(directory: Path, program: str) -> Path:
    """A package of ours whose phases are this program; the directory for PYTHONPATH."""
    copy = directory / "installed" / "snakemake_kochi"
    shutil.copytree(REPOSITORY / "snakemake_kochi", copy)
    (copy / "phases" / "__main__.py").write_text(program)
    return copy.parent


# ---- what a job finds

OWN = {"KOCHI_JOB_ID", "KOCHI_RUNNER", NONCE_VARIABLE}
STATE = f"""
import os, resource, signal
def main(arguments=()):
    print(sorted(pair for pair in os.environ.items() if pair[0] not in {OWN}))
    print(os.umask(0), os.getcwd(), os.getsid(0) in (os.getpid(), os.getppid()))
    print([str(signal.getsignal(n)) for n in signal.valid_signals()])
    print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    print([resource.getrlimit(n) for n in range(16)])
    print([os.path.dirname(os.readlink(f"/proc/self/fd/{{n}}")) for n in range(3)])
    print(os.listdir("/proc/self/fd"), open("/proc/self/oom_score_adj").read())
    print(sorted(os.sched_getaffinity(0)), flush=True)
    return 7
if __name__ == "__main__":
    raise SystemExit(main())
"""


def test_a_job_finds_the_same_whichever_way_its_process_is_made(site: Site, tmp_path: Path) -> None:
    command = start_command(save_settings(site.settings(cores=1)))
    set_up = "trap '' USR2 INT; umask 027; ulimit -n 999; exec \"$@\""
    with (tmp_path / "launcher's").open("w") as file:
        started = subprocess.Popen(
            ["bash", "-c", set_up, "-", *command],
            cwd=site.work,  # the command is not forked
            stdin=file,
            pass_fds=[file.fileno()],
        )
    site.workers.append(started)
    installed = package(tmp_path, STATE)
    environment = {"KOCHI_PYTHON": sys.executable, "PYTHONPATH": str(installed), "LC_ALL": "C"}
    script = 'set -euo pipefail; "$KOCHI_PYTHON" -P -m snakemake_kochi.phases'
    threads = {"environment": {**environment, **dict.fromkeys(THREAD_VARIABLES, "1")}}
    ends = {
        "command": site.end_of(script, command=("bash", "-c", script), shell=None, **threads),
        "shell": run(site, script, environment=environment),
        "shell, measured": run(site, script, environment=environment, benchmark=Benchmark("b")),
        "phase": phases(site, **environment)[0],
    }
    for runner, end in ends.items():
        assert end.line["details"]["exit_status"] == 7, site.log_of(end)
        assert runner_of(end) == runner.partition(",")[0]
        assert site.log_of(end) == site.log_of(ends["command"]), runner
    assert "('LC_ALL', 'C')" in site.log_of(ends["phase"])
    assert "['0', '1', '2', '3']" in site.log_of(ends["phase"])


@pytest.mark.parametrize("last", ['exec /usr/bin/setpriv "$@"', "exit 1"])
def test_a_command_is_started_without_a_copy_of_the_supervisor(
    site: Site, tmp_path: Path, last: str
) -> None:
    launcher, calls = tmp_path / "bin" / "setpriv", tmp_path / "calls"
    launcher.parent.mkdir()
    launcher.write_text(f'#!/bin/bash\necho "$@" >> {calls}\n{last}\n')
    launcher.chmod(0o700)
    environment = {**os.environ, "PATH": f"{launcher.parent}:{os.environ['PATH']}"}
    command = start_command(save_settings(site.settings()))
    supervisor = subprocess.Popen(command, cwd=site.work, env=environment)
    site.workers.append(supervisor)

    def end_of(*words: str, **options: Any) -> tuple[str, str]:
        end = site.end_of(str(words), command=words, shell=None, **options)
        return end.name.state, site.log_of(end)

    assert end_of("bash", "-c", "pwd; exit 3") == ("failed", f"{site.work}\n")
    assert end_of("bash", "-c", "pwd", directory=str(tmp_path)) == ("success", f"{tmp_path}\n")
    assert "the command 'nothing' was not found" in end_of("nothing")[1]
    assert "the command './here' was not found" in end_of("./here")[1]
    used = [line.partition(" -- ")[2] for line in calls.read_text().splitlines()]
    assert used == ["true", "bash -c pwd; exit 3"][: 1 if last == "exit 1" else 2]
    command = ["bash", "-c", "echo $$ > pid; exec sleep 1000"]
    site.submit("sleep", command=tuple(command), shell=None)
    main = pid_in(site.work / "pid")
    supervisor.kill()
    until(lambda: not main.is_alive())


def test_a_phase_prints_and_ends_as_in_a_process_of_its_own(site: Site) -> None:
    site.worker()
    for words in (("--help",), ("run",)):
        (fast,) = phases(site, *words)
        (slow,) = phases(site, *words, BASH_ENV="/dev/null")
        assert (runner_of(fast), runner_of(slow)) == ("phase", "shell no phase: BASH_ENV is set")
        assert fast.line["details"]["exit_status"] == slow.line["details"]["exit_status"]
        assert site.log_of(fast) == site.log_of(slow)
        assert "usage: python -m snakemake_kochi.phases" in site.log_of(fast)


HEADER = "s\th:m:s\tmax_rss\tmax_vms\tmax_uss\tmax_pss\tio_in\tio_out\tmean_load\tcpu_time"


def test_a_benchmark_is_written_with_a_line_for_each_repetition(site: Site) -> None:
    site.worker()
    end = run(site, "echo run >> runs; sleep 1", benchmark=Benchmark("bm/one.tsv", 2))
    assert (end.name.state, runner_of(end)) == ("success", "shell")
    assert (site.work / "runs").read_text() == "run\n" * 2
    header, *lines = (site.work / "bm" / "one.tsv").read_text().splitlines()
    assert header == HEADER
    assert len(lines) == 2
    assert all(float(line.split("\t")[0]) > 0.5 for line in lines), "seconds"
    assert all(float(line.split("\t")[2]) > 0 for line in lines), "memory of the command"


def test_a_benchmark_of_a_command_that_fails_stops_and_is_not_written(site: Site) -> None:
    site.worker()
    script = "echo run >> runs; [ $(wc -l < runs) -lt 2 ] || exit 5"
    end = run(site, script, benchmark=Benchmark("one.tsv", 3))
    assert end.line["details"]["exit_status"] == 5
    assert (site.work / "runs").read_text() == "run\n" * 2
    assert not (site.work / "one.tsv").exists()


def test_without_snakemakes_benchmarks_the_next_runner_serves(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other" / "snakemake").mkdir(parents=True)
    for name in ("__init__.py", "benchmark.py"):
        (tmp_path / "other" / "snakemake" / name).touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "other"))
    site.worker()
    end = run(site, "echo by shell", benchmark=Benchmark("one.tsv"))
    why = "command no shell: this Snakemake's snakemake.benchmark has no BenchmarkRecord"
    assert runner_of(end).startswith(why)
    assert site.log_of(end) == "by command\n"


@pytest.mark.parametrize("benchmark", [None, Benchmark("one.tsv")])
def test_a_cancelled_job_ends_with_its_command(site: Site, benchmark: Benchmark | None) -> None:
    site.worker(grace=1)
    shell = ShellJob("echo $$ > pid; sleep 100; echo > out", "/bin/bash", benchmark=benchmark)
    site.submit("job", shell=shell)
    until(lambda: (site.work / "pid").exists() and (site.work / "pid").read_text())
    cancel(site.layout, QUEUE, 1, 1)
    assert site.collect()[0].name.state == "cancelled"
    assert not is_running(int((site.work / "pid").read_text()))
    assert not (site.work / "one.tsv").exists()


# ---- servers


def test_a_server_ends_with_its_worker(site: Site) -> None:
    supervisor = site.worker()
    phases(site)
    (server,) = servers(site, "phase")
    supervisor.kill()
    supervisor.wait()
    until(lambda: not is_running(server))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_does_not_answer_is_replaced_and_the_job_executed_once(
    site: Site, number: int
) -> None:
    site.worker()
    phases(site)
    (server,) = servers(site, "phase")
    os.kill(server, number)
    ends = phases(site, count=2)
    assert [runner_of(end) for end in ends] == ["phase"] * 2
    assert [site.log_of(end).count("usage: ") for end in ends] == [1, 1]
    assert server not in servers(site, "phase")


def test_no_phase_is_lost_or_run_twice_while_servers_are_killed(site: Site) -> None:
    site.worker(cores=2)
    phases(site)
    words = ("--help",)
    environment = {"KOCHI_PYTHON": sys.executable, "PYTHONPATH": PYTHON_PATH}
    shell = ShellJob("exit 9", "/bin/bash", environment=environment, phase=words)
    site.run.submit(QUEUE, {f"{n}": site.ticket("", shell=shell) for n in range(40)})
    wake_workers(site.layout, QUEUE)
    kills, ends = 0, []
    while len(ends) < 40:
        # With each end once, so that some servers live long enough to be used.
        if found := site.run.collect():
            ends += found
            for pid in servers(site, "phase"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    kills += 1
        time.sleep(0.005)
    assert kills
    for end in ends:
        if runner_of(end) == "phase":
            assert end.name.state == "success"
            assert site.log_of(end).count("usage: ") == 1
        else:
            assert end.line["details"]["exit_status"] == 9
            assert site.log_of(end) == ""
    assert {end.name.attempt for end in ends} == {1}


def test_a_phase_has_the_code_that_the_package_has_now(site: Site, tmp_path: Path) -> None:
    program = "def main(arguments):\n    print('{}')\n    return 0\n"
    installed = package(tmp_path, program.format("first"))
    site.worker()
    (end,) = phases(site, PYTHONPATH=str(installed))
    assert (runner_of(end), site.log_of(end)) == ("phase", "first\n")
    path = installed / "snakemake_kochi" / "phases" / "__main__.py"
    path.write_text(program.format("a second one"))
    # The server looks after its files once a second.
    while site.log_of(end) == "first\n":
        (end,) = phases(site, PYTHONPATH=str(installed))
        assert runner_of(end) == "phase"
    assert site.log_of(end) == "a second one\n"
    assert site.logs().count("the installed package has changed") == 1


def test_phases_whose_python_would_start_differently_have_a_server_of_their_own(
    site: Site,
) -> None:
    site.worker()
    for zone in ("UTC", "Asia/Tokyo", "UTC", "Asia/Dili", "Asia/Baku"):
        assert runner_of(phases(site, TZ=zone)[0]) == "phase"
    first = servers(site, "phase")
    assert len(first) == 4
    assert runner_of(phases(site, TZ="Europe/Paris")[0]) == "phase"
    until(lambda: len(servers(site, "phase")) == 4)
    assert servers(site, "phase")[:3] == [first[0], *first[2:]]  # the least used one is gone


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"SHELLOPTS": "errexit"}, "SHELLOPTS is set"),
        ({"KOCHI_PYTHON": "python"}, "KOCHI_PYTHON is not the path of a Python"),
        ({"PYTHONPATH": "lib"}, "PYTHONPATH has a path that is not absolute"),
    ],
)
def test_a_phase_goes_to_a_shell_that_acts_on_its_environment(
    site: Site, variables: Mapping[str, str], why: str
) -> None:
    site.worker()
    (end,) = phases(site, **variables)
    assert runner_of(end) == f"shell no phase: {why}"


def test_a_program_that_cannot_serve_is_given_up(site: Site) -> None:
    site.worker()
    (end,) = phases(site, KOCHI_PYTHON="/bin/false")
    why = "shell no phase: 3 in a row were of little use; the last one: its process ended"
    assert runner_of(end).startswith(why)
    assert end.line["details"]["exit_status"] == 1


def test_a_server_that_takes_too_much_memory_is_not_used(site: Site) -> None:
    site.worker(memory_mb=32)
    for _ in range(2):
        (end,) = phases(site)
        assert runner_of(end).startswith("shell no phase: it takes ")
    until(lambda: not servers(site, "phase"))
    assert site.logs().count("is process") == 1


def test_a_server_is_after_many_jobs_as_after_the_first(site: Site) -> None:
    site.worker(cores=1)
    phases(site)
    (server,) = servers(site, "phase")
    before = state_of(server)
    assert {runner_of(end) for end in phases(site, count=40)} == {"phase"}
    assert servers(site, "phase") == [server]
    assert state_of(server) == before


def state_of(pid: int) -> tuple[list[str], str, bytes, int]:
    """Open files, directory, environment and the memory in MiB of a process."""
    process = Path(f"/proc/{pid}")
    (pages,) = [line for line in (process / "status").read_text().splitlines() if "VmRSS" in line]
    return (
        sorted(os.listdir(process / "fd")),
        os.readlink(process / "cwd"),
        (process / "environ").read_bytes(),
        int(pages.split()[1]) >> 11,
    )
