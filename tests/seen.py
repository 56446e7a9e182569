"""What tests see of jobs, workers and queues."""

from __future__ import annotations

from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.views import (
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
