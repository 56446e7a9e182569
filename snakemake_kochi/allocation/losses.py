"""Workers that give no sign of life, and whose allocation is over as its scheduler says."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import Observer, WorkerState
from snakemake_kochi.queue.observation import SUPERVISOR_PATIENCE, presume_dead

# In heartbeats of the worker. A scheduler takes a node for gone that it cannot reach: processes
# may go on there, until their worker's supervisor sees what everybody sees.
_CERTAIN_AFTER = SUPERVISOR_PATIENCE + 2
_SILENT_AFTER = 3


class Losses:
    """Each of the two signs proves little by itself: both together let the jobs of a node that
    failed go to others sooner than its silence alone. On this host the kernel is asked instead."""

    def __init__(self, paths: MachinePaths, clock: Callable[[], float] = time.monotonic) -> None:
        self._paths = paths
        self._observer = Observer(clock)
        self._silent: list[tuple[WorkerState, float]] = []
        self._latest: dict[str, int] = {}  # the last worker of each allocation

    def look(self, workers: Iterable[WorkerState]) -> bool:
        """Note how long each has been silent; whether one has been for so long that its scheduler
        is worth a question."""
        self._silent = []
        for worker in workers:
            if worker.allocation is not None:
                latest = self._latest.get(worker.allocation, worker.worker)
                self._latest[worker.allocation] = max(latest, worker.worker)
            if worker.is_on_this_node or worker.presumed_dead:
                continue
            with contextlib.suppress(OSError, DamagedFileError):
                state, still = self._observer.look(self._paths, worker.worker)
                if still >= _SILENT_AFTER * state.heartbeat_interval:
                    self._silent.append((state, still))
        return bool(self._silent)

    def declare(self, allocations: Collection[str]) -> None:
        """Presume those dead that were silent and whose allocation is none of these, which are all
        in which there can be a worker, or has another worker by now: it was requeued."""
        for state, still in self._silent:
            is_long = still >= _CERTAIN_AFTER * state.heartbeat_interval
            latest = self._latest.get(state.allocation or "", state.worker)
            is_over = state.allocation not in allocations or latest > state.worker
            if is_long and is_over:
                with contextlib.suppress(OSError):
                    presume_dead(self._paths, state, still)
