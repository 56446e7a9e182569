"""Whether a worker has room for a ticket beside those it is running."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from snakemake_kochi.queue.ticket import Resources


@dataclass(frozen=True)
class Capacity:
    """What a worker has to give: cores, and memory in MiB."""

    cores: int
    memory_mb: int

    @classmethod
    def of_this_node(cls, cores: int | None) -> Capacity:
        """By default the cores the worker may run on: under a scheduler those of its allocation,
        and not all of the node's."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return cls(cores or len(os.sched_getaffinity(0)), memory // 2**20)

    def is_full(self, running: Sequence[Resources]) -> bool:
        """Whether no ticket at all fits, so that looking for one is needless."""
        return not self.fits(Resources(), running)

    def fits(self, wanted: Resources, running: Sequence[Resources]) -> bool:
        """Anything fits into an idle worker: what asks for more than there is runs alone."""
        if not running:
            return True
        everybody = [wanted, *running]
        if any(resources.exclusive for resources in everybody):
            return False
        return (
            sum(resources.cores for resources in everybody) <= self.cores
            and sum(resources.memory_mb or 0 for resources in everybody) <= self.memory_mb
        )
