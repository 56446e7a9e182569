"""The workers of a run in a scheduler's allocations, as many as its jobs need."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.allocation.ending import (
    END_PATIENCE,
    END_PATIENCE_WITHOUT_ROOM,
    end_allocations,
)
from snakemake_kochi.allocation.failures import UnfitWorkers
from snakemake_kochi.allocation.packing import Supply, exceeded, not_wanted, obstacle
from snakemake_kochi.allocation.request import GRACE, how_to_fit, purpose_of
from snakemake_kochi.allocation.sizing import Shape, is_lacking, workers_to_request
from snakemake_kochi.allocation.workers import make_scheduler
from snakemake_kochi.errors import KochiError, WorkerError
from snakemake_kochi.executor.allocations import (
    Allocations,
    Requested,
    cancel_of_killed,
    cancel_pending,
)
from snakemake_kochi.files import has_room
from snakemake_kochi.location import Location, with_file_to_edit
from snakemake_kochi.notices import Notices
from snakemake_kochi.processes import is_gone
from snakemake_kochi.quantities import seconds_since
from snakemake_kochi.queue.paused import PausedBatches
from snakemake_kochi.queue.views import shared_workers
from snakemake_kochi.schedulers.interface import (
    NO_REQUEST,
    AllocationRequest,
    Limits,
    RefusedError,
    UnreachableError,
)
from snakemake_kochi.tickets.capacity import Capacity
from snakemake_kochi.tickets.moving import listing
from snakemake_kochi.tickets.names import Layout, Name, numbers_in
from snakemake_kochi.tickets.ticket import Resources, Ticket
from snakemake_kochi.tickets.watching import INTERVAL, SILENT, Pulse, facts_in
from snakemake_kochi.worker.walltime import FRESH

Key = tuple[int, int]  # of a job: run and number
Pending = Mapping[str, Mapping[Key, Ticket]]  # the jobs that have not ended, by queue

# Seconds between two looks at waiting jobs; a look takes at most a twentieth of the time.
_LOOK, _LOOK_SHARE = 0.5, 20
# Seconds to wait for a submission that is in progress when the run ends.
_LAST_PATIENCE, _PAUSE = 30.0, 0.2
# Seconds for which jobs wait before more workers are requested, and for which a worker is unwanted
# before it is cancelled: short jobs come and go.
_STEADY = 3.0
# Seconds for the submission of jobs; before that, the first request would be too small.
_HANDING_OVER = 2.0
# Seconds at the end of a worker's time in which it begins no job.
_RESERVE = GRACE + 10.0
_FAULT = "The run cannot check its workers at the moment"


@dataclass
class _Worker:
    """One that this run's allocations started. `held`: its jobs. `seconds`: how long a job could
    take that it began first."""

    number: str
    queue: str
    allocation: str
    capacity: Capacity
    seconds: float | None
    facts: Any
    pulse: Pulse
    seen: float = field(default_factory=time.monotonic)
    held: set[Key] = field(default_factory=set)
    had_job: bool = False
    is_gone: bool = False
    is_live: bool = True  # it claims further jobs

    def look(self, texts: Collection[str], is_silent: bool) -> None:
        """`texts`: what is in its directory."""
        self.had_job |= bool(self.held)
        self.is_gone = bool({"left", "dead"} & {*texts}) or is_silent or is_gone(self.facts)
        left = self._seconds_left
        self.is_live = not self.is_gone and "release" not in texts and (left is None or left > 0)

    @property
    def _seconds_left(self) -> float | None:
        since = seconds_since(self.facts["until"])
        return None if since is None else -since - _RESERVE

    def supply(self, tickets: Mapping[Key, Ticket]) -> Supply:
        seconds = self._seconds_left
        if not self.had_job and time.monotonic() - self.seen < FRESH:
            seconds = self.seconds
        begun = (tickets[key].resources for key in self.held if key in tickets)
        return Supply(self.capacity, seconds, tuple(begun))


class _Workers:
    """The workers in the allocations of this run, and of those that it took over from."""

    def __init__(self, layout: Layout, runs: Collection[int]) -> None:
        self._layout = layout
        self._runs = {str(run) for run in runs}
        self._others: set[int] = set()
        self._known: dict[int, _Worker] = {}
        self._pulse_due = 0.0
        self.held: set[Key] = set()  # the jobs that a worker has

    def look(self) -> list[_Worker]:
        """Those that have not gone. Raises OSError."""
        self._find()
        held: dict[str, set[Key]] = defaultdict(set)
        for queue in {worker.queue for worker in self._known.values()}:
            for name in Name.parse_all(listing(self._layout.queue(queue).running)):
                held[name.worker].add(name.key)
        self.held = set().union(*held.values())
        there = [worker for worker in self._known.values() if not worker.is_gone]
        if is_due := time.monotonic() >= self._pulse_due:
            self._pulse_due = time.monotonic() + INTERVAL
        for worker in there:
            worker.held = held[worker.number]
            texts = listing(self._layout.worker(worker.number).directory)
            worker.look(texts, is_due and worker.pulse.look() >= SILENT)
        return [worker for worker in there if not worker.is_gone]

    def _find(self) -> None:
        for number in numbers_in(listing(self._layout.workers)):
            if number in self._others or number in self._known:
                continue
            paths = self._layout.worker(str(number))
            try:
                facts = facts_in(paths.facts) or {}
            except FileNotFoundError:  # not yet
                continue
            if facts.get("controller") not in self._runs or facts["allocation"] is None:
                self._others.add(number)
                continue
            self._known[number] = _Worker(
                str(number),
                facts["queues"][0],
                facts["allocation"],
                Capacity(**facts["capacity"]),
                facts["seconds"],
                facts,
                Pulse(paths.alive),
            )

    def came(self) -> set[str]:
        """The allocations that have had a worker, as far as is known."""
        with contextlib.suppress(OSError):
            self._find()
        return {worker.allocation for worker in self._known.values()}


class AllocatedWorkers:
    """Has workers for the queues of one run; all jobs of a queue have the same request.

    A thread of its own talks to the scheduler, which may take minutes to answer.
    """

    takes_requests = True

    def __init__(
        self,
        location: Location,
        layout: Layout,
        runs: Mapping[int, str],
        pending: Callable[[], Pending],
        logger: LoggerExecutorInterface,
    ) -> None:
        """Ask the scheduler for the limits that the machine does not give. Raises KochiError.

        `runs`: the names of the allocations of this run, and then of those that it took over from.
        """
        self._location = location
        self._machine = with_file_to_edit(location.machine)
        # The nodes that a worker leads if nothing is requested; and whether the size of allocations
        # does not depend on the waiting jobs: one queue may then have jobs of all kinds, and each
        # further queue costs an allocation.
        self.usual_nodes = self._machine.allocation.nodes
        self.have_one_size = self._machine.scheduler is None
        self._pending = pending
        self._logger = logger
        self._notices = Notices(logger, repeat_faults=math.inf)
        run, *_ = runs
        self._scheduler, *self._of_killed = (
            make_scheduler(self._machine, name) for name in runs.values()
        )
        self._stopping, self._wake = threading.Event(), threading.Event()
        self._allocations = Allocations(location, run, self._scheduler, self._stopping, logger)
        self._workers = _Workers(layout, runs)
        self._provision = _Provision(self._location, self._allocations, logger)
        self._requests: dict[str, AllocationRequest] = {}  # by queue
        self._left: dict[str, tuple[bool, float]] = {}  # queues to others, and since when
        self._failure: Exception | None = None
        self._lock = threading.Lock()
        self._has_stopped = False
        self._thread = threading.Thread(target=self._live, name="kochi-allocations", daemon=True)
        if self._of_killed:
            self._thread.start()

    # ---- what `Admission` asks

    def will_serve(self, queue: str) -> bool:
        """Whether these workers serve a queue, and it is not left to a person's."""
        is_left, since = self._left.get(queue, (False, -math.inf))
        if time.monotonic() - since >= INTERVAL:
            with contextlib.suppress(OSError):  # as far as is known
                is_left = bool(shared_workers(self._location.machine_paths, queue))
            self._left[queue] = is_left, time.monotonic()
        return not is_left

    def fit(
        self, rule: str, wanted: Resources, request: AllocationRequest = NO_REQUEST
    ) -> Resources:
        """What a job takes on a worker. Raises KochiError if no allocation can ever run it."""
        try:
            self._scheduler.check(request, wanted.gpus or request.gpus)
            limits = self._allocations.limits(request)
        except RefusedError as error:
            raise KochiError(f"rule {rule}: {error.message}", error.hint) from error
        if why := obstacle(wanted, limits):
            raise KochiError(
                f"rule {rule}: no allocation on machine {self._machine.name} can run it: {why}",
                how_to_fit(self._machine, exceeded(wanted, limits), limits.seconds),
            )
        return wanted

    # ---- what the run calls

    descriptors: Sequence[int] = ()

    def serve(self, queues: Iterable[str], request_of: Callable[[str], AllocationRequest]) -> None:
        """Have workers for these queues, in allocations with their requests."""
        self._requests = {queue: request_of(queue) for queue in queues}
        with self._lock:
            if self._thread.ident is None and not self._stopping.is_set():
                self._thread.start()

    def tick(self, has_jobs: bool) -> bool:
        """Raises KochiError when no worker can be expected any more."""
        if self._failure is not None:
            raise self._failure
        return False

    def job_ended(self) -> None:
        """Nothing to note: the arrival of a worker counts, not its jobs."""

    def abandon(self) -> None:
        """Leave all to the run that took over."""
        self._end_thread(lambda: False)
        self._has_stopped = True

    def leave(self, is_needed: bool) -> None:
        """Leave the workers to their jobs. `is_needed`: jobs wait for allocations to begin."""
        self.abandon()
        try:
            if not is_needed and self._allocations.has_requested:
                cancel_pending(self._scheduler)
        except KochiError as error:
            self._logger.warning(
                f"Allocations that have not begun could not be cancelled: {error.message}\n"
                f"To cancel all allocations of this run, type: {self._scheduler.how_to_cancel}"
            )

    def stop(self, is_urgent: Callable[[], bool]) -> None:
        """End all allocations; called again when it was interrupted."""
        self._end_thread(is_urgent)
        if self._has_stopped:
            return
        self._has_stopped = True
        # An allocation that is being submitted may come although its number is not known.
        is_alive, has_requested = self._thread.is_alive(), self._allocations.has_requested
        if has_requested or is_alive:
            room = self._has_room()
            there: set[str] = set()
            if room and not is_alive and not is_urgent():
                with contextlib.suppress(OSError):
                    there = {worker.allocation for worker in self._workers.look()}
            end_allocations(
                *(self._scheduler, self._logger, is_urgent),
                END_PATIENCE if room else END_PATIENCE_WITHOUT_ROOM,
                with_worker=there & {each.id for each in self._allocations.all()},
                without={each.id for each in self._allocations.coming()} - there,
            )
        if has_requested and is_alive:
            self._logger.warning(
                "The scheduler may still start an allocation. Its worker would leave at once. "
                f"To cancel it, type: {self._scheduler.how_to_cancel}"
            )

    def _end_thread(self, is_urgent: Callable[[], bool]) -> None:
        with self._lock:
            self._stopping.set()
        self._wake.set()
        self._scheduler.give_up()
        deadline = time.monotonic() + _LAST_PATIENCE
        while self._thread.is_alive() and time.monotonic() < deadline and not is_urgent():
            self._thread.join(_PAUSE)

    def _has_room(self) -> bool:
        with contextlib.suppress(OSError):
            return has_room(self._location.machine_paths.directory)
        return True  # as far as is known

    # ---- the thread

    def _live(self) -> None:
        try:
            for scheduler in self._of_killed:
                cancel_of_killed(scheduler, self._logger, self._notices)
            while not self._stopping.is_set():
                began, pause = time.monotonic(), _LOOK
                self._wake.clear()
                try:
                    pause = self._turn()
                    self._notices.over(_FAULT)
                except UnreachableError as error:
                    self._allocations.questions.not_answered(error)
                except OSError as error:
                    # A full disk or an unavailable file server: the jobs in the workers go on.
                    self._notices.fault(_FAULT, error)
                took = min(1.0, time.monotonic() - began)
                self._stopping.wait(_LOOK_SHARE * took)
                self._wake.wait(pause)
        except Exception as error:
            # The run must learn of any error: its jobs would wait for ever.
            self._failure = error

    def _turn(self) -> float:
        """Returns the seconds until the next one, if nothing is submitted before."""
        pending, requests = self._pending(), self._requests
        there = self._workers.look()
        came = self._workers.came
        self._allocations.look({worker.allocation for worker in there}, came)
        if not self._allocations.is_settled:
            return _LOOK
        held = self._workers.held
        for queue in sorted({*requests, *pending}):
            if self._stopping.is_set():
                break
            if not self.will_serve(queue):
                self._notices.forget(queue)
            elif (lack := self._scheduler.lacks) is None:
                request = requests.get(queue, NO_REQUEST)
                self._provision(queue, request, pending, there, held)
            elif pending.get(queue):
                self._notices.warning(
                    f"Queue {queue} needs a worker that you start: {lack.reason}. To start one, "
                    f"type: kochi alloc -m {self._machine.name} -q {queue} {lack.options}",
                    key=queue,
                )
        is_waiting = any(not held.issuperset(tickets) for tickets in pending.values())
        return _LOOK if is_waiting or self._allocations.coming() else INTERVAL


class _Provision:
    """Decides when to request more workers, and which to cancel."""

    def __init__(
        self, location: Location, allocations: Allocations, logger: LoggerExecutorInterface
    ) -> None:
        self._machine = with_file_to_edit(location.machine)
        self._allocations = allocations
        self._logger = logger
        self._paused = PausedBatches(location.machine_paths)
        self._since: dict[Hashable, float] = {}  # when a condition began to hold
        self._counts: dict[str, int] = {}  # the number of jobs of each queue, at the last look
        self._last_shape: dict[str, Shape] = {}
        self._unfit: dict[str, UnfitWorkers] = defaultdict(UnfitWorkers)  # by queue
        self._ended: set[str] = set()  # idle allocations that made room

    def _lasts(self, what: Hashable, holds: bool = True, seconds: float = 0.0) -> bool:
        """Whether a condition holds, and has held for so many seconds."""
        if not holds:
            self._since.pop(what, None)
            return False
        now = time.monotonic()
        return now - self._since.setdefault(what, now) >= seconds

    def __call__(
        self,
        queue: str,
        request: AllocationRequest,
        pending: Pending,
        there: Sequence[_Worker],
        held: Collection[Key],
    ) -> None:
        """Provide workers for one queue; `there`: those of all queues, `held`: jobs that began.

        Raises RefusedError, UnreachableError, or WorkerError if no worker can be expected.
        """
        tickets = pending.get(queue, {})
        own = [worker for worker in there if worker.queue == queue]
        self._paused.has_changed()
        waiting = Counter(
            ticket.resources
            for key, ticket in tickets.items()
            if key not in held and not self._paused.has(ticket)
        )
        self._leave_out_hopeless(queue, waiting, pending, own)
        supply = [worker.supply(tickets) for worker in own if worker.is_live]
        supply += [each.supply for each in self._cancel_unwanted(queue, waiting, supply)]
        limits = self._allocations.limits(request)
        # Workers of all queues count, also draining ones, because they still have their nodes.
        room = limits.workers - len(there) - len(self._allocations.coming())
        self._make_room(queue, waiting, pending, there, room)
        allowed = replace(limits, workers=len(supply) + max(0, room))
        staying = self._machine.allocation.min_workers - self._allocations.staying
        if not tickets and any(pending.values()):
            staying = 0  # staying workers are of a kind that jobs wait for
        staying = min(room, staying)
        known = self._last_shape.get(queue)
        if not is_lacking(waiting, supply, allowed) and (known is None or staying <= 0):
            self._lasts(queue, False)
            return
        if not there and not self._allocations.coming():
            self._allocations.failed_starts.check()
        if not self._is_time(queue, len(tickets), is_first=not supply):
            return
        purpose = purpose_of(ticket for key, ticket in tickets.items() if key not in held)
        is_alone = not any(worker.is_live for worker in there)
        for shape, count, stays in self._wanted(queue, waiting, supply, allowed, staying):
            is_first = is_alone and not self._allocations.coming()
            if not self._allocations.submit(queue, request, shape, count, stays, is_first, purpose):
                break
            self._lasts(queue, False)

    def _is_time(self, queue: str, tickets: int, is_first: bool) -> bool:
        """Whether jobs have lacked a worker for long enough to request more."""
        as_before = self._counts.get(queue) == tickets
        self._counts[queue] = tickets
        lasts = self._lasts(queue, seconds=_HANDING_OVER if is_first else _STEADY)
        return self._allocations.may_submit and (lasts or (is_first and as_before))

    def _wanted(
        self,
        queue: str,
        waiting: Mapping[Resources, int],
        supply: Sequence[Supply],
        limits: Limits,
        staying: int,
    ) -> list[tuple[Shape, int, bool]]:
        """The shapes to request, each with their number, and whether these stay."""
        wanted = workers_to_request(waiting, supply, limits)
        shape = wanted[0][0] if wanted else self._last_shape[queue]
        self._last_shape[queue] = shape
        if staying <= 0:
            return [(each, count, False) for each, count in wanted]
        # As long as usual, but no shorter than the jobs need for which the workers come.
        times = [time for time in (shape.seconds, limits.usual_seconds) if time is not None]
        found = [(replace(shape, seconds=max(times, default=None)), staying, True)]
        for each, number in wanted:
            replaced = min(number, staying)
            staying -= replaced
            if number > replaced:
                found.append((each, number - replaced, False))
        return found

    def _leave_out_hopeless(
        self, queue: str, waiting: Counter[Resources], pending: Pending, own: Sequence[_Worker]
    ) -> None:
        """Drop the jobs that the workers requested for them cannot run: nothing more is requested
        for them. Raises WorkerError if no other job is left."""
        unfit = self._unfit[queue]
        first = {each.allocation: Supply(each.capacity, each.seconds) for each in own}
        requested = {each.id: each.supply for each in self._allocations.all()}
        unfit.note(waiting, first, requested)
        hopeless = {kind: why for kind in waiting if (why := unfit.obstacle(kind))}
        for kind in hopeless:
            del waiting[kind]
        others = (name for name, tickets in pending.items() if tickets and name != queue)
        if not hopeless or waiting or any(worker.held for worker in own) or any(others):
            return
        kind, why = next(iter(hopeless.items()))
        ticket = next(each for each in pending[queue].values() if each.resources == kind)
        raise WorkerError(
            f"rule {ticket.labels.get('rule', ticket.name)}: several allocations were started for "
            f"it, one after the other, and none can run it: {why}",
            "Request other nodes, or set what a node has and the longest time: "
            f"{self._machine.allocation_at(['cores', 'memory', 'gpus', 'time'])}.",
        )

    def _cancel_unwanted(
        self, queue: str, waiting: Mapping[Resources, int], supply: Sequence[Supply]
    ) -> list[Requested]:
        """Cancel allocations for which no job has waited for a while; returns the other ones that
        are still to come."""
        # Staying workers come first, so that the others are cancelled before them.
        coming = sorted(self._allocations.coming(queue), key=lambda each: not each.stays)
        indices = not_wanted(waiting, supply, [each.supply for each in coming])
        unwanted = {coming[index].id for index in indices if not coming[index].stays}
        ids = [e.id for e in coming if self._lasts(e.id, e.id in unwanted, _STEADY)]
        if not ids or not self._allocations.cancel(ids):
            return coming
        self._logger.info(f"Cancelled allocations for which no job waits: {', '.join(ids)}")
        return [each for each in coming if each.id not in ids]

    def _make_room(
        self,
        queue: str,
        waiting: Collection[Resources],
        pending: Pending,
        there: Sequence[_Worker],
        room: int,
    ) -> None:
        """End idle workers that keep nodes from the waiting jobs of a queue: of other queues whose
        jobs have all ended, and its own ones that can run none of these jobs."""
        idle = {each.allocation: each for each in there if each.is_live and not each.held}
        own = [each for each in there if each.queue == queue and each.is_live]
        coming = self._allocations.coming(queue)
        supplies = [replace(each.supply({}), begun=()) for each in own]
        is_full = room <= 0 and _lack([*supplies, *(e.supply for e in coming)], waiting)
        # A free node is given at once. A queue that has waited for longer needs the node of
        # another.
        now = time.monotonic()
        waits = any(not each.had_worker and now - each.since >= _STEADY for each in coming)
        in_the_way = set()
        if waiting and (not own or is_full or waits):
            kept = set(self._ended)
            if not is_full and not (waits and _lack(supplies, waiting)):
                # Otherwise also staying ones: these jobs would wait for ever.
                kept.update(each.id for each in self._allocations.all() if each.stays)
            for name, each in idle.items():
                if each.queue == queue:
                    is_useless = all(map(each.supply({}).obstacle, waiting))
                else:
                    is_useless = not pending.get(each.queue)
                if is_useless and name not in kept:
                    in_the_way.add(name)
        names = [each.allocation for each in there]
        ids = [n for n in names if self._lasts((queue, n), n in in_the_way, _STEADY)]
        if ids and self._allocations.cancel(ids, have_workers=True):
            self._ended.update(ids)
            self._logger.info(
                f"Ended idle allocations to make room for other jobs: {', '.join(sorted(ids))}"
            )


def _lack(supply: Collection[Supply], waiting: Iterable[Resources]) -> bool:
    """Whether one of the waiting jobs would not fit even on an idle worker."""
    return any(all(each.obstacle(kind) for each in supply) for kind in waiting)
