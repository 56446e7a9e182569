"""Jobs and points while workers, runs and controllers are killed: none is lost or doubled.

The jobs run also on a filesystem that delays each operation. The harnesses of the tests compare the
submitted, executed and reported jobs one by one, and the records and files in the artifact branch
with what ran.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.measure import Row, Size, import_of_tests
from bench.slow_filesystem import SlowFilesystem

# So many of the jobs run again on a filesystem that takes so many seconds more for each operation.
_SLOW_JOBS, _DELAY = 1000, 0.002
_VICTIMS = ("run", "worker", "supervisor")


def measure(directory: Path, size: Size) -> list[Row]:
    """Raises RuntimeError, with a line for each job or record that is lost or there twice."""
    count, workers = size.number(10_000, 60), 2 if size.quick else 8
    rows = _rows(_of_jobs(directory, count, workers), f"{count:,} jobs, {workers} workers")
    few = min(count, _SLOW_JOBS)
    with SlowFilesystem(directory / "backing", directory / "slow", _DELAY) as filesystem:
        slow = _of_jobs(filesystem.path, few, workers)
        filesystem.set_delay(0.0)  # so that what ends with it ends soon
    rows += _rows(slow, f"{few:,} jobs, {1000 * _DELAY:.0f} ms an operation")
    records = import_of_tests("faults.record_chaos")
    points = 12 if size.quick else 1000
    of_records = records.run_record_chaos(directory / "records", points, 1.0, 1200.0)
    if of_records.problems:
        raise RuntimeError("\n".join(of_records.problems))
    return [
        *rows,
        Row(f"a batch of {points:,} points", [of_records.seconds], "s"),
        Row("workers killed", [of_records.worker_deaths], ""),
        Row("runs and committers killed", [of_records.run_deaths], ""),
        Row("controllers killed", [of_records.controller_deaths], ""),
        Row("runs executed", [of_records.executions], ""),
        Row("records missing, or there twice", [0], ""),
    ]


def _of_jobs(directory: Path, jobs: int, workers: int) -> Any:
    place = directory / "jobs"
    place.mkdir(mode=0o700)
    site = import_of_tests("workers_site").Site(place)
    chaos = import_of_tests("worker.chaos")
    try:
        outcome = chaos.run_chaos(site, jobs, workers, kills=jobs, pause=1.0, seed=1)
    finally:
        site.close()
    if outcome.problems:
        raise RuntimeError("\n".join(outcome.problems))
    return outcome


def _rows(outcome: Any, what: str) -> list[Row]:
    return [
        Row(what, [outcome.seconds], "s"),
        *(Row(f"{victim}s killed", [outcome.deaths[victim]], "") for victim in _VICTIMS),
        Row("attempts begun", [outcome.begun], ""),
        Row("jobs lost, or done twice", [0], ""),
    ]


def measure_nodes(directory: Path, size: Size) -> list[Row]:
    """A run on a GlusterFS volume of two replicas, seen by two nodes. Workers of the first node are
    killed and replaced; when half of the jobs are done, the second node dies with its two workers.

    Raises RuntimeError, with a line for each job that is lost or was done twice.
    """
    harness = import_of_tests("faults.node_chaos")
    jobs, deaths = (20, 1) if size.quick else (size.number(500, 20), 4)
    with import_of_tests("gluster").GlusterVolume() as volume:
        mounts = {name: volume.mount(name) for name in ("node1", "node2")}
        outcome = harness.run_node_chaos(mounts, directory, jobs, deaths)
    if outcome.problems:
        raise RuntimeError("\n".join(outcome.problems))
    return [
        Row(f"{jobs:,} jobs on two nodes", [outcome.seconds], "s"),
        Row("workers killed", [outcome.worker_deaths], ""),
        Row("nodes lost, with their workers", [1], ""),
        Row("jobs that began again", [outcome.again], ""),
        Row("jobs lost, or done twice", [0], ""),
    ]
