"""Decides when to request more workers for the jobs of a run, and which ones to cancel."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.allocation.failures import FailedStarts, UnfitWorkers
from snakemake_kochi.allocation.packing import Supply, not_wanted
from snakemake_kochi.allocation.request import GRACE, purpose_of
from snakemake_kochi.allocation.sizing import Shape, is_lacking, workers_to_request
from snakemake_kochi.allocation.submission import Submitter
from snakemake_kochi.allocation.supplies import idle_supplies, initial_supplies, supply_of
from snakemake_kochi.allocation.tracker import Requested, Tracker
from snakemake_kochi.errors import WorkerError
from snakemake_kochi.project.machines import Machine
from snakemake_kochi.queue import Resources, Ticket, WorkerState
from snakemake_kochi.queue.paused import PausedBatches
from snakemake_kochi.schedulers.interface import AllocationRequest

Pending = Mapping[str, Sequence[Ticket]]
Workers = Mapping[str, Sequence[WorkerState]]

# Seconds for which jobs wait before more workers are requested, and for which a worker is unwanted
# before it is cancelled: short jobs come and go.
STEADY = 3.0
# Seconds for the submission of jobs; before that, the first request would be too small.
_HANDING_OVER = 2.0
# Seconds at the end of a worker's time in which it begins no job.
_RESERVE = GRACE + 10.0


class Provision:
    """Provides workers for all queues of one controller; called by one thread."""

    def __init__(
        self,
        machine: Machine,
        submitter: Submitter,
        tracker: Tracker,
        failed_starts: FailedStarts,
        logger: LoggerExecutorInterface,
        steady: float = STEADY,
        clock: Callable[[], float] = time.monotonic,
        size: Callable[..., list[tuple[Shape, int]]] = workers_to_request,
        paused: PausedBatches | None = None,
    ) -> None:
        self._machine = machine
        self._submitter = submitter
        self._tracker = tracker
        self._failed_starts = failed_starts
        self._logger = logger
        self._steady = steady
        self._size = size
        self._paused = paused
        self._room = Room(tracker, submitter, logger, steady, clock)
        self._lacking = _Since(clock)  # queues that lack workers
        self._unwanted = _Since(clock)  # allocations that no job waits for
        self._counts: dict[str, int] = {}  # number of jobs of each queue, at the last look
        self._last_shape: dict[str, Shape] = {}
        self._unfit: dict[str, UnfitWorkers] = defaultdict(UnfitWorkers)  # by queue

    def provide(
        self, queue: str, request: AllocationRequest, pending: Pending, workers: Workers
    ) -> None:
        """Provide workers for one queue, whose allocations have the request.

        `pending`, `workers`: the tickets and workers of all queues that have not ended, by queue.
        Raises RefusedError, or UnreachableError. Raises WorkerError if the remaining jobs are too
        large for every worker that comes, or if no worker comes.
        """
        tickets = pending.get(queue, ())
        resources = {ticket.job: ticket.resources for ticket in tickets}
        there = workers[queue]
        begun = {job for worker in there for job in (*worker.running, *worker.ahead)}
        paused = self._paused_jobs(tickets)
        waiting = Counter(
            wanted for job, wanted in resources.items() if job not in begun and job not in paused
        )
        self._leave_out_hopeless(queue, waiting, pending, workers)
        supply = [supply_of(worker, resources, _RESERVE) for worker in there if worker.is_live]
        supply += [each.supply for each in self._cancel_unwanted(queue, waiting, supply)]
        # Workers of all queues count, also draining ones, because they still have their nodes.
        all_there = sum(map(len, workers.values())) + len(self._tracker.coming())
        limits = self._submitter.limits(request)
        room = limits.workers - all_there
        self._room.make(queue, waiting, pending, workers, room)
        allowed = replace(limits, workers=len(supply) + max(0, room))
        staying = min(room, self._machine.allocation.min_workers - self._tracker.staying)
        if not tickets and any(pending.values()):
            staying = 0  # staying workers are of a kind that jobs wait for
        known = self._last_shape.get(queue)
        if not is_lacking(waiting, supply, allowed) and (known is None or staying <= 0):
            self._lacking.forget(queue)
            return
        if not self._tracker.coming() and not any(workers.values()):
            self._failed_starts.check()
        if not self._is_time(queue, len(tickets), is_first=not supply):
            return
        wanted = self._size(waiting, supply, allowed)
        shape = wanted[0][0] if wanted else known
        assert shape is not None, "no worker is lacking and none was requested"
        self._last_shape[queue] = shape
        submissions = [(each, count, False) for each, count in wanted]
        if staying > 0:
            # As long as usual, but no shorter than the jobs need for which the workers come.
            times = (shape.seconds, limits.usual_seconds)
            seconds = max((time for time in times if time is not None), default=None)
            submissions = _with_staying(submissions, replace(shape, seconds=seconds), staying)
        purpose = purpose_of(each for each in tickets if each.job not in begun)
        is_alone = not any(worker.is_live for found in workers.values() for worker in found)
        for each, count, stays in submissions:
            is_first = is_alone and not self._tracker.coming()
            if not self._submitter.submit(queue, request, each, count, stays, is_first, purpose):
                break
            self._lacking.forget(queue)

    def _paused_jobs(self, tickets: Collection[Ticket]) -> set[int]:
        """The jobs for which no worker comes: it would leave again without any."""
        if self._paused is None:
            return set()
        self._paused.has_changed()
        return {ticket.job for ticket in tickets if self._paused.has(ticket)}

    def _leave_out_hopeless(
        self, queue: str, waiting: Counter[Resources], pending: Pending, workers: Workers
    ) -> None:
        """Drop the jobs that the workers requested for them cannot run.

        Nothing more is requested for them. Raises WorkerError if no other job is left.
        """
        unfit = self._unfit[queue]
        requested = {each.id: each.supply for each in self._tracker.all()}
        unfit.note(waiting, initial_supplies(workers[queue], _RESERVE), requested)
        hopeless = {kind: why for kind in waiting if (why := unfit.obstacle(kind))}
        for kind in hopeless:
            del waiting[kind]
        others = (name for name, tickets in pending.items() if tickets and name != queue)
        if not hopeless or waiting or any(map(_is_busy, workers[queue])) or any(others):
            return
        kind, why = next(iter(hopeless.items()))
        ticket = next(each for each in pending[queue] if each.resources == kind)
        raise WorkerError(
            f"rule {ticket.labels.get('rule', ticket.name)}: several allocations were started for "
            f"it, one after the other, and none can run it: {why}",
            "Request other nodes, or set what a node has and the longest time: "
            f"{self._machine.allocation_at(['cores', 'memory', 'gpus', 'time'])}.",
        )

    def _is_time(self, queue: str, tickets: int, is_first: bool) -> bool:
        """Whether jobs have lacked a worker for long enough to request more."""
        as_before = self._counts.get(queue) == tickets
        self._counts[queue] = tickets
        seconds = self._lacking.seconds(queue)
        if not self._submitter.may_submit:
            return False
        return as_before or seconds >= _HANDING_OVER if is_first else seconds >= self._steady

    def _cancel_unwanted(
        self, queue: str, waiting: Mapping[Resources, int], supply: Sequence[Supply]
    ) -> list[Requested]:
        """Cancel allocations for which no job has waited for a while.

        Returns the other allocations that are still to come.
        """
        # Staying workers come first, so that the others are cancelled before them.
        coming = sorted(self._tracker.coming(queue), key=lambda each: not each.stays)
        indices = not_wanted(waiting, supply, [each.supply for each in coming])
        unwanted = {coming[index].id for index in indices if not coming[index].stays}
        for each in coming:
            if each.id not in unwanted:
                self._unwanted.forget(each.id)
        ids = [id for id in sorted(unwanted) if self._unwanted.seconds(id) >= self._steady]
        if not ids or not self._submitter.cancel(ids):
            return coming
        self._logger.info(f"Cancelled allocations for which no job waits: {', '.join(ids)}")
        return [each for each in coming if each.id not in ids]


def _with_staying(
    wanted: Sequence[tuple[Shape, int, bool]], shape: Shape, count: int
) -> list[tuple[Shape, int, bool]]:
    """The submissions with this number of staying workers, in place of the first wanted ones."""
    found = [(shape, count, True)]
    for each, number, _ in wanted:
        replaced = min(number, count)
        count -= replaced
        if number > replaced:
            found.append((each, number - replaced, False))
    return found


class Room:
    """Ends allocations of idle workers to make room for waiting jobs.

    They make room for the jobs of other queues and, if these workers do not fit the waiting jobs of
    their own queue, for those.
    """

    def __init__(
        self,
        tracker: Tracker,
        submitter: Submitter,
        logger: LoggerExecutorInterface,
        steady: float,
        clock: Callable[[], float],
    ) -> None:
        self._tracker = tracker
        self._submitter = submitter
        self._logger = logger
        self._steady = steady
        self._clock = clock
        # By waiting queue: since when idle workers have kept it waiting.
        self._idle: dict[str, dict[str, float]] = {}
        self._cancelled: set[str] = set()

    def make(
        self,
        queue: str,
        waiting: Collection[Resources],
        pending: Pending,
        workers: Workers,
        room: int,
    ) -> None:
        """Make room for the jobs of one queue; `room`: how many more workers there may be."""
        found = self._in_the_way(queue, waiting, pending, workers, room) if waiting else []
        now, before = self._clock(), self._idle.get(queue, {})
        self._idle[queue] = {each: before.get(each, now) for each in found}
        idle = [each for each, since in self._idle[queue].items() if now - since >= self._steady]
        if idle and self._submitter.cancel(idle, have_workers=True):
            self._cancelled.update(idle)
            self._logger.info(
                f"Ended idle allocations to make room for other jobs: {', '.join(idle)}"
            )

    def _in_the_way(
        self,
        queue: str,
        waiting: Collection[Resources],
        pending: Pending,
        workers: Workers,
        room: int,
    ) -> list[str]:
        there = [worker for worker in workers[queue] if worker.is_live]
        supplies = idle_supplies(there, _RESERVE)
        coming = [each.supply for each in self._tracker.coming(queue)]
        # A free node is given at once. A queue that has waited for longer needs the node of
        # another.
        is_kept_waiting = self._tracker.is_kept_waiting(queue, self._steady)
        is_full = room <= 0 and _is_without(waiting, [*supplies.values(), *coming])
        if there and not is_full and not is_kept_waiting:
            return []
        kept = set(self._cancelled)
        if not is_full and not (is_kept_waiting and _is_without(waiting, supplies.values())):
            # Otherwise also staying workers, although they are idle: these jobs would wait for
            # ever.
            kept.update(each.id for each in self._tracker.all() if each.stays)
        by_allocation = {worker.allocation: worker for worker in there if worker.allocation}
        in_vain = sorted(
            allocation
            for allocation, worker in by_allocation.items()
            if allocation not in kept
            and not _is_busy(worker)
            and all(supplies[allocation].obstacle(kind) for kind in waiting)
        )
        return _idle_elsewhere(queue, workers, pending, kept) + in_vain


def _idle_elsewhere(
    queue: str, workers: Workers, pending: Pending, kept: Collection[str]
) -> list[str]:
    """The allocations of idle workers of other queues whose jobs have all ended.

    They only keep a node from other jobs. Without this function, jobs of which each step requests
    another kind of allocation would wait for an idle timeout at each step.
    """
    return sorted(
        {
            worker.allocation
            for name, found in workers.items()
            if name != queue and not pending.get(name)
            for worker in found
            if worker.allocation is not None
            and worker.is_live
            and not _is_busy(worker)
            and worker.allocation not in kept
        }
    )


def _is_without(waiting: Iterable[Resources], supply: Collection[Supply]) -> bool:
    """Whether one of the waiting jobs would not fit even on an idle worker."""
    return any(all(each.obstacle(kind) for each in supply) for kind in waiting)


def _is_busy(worker: WorkerState) -> bool:
    return bool(worker.running or worker.ahead)


class _Since:
    """The time since which a condition has held."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._first: dict[Hashable, float] = {}

    def seconds(self, what: Hashable) -> float:
        """Seconds since the first call, which returns 0.0, until `forget` is called."""
        now = self._clock()
        return now - self._first.setdefault(what, now)

    def forget(self, what: Hashable) -> None:
        self._first.pop(what, None)
