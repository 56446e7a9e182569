"""What tests see of jobs, workers and queues; with KOCHI_NEXT=1 those on tickets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snakemake_kochi.next import IS_NEXT
from snakemake_kochi.paths import MachinePaths

if TYPE_CHECKING or not IS_NEXT:
    from snakemake_kochi.queue import find_job, find_worker, list_jobs, list_queues, list_workers

    FIRST = 0  # the number of the first job, and of the first worker
    FIRST_OF_RUN = "0"  # the first job of the first run
else:
    from snakemake_kochi.next.views import (
        find_job,
        find_worker,
        list_jobs,
        list_queues,
        list_workers,
    )

    FIRST = 1
    FIRST_OF_RUN = "1.1"

__all__ = [
    "FIRST",
    "FIRST_OF_RUN",
    "find_job",
    "find_worker",
    "list_jobs",
    "list_queues",
    "list_workers",
    "log_of",
]


def log_of(machine: MachinePaths, job: int = FIRST) -> str:
    """What a job has printed, in its last attempt."""
    return find_job(machine, job).log.read_text()
