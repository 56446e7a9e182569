"""Workers that give no sign of life, and whose allocation has ended according to the scheduler."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import Observer, WorkerState
from snakemake_kochi.queue.heartbeat import SUPERVISOR_PATIENCE, presume_dead

# In heartbeats of a worker. A scheduler presumes a node dead that it cannot reach. Processes there
# may go on until their supervisor sees the same state as all other nodes.
_CERTAIN_AFTER = SUPERVISOR_PATIENCE + 2
_SILENT_AFTER = 3


class SilentWorkers:
    """Workers that give no sign of life, and whose allocation has ended according to the scheduler.

    Each of the two signs proves little by itself. Together they let other workers run the jobs of a
    failed node sooner than its silence alone. For workers on this host the kernel is asked instead.
    """

    def __init__(self, paths: MachinePaths, clock: Callable[[], float] = time.monotonic) -> None:
        self._paths = paths
        self._observer = Observer(clock)
        self._silent: list[tuple[WorkerState, float]] = []
        self._latest: dict[str, int] = {}  # the last worker of each allocation

    def look(self, workers: Iterable[WorkerState]) -> bool:
        """Note how long each worker has been silent.

        Returns whether one has been silent for long enough to ask the scheduler.
        """
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

    def presume_dead(self, allocations: Collection[str]) -> None:
        """Presume those workers dead that were silent and have no allocation.

        A worker can exist only in one of `allocations`. An allocation that has another worker by
        now was requeued.
        """
        for state, still in self._silent:
            is_long = still >= _CERTAIN_AFTER * state.heartbeat_interval
            latest = self._latest.get(state.allocation or "", state.worker)
            is_over = state.allocation not in allocations or latest > state.worker
            if is_long and is_over:
                with contextlib.suppress(OSError):
                    presume_dead(self._paths, state, still)
