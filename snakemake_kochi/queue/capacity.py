"""What a worker has to give, and whether a ticket fits into it: ever, and now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import humanfriendly
from humanfriendly.text import pluralize

from snakemake_kochi.queue.ticket import Resources


@dataclass(frozen=True)
class Capacity:
    """What a worker has to give: cores, memory in MiB, and a number of GPUs."""

    cores: int
    memory_mb: int
    gpus: int = 0

    def is_full(self, running: Sequence[Resources]) -> bool:
        """Whether no ticket at all fits, so that looking for one is needless."""
        return not self.fits(Resources(), running)

    def fits(self, wanted: Resources, running: Sequence[Resources]) -> bool:
        """Whether there is room beside what is running, for a ticket without an `obstacle`."""
        everybody = [wanted, *running]
        if running and any(resources.exclusive for resources in everybody):
            return False
        return (
            sum(resources.cores for resources in everybody) <= self.cores
            and sum(resources.memory_mb or 0 for resources in everybody) <= self.memory_mb
            and sum(resources.gpus for resources in everybody) <= self.gpus
        )

    def obstacle(self, wanted: Resources, seconds_left: float | None = None) -> str | None:
        """Why the ticket can never run here, for people ("8 cores needed, 4 there"), or None.

        `seconds_left`: how long the worker will be there; None when nothing limits it.
        """
        if wanted.cores > self.cores:
            return f"{wanted.cores} cores needed, {self.cores} there"
        if (wanted.memory_mb or 0) > self.memory_mb:
            return f"{wanted.memory_mb} MiB of memory needed, {self.memory_mb} there"
        if wanted.gpus > self.gpus:
            needed = pluralize(wanted.gpus, "GPU")
            return f"{needed} needed, {self.gpus or 'none'} there"
        if (
            seconds_left is not None
            and wanted.runtime_seconds is not None
            and wanted.runtime_seconds > seconds_left
        ):
            left = format_duration(max(0.0, seconds_left))
            return f"{format_duration(wanted.runtime_seconds)} needed, {left} left"
        return None


def format_duration(seconds: float) -> str:
    """For people, in the two largest units: "2 hours and 5 minutes", "40 seconds"."""
    return str(humanfriendly.format_timespan(int(seconds), max_units=2))
