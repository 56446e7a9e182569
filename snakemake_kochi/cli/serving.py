"""Whether anybody will run what is handed to a queue."""

from __future__ import annotations

from snakemake_kochi.cli.output import remark
from snakemake_kochi.place import Place
from snakemake_kochi.queue.workers import shared_workers


def remark_without_worker(place: Place, queue: str) -> None:
    """Say how to start a worker if none serves the queue: a job may wait for it for ever."""
    if not shared_workers(place.machine_paths, queue):
        remark(f"No worker serves that queue yet. To start one, type: kochi work -q {queue}")
