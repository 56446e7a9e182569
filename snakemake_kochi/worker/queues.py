"""The queues that a worker serves.

This module decides which queues a worker serves and which of them fail at the moment, when it looks
into them, and how long it waits for a job.
"""

from __future__ import annotations

import contextlib
import logging
import math
import random
import time
from collections.abc import Callable
from typing import TypeVar

from snakemake_kochi.backoff import GrowingPause
from snakemake_kochi.errors import KochiError
from snakemake_kochi.notices import Notices
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.quantities import format_duration
from snakemake_kochi.queue.controllers import list_controllers
from snakemake_kochi.queue.observer import Observer
from snakemake_kochi.queue.queue import Queue
from snakemake_kochi.queue.ticket import Ticket
from snakemake_kochi.queue.wakeup import read_queues, subscribe, unsubscribe
from snakemake_kochi.worker.orders import ControllerWatch
from snakemake_kochi.worker.settings import RETRY, WorkerSettings
from snakemake_kochi.worker.state import StateFile

_log = logging.getLogger(__name__)

Returned = TypeVar("Returned")

_LIST = "the list of queues"  # no queue has such a name

# Wake-up FIFOs do not work across nodes, so a worker also looks by itself for tickets and orders.
# Frequent looks are useful only while something happens. In first intervals: the longest one of an
# idle worker, and of one with jobs. A run that ends waits 15 s for the ends of cancelled jobs.
_LONGEST_INTERVAL = 5.0
_LONGEST_INTERVAL_BUSY = 2.5
_GROWTH = 1.5
# A slow look is repeated less often, because the filesystem has other users.
_INTERVAL_PER_COST = 50.0


class ServedQueues:
    """Subscribes a worker to its queues, in their order.

    The process that started the worker may change them.
    A transient fault of a queue must not end the worker, because its jobs would end with it: a full
    disk, for example, or a lock that cannot be opened for a moment. The worker goes on with the
    other queues and tries again after RETRY seconds.
    """

    def __init__(self, machine: MachinePaths, state: StateFile) -> None:
        self._machine = machine
        self._state = state
        self._observer = Observer(worker=state.state.worker)
        self._queues: dict[str, Queue] = {}
        self._retry_at: dict[str, float] = {}  # by the name of the failing queue
        self._next_retry = math.inf
        self._notices = Notices(_log)

    @property
    def queues(self) -> list[Queue]:
        return list(self._queues.values())

    def queue_of(self, ticket: Ticket) -> Queue:
        # The worker may no longer serve this queue.
        return self._queues.get(ticket.queue) or Queue(self._machine, ticket.queue)

    def read(self) -> None:
        """Read which queues to serve. If that fails, they do not change."""
        self.tried(_LIST, self._read)

    def _read(self) -> None:
        worker, controller = self._state.state.worker, self._state.state.controller
        wanted = {
            name: self._queues.get(name) or Queue(self._machine, name, controller, self._observer)
            for name in read_queues(self._machine, worker)
        }
        if list(wanted) == list(self._queues):
            return
        for queue in wanted.values():
            subscribe(queue.paths, worker)
        for name in set(self._queues) - set(wanted):
            unsubscribe(self._queues[name].paths, worker)
        self._queues = wanted
        self._state.update(queues=tuple(wanted))

    def are_used(self) -> bool:
        """Whether a run that submitted jobs to one of the queues may still be active.

        Such a run may submit more jobs when those have ended. Reads a small file for each run of
        the machine.
        """
        with contextlib.suppress(OSError):
            return any(
                not each.is_dead
                and (each.queues is None or not self._queues.keys().isdisjoint(each.queues))
                for each in list_controllers(self._machine)
            )
        return True

    def leave(self) -> None:
        """Unsubscribe from all queues."""
        for queue in self.queues:
            with contextlib.suppress(OSError):
                unsubscribe(queue.paths, self._state.state.worker)

    def tried(self, name: str, action: Callable[[], Returned]) -> Returned | None:
        """Call `action` and return its result, or None if it raises OSError or KochiError.

        After an error the queue called `name` counts as faulty until an action succeeds.
        """
        what = f"{name} cannot be used now"
        try:
            returned = action()
        except (OSError, KochiError) as error:
            self._retry_at[name] = time.monotonic() + RETRY
            self._next_retry = min(self._next_retry, self._retry_at[name])
            self._notices.fault(what, error)
            return None
        if self._retry_at.pop(name, None) is not None:
            self._notices.over(what)
        return returned

    @property
    def have_fault(self) -> bool:
        return any(name in self._retry_at for name in self._queues)

    def is_pausing(self, queue: Queue) -> bool:
        """Whether it is too early to try this queue again."""
        return time.monotonic() < self._retry_at.get(queue.name, 0.0)

    @property
    def deadline(self) -> float:
        """When the next retry is due, in monotonic seconds."""
        return self._next_retry

    def take_retry(self) -> bool:
        """Whether a retry is due now.

        True at most once for each failure: the worker may have no room for a job, and would then
        try nothing.
        """
        is_due = time.monotonic() >= self._next_retry
        if is_due:
            self._next_retry = math.inf
        return is_due


class Idle:
    """How long a worker without jobs waits for one.

    This depends on its queues and on whether its controller is alive.
    """

    def __init__(
        self, settings: WorkerSettings, queues: ServedQueues, controller: ControllerWatch
    ) -> None:
        self._settings = settings
        self._queues = queues
        self._controller = controller
        self.begin()

    def begin(self) -> None:
        """Note that the worker is idle from now on, or counts as idle."""
        self._began = time.monotonic()

    @property
    def deadline(self) -> float:
        """When the wait of a worker that stays is over, in monotonic seconds.

        Infinite where the worker would not act upon the deadline: after a past deadline the worker
        would never sleep.
        """
        timeout = self._settings.idle_timeout
        is_sure = not self._controller.is_dead and not self._controller.is_in_doubt
        return (
            self._began + timeout
            if self._settings.stay and timeout is not None and is_sure
            else math.inf
        )

    @property
    def is_over(self) -> bool:
        """Whether the worker has nothing to wait for."""
        if not self._settings.stay:
            # Between a build and its runs, for example, the queues are empty for a moment.
            may_go_on = time.monotonic() < self._began + self._settings.between_jobs
            return not self._queues.have_fault and not (may_go_on and self._queues.are_used())
        if self._controller.is_dead:
            return not self._queues.have_fault
        # While the controller may be dead, the worker waits for certainty: if the controller is
        # dead, the worker must cancel its waiting allocations.
        return time.monotonic() >= self.deadline

    @property
    def reason(self) -> str:
        """Why a worker that stays leaves, for people."""
        if self._controller.is_dead:
            return "the run that started it was killed, and it has no job"
        return f"it had no job for {format_duration(self._settings.idle_timeout or 0.0)}"


class Looks:
    """When a worker looks for tickets and orders that nobody has notified it of.

    The intervals begin with `first` seconds and grow while nothing happens: to five times that, and
    to two and a half times that while the worker has jobs. They are at least fifty times as long as
    a look takes. They are jittered, so that workers on many nodes do not compete for the lock.
    """

    def __init__(self, first: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._longest_busy = _LONGEST_INTERVAL_BUSY * first
        self._interval = GrowingPause(first, _LONGEST_INTERVAL * first, _GROWTH)
        self._began = 0.0
        self.deadline = 0.0  # of the next look, in seconds of the clock

    @property
    def is_due(self) -> bool:
        return self._clock() >= self.deadline

    def reset(self) -> None:
        """Look more often again, because something happened."""
        self._interval.reset()

    def skip(self) -> None:
        """Postpone a due look: the worker has no room for any job that it could find."""
        self._wait(self._interval.seconds)
        self._interval.grow(self._longest_busy)

    def begin(self) -> None:
        """Note that a look begins. While it lasts, in another thread perhaps, none is due."""
        self._began = self._clock()
        self._wait(self._interval.seconds)

    def end(self, found: bool, is_busy: bool = False) -> None:
        """Note that a look is over; `found`: whether it found a ticket."""
        cost = self._clock() - self._began
        self._wait(max(self._interval.seconds, _INTERVAL_PER_COST * cost))
        if found:
            self._interval.reset()
        else:
            self._interval.grow(self._longest_busy if is_busy else None)

    def _wait(self, interval: float) -> None:
        self.deadline = self._clock() + random.uniform(0.75, 1.0) * interval
