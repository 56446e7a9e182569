"""Allocations of controllers that were killed, and from which this one takes over."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from snakemake_kochi.allocation.scheduler import Scheduler, not_ended
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import list_workers


class FormerAllocations:
    """Their workers run nobody else's jobs: those that run none are of no use to anybody."""

    def __init__(self, paths: MachinePaths, scheduler_of: Callable[[str], Scheduler]) -> None:
        self._paths = paths
        self._scheduler_of = scheduler_of
        self._schedulers: dict[str, Scheduler] = {}

    def __bool__(self) -> bool:
        return bool(self._schedulers)

    def add(self, controllers: Sequence[str]) -> None:
        for controller in controllers:
            self._schedulers[controller] = self._scheduler_of(controller)

    def cancel_idle(self) -> list[str]:
        """Cancel those that run no job; returns them. Raises KochiError."""
        cancelled = []
        for controller, scheduler in list(self._schedulers.items()):
            found = not_ended(scheduler.find() or {})
            if not found:
                del self._schedulers[controller]
            elif idle := sorted(found.keys() - self._busy(controller)):
                scheduler.cancel(idle)
                cancelled += idle
        return cancelled

    def _busy(self, controller: str) -> set[str | None]:
        return {
            worker.allocation
            for worker in list_workers(self._paths)
            if worker.controller == controller and worker.running and not worker.is_gone
        }
