"""What the jobs of a run lack is asked for, and what none of them waits for is given back."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.allocation.asked_for import Asked, AskedFor
from snakemake_kochi.allocation.launch import Launch
from snakemake_kochi.allocation.news import Once
from snakemake_kochi.allocation.questions import Pauses, Questions
from snakemake_kochi.allocation.room import idle_elsewhere
from snakemake_kochi.allocation.scheduler import (
    RefusedError,
    Scheduler,
    UnreachableError,
    Wanted,
)
from snakemake_kochi.allocation.sizing import (
    MARGIN,
    Limits,
    Shape,
    Supply,
    free,
    not_wanted,
    workers_to_ask_for,
)
from snakemake_kochi.allocation.steady import Steady
from snakemake_kochi.allocation.wishes import Wish
from snakemake_kochi.files import make_directory
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.project.machines import Machine
from snakemake_kochi.queue import (
    Resources,
    Ticket,
    WorkerState,
    note_allocations,
    seconds_left,
)

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
        self._logger = logger
        self._stopping = stopping
        self._once = Once(logger)
        self._limits = scheduler.limits()
        # With a wish a partition may be another one, and its limits others.
        self._partitions: dict[str, Limits] = {}
        self._submitted: list[str] = []
        self._idle: dict[str, float] = {}  # since when it was seen that they keep others waiting
        self._let_go: set[str] = set()
        self._steady = Steady()
        self._counts: dict[str, int] = {}  # of the jobs of each queue, at the last look
        self._last_shape: dict[str, Shape] = {}
        self._next_submission = 0.0
        self._pauses = Pauses()
        self.has_asked = False  # with or without an answer

    def limits(self, wish: Wish) -> Limits:
        """Asks the scheduler once for each partition that is wished. Raises KochiError."""
        if wish.partition is None:
            return self._limits
        if wish.partition not in self._partitions:
            self._partitions[wish.partition] = self._scheduler.limits(wish)
        return self._partitions[wish.partition]

    def provide(
        self,
        queue: str,
        wish: Wish,
        pending: Mapping[str, Sequence[Ticket]],
        workers: Mapping[str, Sequence[WorkerState]],
    ) -> None:
        """See to one queue, whose allocations have the wish. `pending`, `workers`: of all queues,
        by queue, those that have not ended. Raises RefusedError, or UnreachableError."""
        tickets = pending.get(queue, ())
        wanted_by = {ticket.job: ticket.resources for ticket in tickets}
        there = workers[queue]
        begun = {job for worker in there for job in (*worker.running, *worker.ahead)}
        waiting = Counter(wanted for job, wanted in wanted_by.items() if job not in begun)
        supply = [_supply(worker, wanted_by) for worker in there if worker.is_live]
        supply += [asked.supply for asked in self._give_back(queue, waiting, supply)]
        # Those of all queues count, and those that drain: they have their nodes still.
        all_there = sum(map(len, workers.values())) + len(self._asked.coming())
        limits = self.limits(wish)
        room = limits.workers - all_there
        if waiting and not any(worker.is_live for worker in there):
            self._make_room(queue, pending, workers)
        wanted = workers_to_ask_for(
            waiting, supply, replace(limits, workers=len(supply) + max(0, room))
        )
        shape, count = wanted or (self._last_shape.get(queue), 0)
        lasting = min(room, self._machine.allocation.min_workers - self._asked.lasting)
        if shape is None or max(count, lasting) <= 0:
            self._steady.forget(queue)
        elif self._is_time(queue, len(tickets), is_first=not supply):
            self._last_shape[queue] = shape
            is_alone = not any(worker.is_live for found in workers.values() for worker in found)
            if lasting > 0:
                lasting_shape = replace(shape, seconds=limits.usual_seconds)
                self._submit(queue, wish, lasting_shape, lasting, True, is_alone)
            if count > max(0, lasting):
                self._submit(queue, wish, shape, count - max(0, lasting), False, is_alone)

    def _make_room(
        self,
        queue: str,
        pending: Mapping[str, Sequence[Ticket]],
        workers: Mapping[str, Sequence[WorkerState]],
    ) -> None:
        """Let workers of other queues go that have had nothing to do for a while."""
        lasting = [asked.id for asked in self._asked.all() if asked.lasting]
        now = time.monotonic()
        found = idle_elsewhere(queue, workers, pending, {*lasting, *self._let_go})
        self._idle = {each: self._idle.get(each, now) for each in found}
        if idle := [each for each, since in self._idle.items() if now - since >= _STEADY]:
            self._let_go.update(idle)
            self._scheduler.cancel(idle)
            self._asked.drop(idle)
            self._logger.info(f"Given back to make room for others: {', '.join(idle)}")

    def _is_time(self, queue: str, tickets: int, is_first: bool) -> bool:
        """Whether jobs have lacked a worker for long enough that more is to be asked for."""
        as_before = self._counts.get(queue) == tickets
        self._counts[queue] = tickets
        since = self._steady.seconds(queue)
        if time.monotonic() < self._next_submission:
            return False
        return as_before or since >= _HANDING_OVER if is_first else since >= _STEADY

    def _submit(
        self, queue: str, wish: Wish, shape: Shape, count: int, lasting: bool, is_alone: bool
    ) -> None:
        """`is_alone`: no worker is there that could go on if this is refused."""
        wanted = Wanted(
            cores=shape.capacity.cores,
            memory_mb=shape.capacity.memory_mb,
            gpus=shape.capacity.gpus,
            seconds=shape.seconds,
            whole_node=shape.whole_node,
            count=count,
            wish=wish,
        )
        launch = Launch(
            self._root,
            self._paths,
            self._controller,
            (queue,),
            None if lasting else self._machine.allocation.idle_timeout,
            self._machine.load_env_on_machine,
            _GRACE,
        )
        make_directory(self._paths.allocations)
        self.has_asked = True
        try:
            ids = self._scheduler.submit(wanted, launch, self._submitted)
        except RefusedError as error:
            if is_alone:
                raise
            # A limit of how many there may be, mostly.
            self._next_submission = time.monotonic() + _AFTER_REFUSAL
            self._once.say(f"No more allocations now; those that there are go on. {error.message}")
            return
        except UnreachableError as error:
            # Its own pauses: what is asked meanwhile may get an answer all the while.
            self._next_submission = time.monotonic() + self._pauses.next()
            if not self._stopping.is_set():
                self._once.say(f"No allocation can be had now; it is tried again. {error.message}")
            return
        self._pauses.answered()
        self._questions.answered()
        self._submitted += ids
        note_allocations(self._paths, self._controller, ids, wanted.describe())
        seconds = None if shape.seconds is None else shape.seconds - MARGIN
        self._asked.add(ids, queue, Supply(shape.capacity, seconds), lasting)
        self._steady.forget(queue)
        self._questions.later()
        which = ids[0] if len(ids) == 1 else f"{ids[0]} to {ids[-1]}"
        many = f"{wanted.count} allocations" if wanted.count > 1 else "an allocation"
        self._logger.info(
            f"Asked for {many} of {wanted.describe()}: {which}, log: {launch.log(which)}"
        )

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
        if given:
            self._scheduler.cancel(given)
            self._asked.drop(given)
            self._logger.info(f"Given back, because no job waits for it: {', '.join(given)}")
        return [asked for asked in coming if asked.id not in given]


def _supply(worker: WorkerState, wanted_by: Mapping[int, Resources]) -> Supply:
    """What a worker has left; it ends its jobs a while before its time is over."""
    begun = [wanted_by[job] for job in (*worker.running, *worker.ahead) if job in wanted_by]
    left = seconds_left(worker)
    return free(worker.capacity, begun, None if left is None else left - _GRACE - _RESERVE)
