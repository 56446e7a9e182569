"""What the jobs of a run lack is asked for, and what none of them waits for is given back."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.allocation.arrivals import Arrivals
from snakemake_kochi.allocation.asked_for import Asked, AskedFor
from snakemake_kochi.allocation.room import Room
from snakemake_kochi.allocation.setbacks import Setbacks
from snakemake_kochi.allocation.sizing import (
    Shape,
    Supply,
    is_lacking,
    not_wanted,
    workers_to_ask_for,
)
from snakemake_kochi.allocation.steady import Steady
from snakemake_kochi.errors import KochiError, WorkerError
from snakemake_kochi.files import has_room, make_directory
from snakemake_kochi.notices import Notices
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.project.machines import Machine
from snakemake_kochi.queue import (
    Resources,
    Ticket,
    WorkerState,
    note_allocations,
    seconds_for_jobs,
    seconds_in_all,
)
from snakemake_kochi.schedulers.interface import (
    UNKNOWN,
    Limits,
    RefusedError,
    Scheduler,
    UnreachableError,
    Wanted,
)
from snakemake_kochi.schedulers.questions import Pauses, Questions
from snakemake_kochi.schedulers.request import NO_REQUEST, AllocationRequest
from snakemake_kochi.schedulers.worker_command import WorkerCommand
from snakemake_kochi.worker.node.memory import OWN_MB
from snakemake_kochi.worker.settings import WorkerSettings

# Seconds for which jobs wait before more is asked for, and for which none may want what was, before
# it is given back: short jobs come and go.
_STEADY = 3.0
# Seconds for jobs to be handed over; until then, what is asked for first would be too small.
_HANDING_OVER = 2.0
# Seconds in which jobs may end after Slurm's signal, and what a worker keeps of its time besides.
_GRACE = 20.0
_RESERVE = 10.0
# Seconds before more is asked for again where that was refused, beside what there is.
_AFTER_REFUSAL = 60.0
# Seconds before more is asked for where nothing can be written in KOCHI_ROOT.
_WITHOUT_ROOM = 5.0


class Provision:
    """For all queues of one controller; called by one thread. `stopping`: nothing more is to be
    asked for."""

    def __init__(
        self,
        root: Root,
        paths: MachinePaths,
        machine: Machine,
        scheduler: Scheduler,
        controller: str,
        asked: AskedFor,
        questions: Questions,
        setbacks: Setbacks,
        logger: LoggerExecutorInterface,
        stopping: threading.Event,
    ) -> None:
        """Asks the scheduler what its nodes have, as far as the machine does not say. Raises
        KochiError."""
        self._root = root
        self._paths = paths
        self._machine = machine
        self._scheduler = scheduler
        self._controller = controller
        self._asked = asked
        self._questions = questions
        self._setbacks = setbacks
        self._logger = logger
        self._stopping = stopping
        self._notices = Notices(logger)
        # With a request the nodes may be others, and their limits.
        self._limits_of: dict[AllocationRequest, Limits] = {NO_REQUEST: scheduler.limits()}
        self._submitted: list[str] = []
        self._room = Room(asked, self._cancel, logger, _STEADY)
        self._steady = Steady()
        self._counts: dict[str, int] = {}  # of the jobs of each queue, at the last look
        self._last_shape: dict[str, Shape] = {}
        self._next_submission = 0.0
        self._pauses = Pauses()
        self._next_cancellation = 0.0
        self._cancel_pauses = Pauses()
        self._arrivals: dict[str, Arrivals] = defaultdict(Arrivals)  # by queue
        self.has_asked = False  # with or without an answer

    def limits(self, request: AllocationRequest) -> Limits:
        """Asks the scheduler once for each kind of nodes that is requested. Raises KochiError."""
        nodes = AllocationRequest(
            partition=request.partition,
            constraint=request.constraint,
            gpu_model=request.gpu_model,
            nodes=request.nodes,
        )
        if nodes not in self._limits_of:
            self._limits_of[nodes] = self._scheduler.limits(nodes)
        return self._limits_of[nodes]

    def provide(
        self,
        queue: str,
        request: AllocationRequest,
        pending: Mapping[str, Sequence[Ticket]],
        workers: Mapping[str, Sequence[WorkerState]],
    ) -> None:
        """See to one queue, whose allocations have the request. `pending`, `workers`: of all
        queues, by queue, those that have not ended. Raises RefusedError, or UnreachableError;
        WorkerError where only jobs are left that are too large for every worker that comes, or
        where no worker comes."""
        tickets = pending.get(queue, ())
        wanted_by = {ticket.job: ticket.resources for ticket in tickets}
        there = workers[queue]
        begun = {job for worker in there for job in (*worker.running, *worker.ahead)}
        waiting = Counter(wanted for job, wanted in wanted_by.items() if job not in begun)
        self._leave_out_hopeless(queue, waiting, pending, workers)
        supply = [_supply(worker, wanted_by) for worker in there if worker.is_live]
        supply += [asked.supply for asked in self._give_back(queue, waiting, supply)]
        # Those of all queues count, and those that drain: they have their nodes still.
        all_there = sum(map(len, workers.values())) + len(self._asked.coming())
        limits = self.limits(request)
        room = limits.workers - all_there
        self._room.make(queue, waiting, pending, workers, _in_all(there), room)
        allowed = replace(limits, workers=len(supply) + max(0, room))
        lasting = min(room, self._machine.allocation.min_workers - self._asked.lasting)
        if not tickets and any(pending.values()):
            lasting = 0  # those that stay are of a kind that jobs wait for
        known = self._last_shape.get(queue)
        if not is_lacking(waiting, supply, allowed) and (known is None or lasting <= 0):
            self._steady.forget(queue)
            return
        if not self._asked.coming() and not any(workers.values()):
            self._setbacks.check()
        if self._is_time(queue, len(tickets), is_first=not supply):
            wanted = workers_to_ask_for(waiting, supply, allowed)
            shape = wanted[0][0] if wanted else known
            assert shape is not None, "none is lacking and none was asked for"
            self._last_shape[queue] = shape
            is_alone = not any(worker.is_live for found in workers.values() for worker in found)
            submissions = [(shape, number, False) for shape, number in wanted]
            if lasting > 0:
                # As long as usual, but no shorter than the jobs need that they come for.
                times = (shape.seconds, limits.usual_seconds)
                seconds = max((time for time in times if time is not None), default=None)
                submissions = _with_lasting(submissions, replace(shape, seconds=seconds), lasting)
            for each, number, stays in submissions:
                is_first = is_alone and not self._asked.coming()
                if not self._submit(queue, request, each, number, stays, is_first):
                    break

    def _leave_out_hopeless(
        self,
        queue: str,
        waiting: Counter[Resources],
        pending: Mapping[str, Sequence[Ticket]],
        workers: Mapping[str, Sequence[WorkerState]],
    ) -> None:
        """Nothing more is asked for jobs that the workers that came for them cannot run. Raises
        WorkerError when nothing else is left to be done."""
        arrivals = self._arrivals[queue]
        arrivals.note(waiting, _as_they_came(workers[queue]), self._asked.all())
        hopeless = {kind: why for kind in waiting if (why := arrivals.obstacle(kind))}
        for kind in hopeless:
            del waiting[kind]
        others = (name for name, tickets in pending.items() if tickets and name != queue)
        is_busy = any(worker.running or worker.ahead for worker in workers[queue])
        if not hopeless or waiting or is_busy or any(others):
            return
        kind, why = next(iter(hopeless.items()))
        ticket = next(each for each in pending[queue] if each.resources == kind)
        raise WorkerError(
            f"rule {ticket.labels.get('rule', ticket.name)}: several allocations came for it, one "
            f"after the other, and none can run it: {why}",
            "Say what a node has (cores, memory, gpus), how long one may be had (time), or ask "
            f"for others: machines: {self._machine.name}: allocation: in kochi.yaml.",
        )

    def _cancel(self, ids: Sequence[str]) -> bool:
        """Whether that was possible; else it is tried again after a while. Nothing depends on it:
        workers without jobs leave by themselves."""
        if time.monotonic() < self._next_cancellation:
            return False
        try:
            self._scheduler.cancel(ids)
        except KochiError as error:
            self._next_cancellation = time.monotonic() + self._cancel_pauses.next()
            self._notices.info(f"Allocations cannot be given back at the moment: {error.message}")
            return False
        self._cancel_pauses.answered()
        return True

    def _is_time(self, queue: str, tickets: int, is_first: bool) -> bool:
        """Whether jobs have lacked a worker for long enough that more is to be asked for."""
        as_before = self._counts.get(queue) == tickets
        self._counts[queue] = tickets
        since = self._steady.seconds(queue)
        if time.monotonic() < self._next_submission or not self._setbacks.may_ask:
            return False
        return as_before or since >= _HANDING_OVER if is_first else since >= _STEADY

    def _submit(
        self,
        queue: str,
        request: AllocationRequest,
        shape: Shape,
        count: int,
        lasting: bool,
        is_alone: bool,
    ) -> bool:
        """Whether it was. `is_alone`: no worker is there that could go on if this is refused."""
        wanted = Wanted(
            cores=shape.capacity.cores,
            memory_mb=self._memory(shape, request),
            gpus=shape.capacity.gpus,
            seconds=shape.seconds,
            whole_node=shape.whole_node,
            count=count,
            excluded=self._setbacks.excluded,
            request=request.with_room_for_worker(OWN_MB, self.limits(request).node),
        )
        settings = WorkerSettings(
            str(self._root.directory),
            self._paths.name,
            (queue,),
            most_memory_mb=_handed_out(shape, request) or None,
            allocation_seconds=shape.seconds,
            grace=_GRACE,
            stay=True,
            idle_timeout=None if lasting else self._machine.allocation.idle_timeout,
            # Jobs of another run would be requeued and done twice when this run ends.
            controller=self._controller,
            first=shape.first,
            cancel_waiting=self._scheduler.cancels_waiting,
        )
        worker = WorkerCommand(settings, self._machine.load_env_on_machine)
        make_directory(self._paths.allocations)
        if not has_room(self._paths.allocations):
            # No worker could say that it is there. The run's queues are watched for that, too.
            self._next_submission = time.monotonic() + _WITHOUT_ROOM
            return False
        self.has_asked = True
        try:
            ids = self._scheduler.submit(wanted, worker, self._submitted)
        except RefusedError as error:
            if is_alone:
                if self._setbacks.excluded:
                    raise self._setbacks.hopeless(error.message) from error
                raise
            # A limit of how many there may be, mostly.
            self._next_submission = time.monotonic() + _AFTER_REFUSAL
            said = "No more allocations now; those that were asked for before go on."
            self._notices.info(f"{said} {error.message}. {error.hint or ''}".rstrip())
            return False
        except UnreachableError as error:
            # Its own pauses: what is asked meanwhile may get an answer all the while.
            self._next_submission = time.monotonic() + self._pauses.next()
            if not self._stopping.is_set():
                self._notices.info(
                    f"No allocation can be had now; it is tried again. {error.message}"
                )
            return False
        self._pauses.answered()
        self._questions.answered()
        self._submitted += ids
        note_allocations(self._paths, self._controller, ids, wanted.describe())
        self._asked.add(ids, queue, Supply(shape.capacity, shape.seconds), lasting)
        self._steady.forget(queue)
        self._questions.later()
        if wanted.count == 1:
            many, which, logs = "an allocation", ids[0], f"log: {worker.log(ids[0])}"
        else:
            many, which = f"{wanted.count} allocations", f"{ids[0]} to {ids[-1]}"
            logs = f"logs: {worker.log('*')}"
        self._logger.info(f"Asked for {many} of {wanted.describe()}: {which}, {logs}")
        return True

    def _memory(self, shape: Shape, request: AllocationRequest) -> int:
        """In MiB, for the jobs and for the worker beside them."""
        wanted = shape.capacity.memory_mb
        return min(wanted + OWN_MB, self.limits(request).node.memory_mb) if wanted else 0

    def _give_back(
        self, queue: str, waiting: Mapping[Resources, int], supply: Sequence[Supply]
    ) -> list[Asked]:
        """Cancel what no job has waited for for a while; returns what is left of those to come."""
        # Those that stay come first: the others are given back rather than they.
        coming = sorted(self._asked.coming(queue), key=lambda asked: not asked.lasting)
        unwanted = not_wanted(waiting, supply, [asked.supply for asked in coming])
        ids = {coming[index].id for index in unwanted if not coming[index].lasting}
        for asked in coming:
            if asked.id not in ids:
                self._steady.forget((asked.id,))
        given = [each for each in sorted(ids) if self._steady.seconds((each,)) >= _STEADY]
        if not given or not self._cancel(given):
            return coming
        self._asked.drop(given)
        self._logger.info(f"Given back, because no job waits for it: {', '.join(given)}")
        return [asked for asked in coming if asked.id not in given]


def _with_lasting(
    wanted: Sequence[tuple[Shape, int, bool]], shape: Shape, count: int
) -> list[tuple[Shape, int, bool]]:
    """So many that stay, in place of the first of those that are wanted."""
    found = [(shape, count, True)]
    for each, number, _ in wanted:
        replaced = min(number, count)
        count -= replaced
        if number > replaced:
            found.append((each, number - replaced, False))
    return found


def _handed_out(shape: Shape, request: AllocationRequest) -> int | None:
    """The MiB of memory that a worker is to give to jobs, and no more: what is beside it is its
    own. None where nothing was asked for."""
    if request.shape:
        return request.memory_mb
    return shape.capacity.memory_mb if 0 < shape.capacity.memory_mb < UNKNOWN // 2 else None


def _in_all(workers: Sequence[WorkerState]) -> dict[str, Supply]:
    """What each worker, by allocation, has in all, be it busy or not."""
    return {
        worker.allocation: _supply(replace(worker, running={}, ahead=()), {})
        for worker in workers
        if worker.is_live and worker.allocation is not None
    }


def _as_they_came(workers: Sequence[WorkerState]) -> dict[str, Supply]:
    """What each had when it began, whenever that was: a controller may see it late."""
    times = {worker.allocation: seconds_in_all(worker) for worker in workers}
    return {
        name: replace(each, seconds_left=times[name]) for name, each in _in_all(workers).items()
    }


def _supply(worker: WorkerState, wanted_by: Mapping[int, Resources]) -> Supply:
    """What a worker can do; it ends its jobs a while before its time is over."""
    begun = (wanted_by[job] for job in (*worker.running, *worker.ahead) if job in wanted_by)
    seconds = seconds_for_jobs(worker, reserve=_GRACE + _RESERVE)
    return Supply(worker.capacity, seconds, tuple(begun))
