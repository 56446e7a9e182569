"""The capacity of a worker, and whether a job can ever run there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from humanfriendly.text import pluralize

from snakemake_kochi.quantities import format_duration
from snakemake_kochi.tickets.ticket import Resources

_LEAST = Resources()


@dataclass(frozen=True)
class Capacity:
    """The capacity of a worker: cores, memory in MiB, and a number of GPUs on its node; and the
    nodes of the allocation that it leads."""

    cores: int
    memory_mb: int
    gpus: int = 0
    nodes: int = 1

    def is_full(self, running: Sequence[Resources]) -> bool:
        """Whether no ticket at all fits, so that a search for one is useless."""
        return not self.fits(_LEAST, running)

    def fits(self, wanted: Resources, running: Sequence[Resources]) -> bool:
        """Whether a ticket without an `obstacle` fits beside the running ones."""
        cores = memory = gpus = 0
        for each in (wanted, *running):
            if each.exclusive and running:
                return False
            cores, gpus = cores + each.cores, gpus + each.gpus
            memory += each.memory_mb or 0
        return cores <= self.cores and memory <= self.memory_mb and gpus <= self.gpus

    def obstacle(self, wanted: Resources, seconds_left: float | None = None) -> str | None:
        """Why the ticket can never run here, for people ("8 cores needed, 4 available"), or None.

        `seconds_left` is how long the worker will exist; None when nothing limits it.
        """
        if wanted.nodes > self.nodes:
            return f"{wanted.nodes} nodes needed, {self.nodes} available"
        if wanted.cores > self.cores:
            return f"{wanted.cores} cores needed, {self.cores} available"
        if (wanted.memory_mb or 0) > self.memory_mb:
            return f"{wanted.memory_mb} MiB of memory needed, {self.memory_mb} available"
        if wanted.gpus > self.gpus:
            needed = pluralize(wanted.gpus, "GPU")
            return f"{needed} needed, {self.gpus or 'none'} available"
        if (
            seconds_left is not None
            and wanted.runtime_seconds is not None
            and wanted.runtime_seconds > seconds_left
        ):
            left = format_duration(max(0.0, seconds_left))
            return f"{format_duration(wanted.runtime_seconds)} needed, {left} left"
        return None
