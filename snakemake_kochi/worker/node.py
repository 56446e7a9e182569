"""What the node of a worker has to give."""

from __future__ import annotations

import os

from snakemake_kochi.queue import Capacity


def capacity_of_this_node(cores: int | None = None) -> Capacity:
    """By default the cores the calling process may run on: under a scheduler those of its
    allocation, and not all of the node's."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Capacity(cores or len(os.sched_getaffinity(0)), memory // 2**20)
