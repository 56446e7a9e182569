"""Allocations of killed controllers that this one adopts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import WorkerState, list_workers
from snakemake_kochi.queue.workers import read_worker
from snakemake_kochi.schedulers.interface import Scheduler, not_ended


class OrphanedAllocations:
    """Their workers run nobody else's jobs: those that run none are of no use to anybody."""

    def __init__(self, paths: MachinePaths, scheduler_of: Callable[[str], Scheduler]) -> None:
        self._paths = paths
        self._scheduler_of = scheduler_of
        self._schedulers: dict[str, Scheduler] = {}
        self._busy: list[int] = []  # workers, when they were looked at last
        self._told: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._schedulers)

    def add(self, controllers: Sequence[str]) -> None:
        for controller in controllers:
            self._schedulers[controller] = self._scheduler_of(controller)

    @property
    def have_room(self) -> bool:
        """Whether a worker that had jobs has none any more: others may wait for its nodes."""
        for number in self._busy:
            with contextlib.suppress(OSError, DamagedFileError):
                if not _is_busy(read_worker(self._paths, number)):
                    return True
        return False

    def cancel_idle(self) -> list[str]:
        """Cancel those that run no job; returns them, each once: Slurm has them for a while yet.
        Raises KochiError."""
        cancelled = []
        self._busy = []
        for controller, scheduler in list(self._schedulers.items()):
            found = not_ended(scheduler.find() or {})
            if not found:
                del self._schedulers[controller]
                continue
            busy = [worker for worker in self._workers_of(controller) if _is_busy(worker)]
            self._busy += [worker.worker for worker in busy]
            if idle := sorted(found.keys() - {worker.allocation for worker in busy}):
                scheduler.cancel(idle)
                cancelled += [each for each in idle if each not in self._told]
                self._told.update(idle)
        return cancelled

    def _workers_of(self, controller: str) -> list[WorkerState]:
        return [each for each in list_workers(self._paths) if each.controller == controller]


def _is_busy(worker: WorkerState) -> bool:
    return bool(worker.running) and not worker.is_gone
