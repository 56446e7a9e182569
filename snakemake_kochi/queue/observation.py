"""Whether a worker is dead, so that its tickets may go to others: seen here, or from another node.

On its own node that is a question to the kernel. From elsewhere all there is to see is its
heartbeat, and no two clocks agree: what counts is for how long the observer, by its own monotonic
clock, saw it stand still.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import to_json, write_exclusively
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.postponed import Postponed
from snakemake_kochi.queue.processes import this_node
from snakemake_kochi.queue.ticket import now
from snakemake_kochi.queue.workers import LostNotice, WorkerState, read_worker

_log = logging.getLogger(__name__)

# All in heartbeat intervals of the worker, 5 seconds by default.
LOST_AFTER = 12
# Before that its keeper ends it, if it can see what others will see.
KEEPER_PATIENCE = 6
# A worker that goes on after it was taken for lost must have seen that, and killed its jobs,
# before the first of its tickets is given away.
_SETTLING = 2
# Seconds between two looks at those workers of a queue that hold nothing: a file for each.
_ALL_INTERVAL = 5.0
_SECONDS_PER_WORKER = 1.0
# What is counted between two looks. An observer that slept, or whose filesystem hung, saw nothing.
_MOST_COUNTED = 3

# A worker's sign of life: equal means that it stood still.
_Sign = tuple[object, ...]


@dataclass(frozen=True)
class _Sight:
    sign: _Sign
    ended: float  # when the last look was over
    still: float  # seconds


class Observer:
    """Remembers the heartbeats of workers. One for each process that gives tickets of the dead to
    others: an observer without a past sees only what needs none. `postponed` are the tickets of
    the dead that could not be given away."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sights: dict[int, _Sight] = {}
        self._all_due: dict[str, float] = {}
        self.postponed = Postponed(clock)

    def is_time_for_all(self, queue: str) -> bool:
        """Whether to look at all workers of a queue again, also those without a ticket."""
        return self._clock() >= self._all_due.get(queue, -math.inf)

    def looked_at_all(self, queue: str, count: int) -> None:
        """So many workers were looked at. Each of them looks at all others: with an interval that
        did not grow with their number, their looks would grow with its square."""
        interval = max(_ALL_INTERVAL, count * _SECONDS_PER_WORKER)
        self._all_due[queue] = self._clock() + interval

    def find_dead(self, machine: MachinePaths, workers: Iterable[int]) -> dict[int, WorkerState]:
        """Those of the workers of which nothing can still happen to a ticket.

        Workers on other nodes whose heartbeat stood still for LOST_AFTER intervals are declared
        lost in passing (`lost.json`). A worker registers before it claims, so one without a
        readable file is one whose file was tampered with: it is not among them.
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
        # The time of the file is a sign, too: on a full disk nothing else can be written. It is
        # compared with itself only.
        time_written = machine.worker(worker).state.stat().st_mtime_ns
        state = read_worker(machine, worker)
        sign: _Sign = ("lost",)
        if not state.taken_for_lost:
            sign = (state.process, state.heartbeat, time_written)
        last = self._sights.get(worker)
        still = 0.0
        if last is not None and last.sign == sign:
            most = _MOST_COUNTED * state.heartbeat_interval
            still = last.still + max(0.0, min(began - last.ended, most))
        self._sights[worker] = _Sight(sign, self._clock(), still)
        return state, still

    def _is_dead(self, machine: MachinePaths, state: WorkerState, still: float) -> bool:
        if state.state == "left" or state.has_died:
            return True
        if state.is_on_this_node:
            return False  # perhaps it is stopped; then its keeper will end it
        if state.taken_for_lost:
            return still >= _SETTLING * state.heartbeat_interval
        if still >= LOST_AFTER * state.heartbeat_interval:
            take_for_lost(machine, state, still)
        return False


def take_for_lost(machine: MachinePaths, state: WorkerState, still: float) -> None:
    """Say for good that a worker is lost: it stood still for so many seconds."""
    notice = LostNotice(state.worker, this_node().host, round(still, 3), now())
    if write_exclusively(machine.worker(state.worker).lost, to_json(notice.to_dict())):
        _log.warning(
            "worker %d on %s is taken for lost: no sign of life for %.0f seconds",
            state.worker,
            state.node.host,
            still,
        )
