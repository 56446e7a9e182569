"""What tests see of jobs and workers, of either queue: see `snakemake_kochi.next`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snakemake_kochi.next import IS_NEXT

if TYPE_CHECKING or not IS_NEXT:
    from snakemake_kochi.queue import find_job, find_worker, list_jobs, list_workers
else:
    from snakemake_kochi.next.views import find_job, find_worker, list_jobs, list_workers

__all__ = ("find_job", "find_worker", "list_jobs", "list_workers")
