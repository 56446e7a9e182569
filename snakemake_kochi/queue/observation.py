"""Whether a worker is dead, so that its tickets may be requeued: seen on its node or from another.

On the worker's own node, the kernel knows. From another node, only its heartbeat can be seen (see
`heartbeat.py`).
"""

from __future__ import annotations

import bisect
import contextlib
import logging
import math
import time
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import to_json, write_exclusively
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import this_node
from snakemake_kochi.queue.heartbeat import LOST_AFTER, SETTLING, Stillness, sign_of_life
from snakemake_kochi.queue.ticket import now
from snakemake_kochi.queue.workers import PresumedDead, WorkerState, read_worker

_log = logging.getLogger(__name__)

# In heartbeat intervals of the worker, 5 seconds by default. The supervisor ends a worker before it
# is presumed dead, if the supervisor sees the same files as other processes.
SUPERVISOR_PATIENCE = 6
# Seconds between two looks at the workers of a queue without a ticket; each look reads a file per
# worker.
_ALL_INTERVAL = 5.0
_SECONDS_PER_WORKER = 1.0
# How many of the workers with jobs a worker watches.
_NEIGHBOURS = 8
# Heartbeat intervals after which a watched worker without a heartbeat counts as silent.
_SILENT_AFTER = 2


class Postponed:
    """Tickets that could not be processed, by their files, with the time of the next try.

    Each look meets a full disk or an unreadable file again. That must neither fill the log nor
    delay the other tickets.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: dict[Path, float] = {}

    def __contains__(self, path: Path) -> bool:
        return path in self._due

    def is_due(self, path: Path) -> bool:
        """Whether the ticket may be tried, for the first time or again."""
        return self._due.get(path, self._clock()) <= self._clock()

    def postpone(self, path: Path, seconds: float, why: str) -> None:
        """Do not try the ticket for `seconds`. The reason is logged the first time."""
        if path not in self._due:
            _log.warning("%s", why)
        self._due[path] = self._clock() + seconds

    def forget(self, path: Path) -> None:
        """Forget a ticket that was processed or no longer exists."""
        self._due.pop(path, None)


class Observer:
    """Remembers the heartbeats of workers, to find the dead ones.

    Each process that requeues the tickets of dead workers has one: an observer without a past sees
    only deaths that need no earlier look. `postponed` are the tickets of dead workers that could
    not be requeued.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, worker: int | None = None
    ) -> None:
        """`worker` is the number of the observing worker; None if a controller observes."""
        self._clock = clock
        self._worker = worker
        self._stillness = Stillness(clock)
        self._all_due: dict[str, float] = {}
        self._silent: set[int] = set()
        self.postponed = Postponed(clock)

    def is_time_for_all(self, queue: str) -> bool:
        """Whether to look at all workers of a queue again, including those without a ticket."""
        return self._clock() >= self._all_due.get(queue, -math.inf)

    def looked_at_all(self, queue: str, count: int) -> None:
        """Note that `count` workers were looked at.

        Every worker looks at all others. With an interval that does not grow with their number, the
        number of looks would grow with its square.
        """
        interval = max(_ALL_INTERVAL, count * _SECONDS_PER_WORKER)
        self._all_due[queue] = self._clock() + interval

    def share_of(self, workers: Iterable[int]) -> list[int]:
        """The workers that this observer watches.

        A worker watches the next ones by number; the first follows the last. So several workers
        watch each one, and the number of looks grows with the number of workers, not with its
        square. A worker goes on watching silent workers, and watches others in addition, because
        many may have died together. A controller watches all.
        """
        others = sorted(workers)
        if self._worker is None or len(others) <= _NEIGHBOURS:
            return others
        silent = self._silent.intersection(others)
        heard = [worker for worker in others if worker not in silent]
        first = bisect.bisect_right(heard, self._worker)
        return sorted({*silent, *[*heard, *heard][first : first + _NEIGHBOURS]})

    def find_dead(self, machine: MachinePaths, workers: Iterable[int]) -> dict[int, WorkerState]:
        """The workers that are dead, so that they can no longer change a ticket.

        Workers on other nodes whose heartbeat stood still for LOST_AFTER intervals are also
        presumed dead here (`presumed-dead.json`). A worker registers before it claims. So if a
        worker has no readable file, the file was tampered with, and the worker is not included.
        """
        dead = {}
        for worker in workers:
            # A filesystem that answers with an error proves nothing.
            with contextlib.suppress(OSError, DamagedFileError):
                state, still = self.look(machine, worker)
                if self._is_dead(machine, state, still):
                    dead[worker] = state
        return dead

    def look(self, machine: MachinePaths, worker: int) -> tuple[WorkerState, float]:
        """A worker's state, and for how many seconds at least its heartbeat has stood still.

        Raises OSError or DamagedFileError when its file cannot be read.
        """
        began = self._clock()
        state = read_worker(machine, worker)
        sign: Hashable = "lost"
        if not state.presumed_dead:
            path = machine.worker(worker).state
            sign = sign_of_life(path, state.process, state.heartbeat)
        still = self._stillness.note(worker, sign, state.heartbeat_interval, began)
        if still >= _SILENT_AFTER * state.heartbeat_interval:
            self._silent.add(worker)
        else:
            self._silent.discard(worker)
        return state, still

    def _is_dead(self, machine: MachinePaths, state: WorkerState, still: float) -> bool:
        if state.state == "left" or state.has_died:
            return True
        if state.is_on_this_node:
            return False  # it may be stopped; then its supervisor will end it
        if state.presumed_dead:
            return still >= SETTLING * state.heartbeat_interval
        if still >= LOST_AFTER * state.heartbeat_interval:
            presume_dead(machine, state, still)
        return False


def presume_dead(machine: MachinePaths, state: WorkerState, still: float) -> None:
    """Presume a worker dead for good; its heartbeat stood still for `still` seconds."""
    presumed = PresumedDead(state.worker, this_node().host, round(still, 3), now())
    if write_exclusively(machine.worker(state.worker).presumed_dead, to_json(presumed.to_dict())):
        _log.warning(
            "worker %d on %s is presumed dead: no sign of life for %.0f seconds",
            state.worker,
            state.node.host,
            still,
        )
