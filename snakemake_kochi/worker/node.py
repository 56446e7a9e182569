"""What the node of a worker has to give."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache

from snakemake_kochi.queue import Capacity
from snakemake_kochi.worker.gpus import find_gpus
from snakemake_kochi.worker.memory import memory_mb_for_jobs


def capacity_of_this_node(
    cores: int | None = None,
    memory_mb: int | None = None,
    gpus: int | None = None,
    environment: Mapping[str, str] | None = None,
    most_memory_mb: int | None = None,
) -> Capacity:
    """What is given, and for the rest what the calling process may use: under a scheduler that of
    its allocation, and not all of the node's. `environment` defaults to its own; of memory, no more
    than `most_memory_mb`."""
    own = os.environ if environment is None else environment
    return Capacity(
        cores or len(os.sched_getaffinity(0)),
        memory_mb_for_jobs(own, most_memory_mb) if memory_mb is None else memory_mb,
        len(find_gpus(None, own).names) if gpus is None else gpus,
    )


@cache
def gpus_of_this_node() -> int:
    """How many GPUs a worker that this process starts will have. Asks the driver once."""
    return len(find_gpus(None, os.environ).names)
