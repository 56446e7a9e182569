"""A job that takes longer than any worker lives."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support import worker_command

from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.queue import Queue, Resources, Ticket, explain, find_job


@pytest.fixture
def machine(isolated_environment: Path) -> MachinePaths:
    return Root(isolated_environment).machine("own")


def work(machine: MachinePaths, directory: Path, walltime: float) -> None:
    settings = {"queues": ("q",), "cores": 1, "walltime": walltime, "grace": 0.1}
    command = worker_command(machine.directory.parent.parent, directory, "own", **settings)
    subprocess.run(command, cwd=directory, check=True, timeout=120)


def ticket(directory: Path, *command: str, **fields: object) -> Ticket:
    return Ticket("long", command, str(directory), resources=Resources(**fields))  # type: ignore[arg-type]


def test_a_job_that_had_the_whole_time_of_three_workers_is_given_up_and_says_why(
    machine: MachinePaths, tmp_path: Path
) -> None:
    [job] = Queue(machine, "q").submit([ticket(tmp_path, "sleep", "100")])
    for number in (1, 2, 3):
        assert find_job(machine, job.job).attempt == number
        # The worker keeps five seconds for itself.
        work(machine, tmp_path, 11.0)
    result = find_job(machine, job.job).result
    assert result is not None
    assert result.reason == "timeout"
    said = explain(machine, job.job, str)
    assert "the time of each worker that had it ended before the job did: worker " in said
    assert "set the job's run time (resources: runtime)" in said


def test_a_job_that_began_late_in_a_workers_time_is_not_blamed(
    machine: MachinePaths, tmp_path: Path
) -> None:
    queue = Queue(machine, "q")
    for _ in range(3):
        queue.submit([ticket(tmp_path, "sleep", "2")])
    [long] = queue.submit([ticket(tmp_path, "sleep", "100")])
    work(machine, tmp_path, 16.5)
    view = find_job(machine, long.job)
    assert view.attempt == 2
    assert "attempt 1, worker 0 on" in explain(machine, long.job, str)
    assert ": drained" in explain(machine, long.job, str)
