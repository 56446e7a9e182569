"""Phases in copies of a process that has imported them, and the failures of that process."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support import PYTHON_PATH, REPOSITORY

from snakemake_kochi.queue import Queue, ShellJob, Ticket
from snakemake_kochi.queue.result import read_attempt

_COMMAND = '"$KOCHI_PYTHON" -P -m snakemake_kochi.phases'


def submit(site: Any, count: int = 1, words: tuple[str, ...] = ("--help",), **more: str) -> None:
    """Submit phases, which print what they know of themselves, with more in their environment."""
    environment = {"KOCHI_PYTHON": sys.executable, "PYTHONPATH": PYTHON_PATH, **more}
    shell = ShellJob(
        script=f"set -euo pipefail; {_COMMAND} {' '.join(words)}",
        executable="/bin/bash",
        environment=environment,
        phase=words,
    )
    job = Ticket(name="one", command=("false",), directory=str(site.directory), shell=shell)
    Queue(site.machine, "q").submit([job] * count)


def spawners_of(site: Any) -> list[int]:
    """The processes of the worker of which phases get copies."""
    worker = site.worker_of(site.workers[-1])
    return [pid for pid in site.children_of(worker) if "phase_process" in command_of(pid)]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def attempt_of(site: Any, job: int) -> tuple[str, str]:
    """The runner of an ended job, and why it was no faster one."""
    site.ended(job)
    attempt = read_attempt(site.machine.job(job).attempt(1))
    return attempt.runner, attempt.skipped_runners


def test_a_phase_prints_and_ends_as_in_a_process_of_its_own(site: Any) -> None:
    runners = "Runners([ShellRunner(), CommandRunner()])"
    for words in (("--help",), ("run",)):
        submit(site, words=words)
    site.start_with_runners(runners).wait(60)
    for words in (("--help",), ("run",)):
        submit(site, words=words)
    assert site.start().wait(60) == 0
    ended = [site.ended(number).result for number in range(4)]
    assert [each.runner for each in ended] == ["shell", "shell", "phase", "phase"]
    assert [each.exit_status for each in ended] == [0, 2, 0, 2]
    assert "usage: python -m snakemake_kochi.phases" in site.log(0)
    assert "the following arguments are required" in site.log(1)
    assert (site.log(0), site.log(1)) == (site.log(2), site.log(3))


def test_the_process_for_phases_ends_with_its_worker(site: Any) -> None:
    submit(site)
    process = site.start(stay=True)
    site.ended(0)
    (spawner,) = spawners_of(site)
    site.kill_worker(process)
    site.wait_until(lambda: not site.is_running(spawner), "the end of the spawner")


def test_the_process_for_phases_is_replaced_when_it_was_killed(site: Any) -> None:
    submit(site)
    site.start(stay=True)
    site.ended(0)
    (killed,) = spawners_of(site)
    os.kill(killed, signal.SIGKILL)
    site.wait_until(lambda: not site.is_running(killed), "the end of the spawner")
    submit(site, 2)
    assert [attempt_of(site, number) for number in (1, 2)] == [("phase", "")] * 2
    assert spawners_of(site) != [killed]


def test_no_phase_is_lost_or_run_twice_while_its_spawners_are_killed(site: Any) -> None:
    site.start(stay=True, cores=2)
    submit(site)
    site.ended(0)
    submit(site, 29)
    kills = seen = 0
    # With each end once, so that some spawners live long enough to be used.
    while (ended := sum(site.machine.job(each).result.exists() for each in range(30))) < 30:
        for pid in spawners_of(site) if ended > seen else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                kills += 1
        seen = ended
    assert kills
    for number in range(30):
        result = site.job(number).result
        # A copy looks like its spawner until its end, also after it has printed everything.
        assert result.reason in ("success", "signal")
        assert site.log(number).count("usage: ") in ((1,) if result.ok else (0, 1))


def test_a_stopped_process_for_phases_delays_a_job_and_starts_it_once(site: Any) -> None:
    runners = "(phases := PhaseRunner(environment, 10_000, patience=4))"
    site.start_with_runners(f"Runners([{runners}, ShellRunner()], [phases])", stay=True)
    submit(site)
    assert attempt_of(site, 0) == ("phase", "")
    (spawner,) = spawners_of(site)
    os.kill(spawner, signal.SIGSTOP)
    submit(site)
    assert attempt_of(site, 1) == ("shell", "no phase: timed out")
    assert site.log(1).count("usage: ") == 1


def test_a_phase_has_the_code_that_the_package_has_now(site: Any, tmp_path: Path) -> None:
    package = tmp_path / "installed" / "snakemake_kochi"
    shutil.copytree(REPOSITORY / "snakemake_kochi", package)
    program = package / "phases" / "__main__.py"
    text = program.read_text()
    changed = "description=__doc__"
    assert changed in text
    program.write_text(text.replace(changed, 'description="first"'))
    site.start(stay=True)
    submit(site, PYTHONPATH=str(package.parent))
    assert attempt_of(site, 0) == ("phase", "")
    assert "\nfirst\n" in site.log(0)
    program.write_text(text.replace(changed, 'description="a second one"'))
    count = 1
    # The spawner looks after its files once a second.
    while "\na second one\n" not in site.log(count - 1):
        submit(site, PYTHONPATH=str(package.parent))
        assert site.ended(count).result.ok
        count += 1
    last = ("shell", "no phase: the installed package has changed")
    assert attempt_of(site, count - 1) == last
    submit(site, PYTHONPATH=str(package.parent))
    assert attempt_of(site, count) == ("phase", "")
    assert "\na second one\n" in site.log(count)


def test_phases_whose_python_would_start_differently_have_a_process_of_their_own(
    site: Any,
) -> None:
    site.start(stay=True)
    for zone in ("UTC", "Asia/Tokyo", "UTC"):
        submit(site, TZ=zone)
    assert [attempt_of(site, number) for number in range(3)] == [("phase", "")] * 3
    assert len(spawners_of(site)) == 2
    submit(site, TZ="Europe/Paris")
    assert attempt_of(site, 3) == ("phase", "")
    assert len(spawners_of(site)) == 2


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"BASH_ENV": "/dev/null"}, "no phase: BASH_ENV is set"),
        ({"KOCHI_PYTHON": "python"}, "no phase: KOCHI_PYTHON is not the path of a Python"),
    ],
)
def test_a_phase_goes_to_a_shell_that_acts_on_its_environment(
    site: Any, variables: Mapping[str, str], why: str
) -> None:
    submit(site, **variables, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert site.start().wait(60) == 0
    assert attempt_of(site, 0) == ("shell", why)
    assert site.ended(0).result.ok


def test_a_python_without_this_package_runs_its_phases_in_a_shell(site: Any) -> None:
    submit(site, PYTHONPATH="", PYTHONNOUSERSITE="1", KOCHI_PYTHON="/bin/false")
    assert site.start().wait(60) == 0
    assert attempt_of(site, 0) == ("shell", "no phase: it failed several times in a row")
    assert site.ended(0).result.exit_status == 1


def test_a_process_for_phases_that_takes_too_much_memory_is_not_used(site: Any) -> None:
    submit(site)
    runners = "(phases := PhaseRunner(environment, 8))"
    process = site.start_with_runners(f"Runners([{runners}, ShellRunner()], [phases])")
    assert process.wait(60) == 0
    runner, why = attempt_of(site, 0)
    assert (runner, why.startswith("no phase: it takes ")) == ("shell", True)


def test_the_process_for_phases_is_after_many_jobs_as_after_the_first(site: Any) -> None:
    site.start(stay=True, cores=1)
    submit(site)
    assert attempt_of(site, 0) == ("phase", "")
    (spawner,) = spawners_of(site)
    before = state_of(spawner)
    submit(site, 40)
    assert all(attempt_of(site, number) == ("phase", "") for number in range(1, 41))
    assert spawners_of(site) == [spawner]
    assert state_of(spawner) == before


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
