"""Workers inside a scheduler's allocations, as many as the jobs of one controller need."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.allocation.asked_for import Asked, AskedFor
from snakemake_kochi.allocation.ending import end_allocations
from snakemake_kochi.allocation.former import FormerAllocations
from snakemake_kochi.allocation.launch import Launch
from snakemake_kochi.allocation.losses import Losses
from snakemake_kochi.allocation.room import idle_elsewhere
from snakemake_kochi.allocation.scheduler import (
    Allocation,
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
    obstacle,
    workers_to_ask_for,
)
from snakemake_kochi.allocation.steady import Steady
from snakemake_kochi.allocation.waiting import Pauses, Reasons
from snakemake_kochi.allocation.wishes import NO_WISH, Wish
from snakemake_kochi.errors import KochiError, WorkerError
from snakemake_kochi.files import make_directory
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.project.machines import Machine
from snakemake_kochi.queue import (
    Resources,
    Ticket,
    WorkerState,
    list_workers,
    note_allocations,
    seconds_left,
    shared_workers,
)

# Seconds between two looks at what waits; a look takes at most a twentieth of the time.
_LOOK = 0.5
_LOOK_SHARE = 20
# Seconds between two questions to the scheduler; less while one ends whose worker has left.
_QUESTION = 10.0
_SHORT_QUESTION = 1.0
# Seconds for which jobs wait before more is asked for, and for which none may want what was, before
# it is given back: short jobs come and go.
_STEADY = 3.0
# Seconds for jobs to be handed over; until then, what is asked for first would be too small.
_HANDING_OVER = 2.0
# So many allocations in a row without a worker in them, and something else is wrong.
_MOST_FAILED = 3
# Seconds in which jobs may end after Slurm's signal, and what a worker keeps of its time besides.
_GRACE = 20.0
_RESERVE = 10.0
# Seconds to wait for a submission that is under way when the run ends.
_LAST_PATIENCE = 30.0
# Seconds before more is asked for again where that was refused, beside what there is.
_AFTER_REFUSAL = 60.0
_PAUSE = 0.2


class AllocatedWorkers:
    """See `interface.Workers`. A thread of its own talks to the scheduler, which may take minutes
    to answer, while results go on to be reported."""

    def __init__(
        self,
        root: Root,
        paths: MachinePaths,
        machine: Machine,
        scheduler_of: Callable[[str], Scheduler],
        controller: str,
        logger: LoggerExecutorInterface,
    ) -> None:
        """`scheduler_of`: for the allocations of a controller. Asks the scheduler what its nodes
        have, as far as the machine does not say. Raises KochiError."""
        self._root = root
        self._paths = paths
        self._machine = machine
        self._controller = controller
        self._logger = logger
        self._scheduler = scheduler_of(controller)
        self._limits = self._scheduler.limits()
        # With a wish a partition may be another one, and its limits others.
        self._partitions: dict[str, Limits] = {}
        self._wishes: dict[str, Wish] = {}  # those of all queues
        self._former = FormerAllocations(paths, scheduler_of)
        self._losses = Losses(paths)
        self._lock = threading.Lock()
        self._pending: dict[str, Sequence[Ticket]] = {}
        self._asked = AskedFor()
        self._submitted: list[str] = []
        self._idle: dict[str, float] = {}  # since when it was seen that they keep others waiting
        self._let_go: set[str] = set()
        self._steady = Steady()
        self._counts: dict[str, int] = {}  # of the jobs of each queue, at the last look
        self._last_shape: dict[str, Shape] = {}
        self._failed = 0  # in a row, without a worker in between
        self._failure: KochiError | None = None
        self._next_question = 0.0
        self._next_submission = 0.0
        self._reasons = Reasons()
        self._pauses = Pauses(_QUESTION)
        self._submission_pauses = Pauses(_QUESTION)
        self._told: set[str] = set()
        self._is_unreachable = False
        self._has_stopped = False
        self._has_asked = False  # with or without an answer
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kochi-allocations", daemon=True)

    # ---- interface.Workers

    @property
    def takes_wishes(self) -> bool:
        return self._scheduler.takes_wishes

    def serve(self, queues: Sequence[str], wish: Wish = NO_WISH) -> None:
        with self._lock:
            self._wishes.update(dict.fromkeys(queues, wish))
        self._start()

    def succeed(self, controllers: Sequence[str]) -> None:
        if controllers:
            self._former.add(controllers)
            self._start()

    def _start(self) -> None:
        if not self._thread.is_alive() and not self._stopping.is_set():
            self._thread.start()

    def will_serve(self, queue: str) -> bool:
        return not any(worker.controller is None for worker in shared_workers(self._paths, queue))

    def fit(self, rule: str, wanted: Resources, wish: Wish = NO_WISH) -> Resources:
        if why := obstacle(wanted, self._limits_of(wish)):
            raise KochiError(
                f"rule {rule}: no allocation on machine {self._machine.name} can run it: {why}",
                "Ask for less, or raise the limit: machines: "
                f"{self._machine.name}: allocation: in kochi.yaml.",
            )
        return wanted

    def _limits_of(self, wish: Wish) -> Limits:
        """Asks the scheduler once for each partition that is wished. Raises KochiError."""
        if wish.partition is None:
            return self._limits
        if wish.partition not in self._partitions:
            self._partitions[wish.partition] = self._scheduler.limits(wish)
        return self._partitions[wish.partition]

    def look_after(self, pending: Mapping[str, Sequence[Ticket]]) -> None:
        with self._lock:
            self._pending = dict(pending)
            failure = self._failure
        if failure is not None:
            raise failure
        self._wake.set()

    def job_ended(self, worker: int) -> None:
        """Nothing to note: a worker that came is what counts."""

    def stop(self, is_urgent: Callable[[], bool] = lambda: False) -> None:
        self._stopping.set()
        self._wake.set()
        self._scheduler.give_up()
        deadline = time.monotonic() + _LAST_PATIENCE
        while self._thread.is_alive() and time.monotonic() < deadline and not is_urgent():
            self._thread.join(_PAUSE)
        if self._has_stopped:
            return
        self._has_stopped = True
        # One that is being asked for may come although nobody knows its number.
        if self._has_asked or self._thread.is_alive():
            end_allocations(self._scheduler, self._logger, is_urgent)
        self._cancel_former()

    # ---- the thread

    def _run(self) -> None:
        self._cancel_former()
        while not self._stopping.is_set():
            self._wake.wait(_LOOK)
            self._wake.clear()
            began = time.monotonic()
            try:
                self._turn()
            except UnreachableError as error:
                self._no_answer(error)
            except OSError as error:
                # A full disk, a file server that is away: the jobs in the workers go on.
                self._tell(f"The workers cannot be looked after at the moment: {error}")
            except KochiError as error:
                with self._lock:
                    self._failure = error
                return
            self._stopping.wait(_LOOK_SHARE * min(1.0, time.monotonic() - began))

    def _turn(self) -> None:
        with self._lock:
            pending, queues = self._pending, sorted({*self._wishes, *self._pending})
        workers = {queue: self._workers_of(queue) for queue in queues}
        everybody = [worker for found in workers.values() for worker in found]
        came, went = self._asked.note_workers(everybody)
        if came:
            self._failed = 0
        is_silent = self._losses.look(everybody)
        if went and not self._is_unreachable:
            self._next_question = 0.0
        if time.monotonic() >= self._next_question:
            self._next_question = time.monotonic() + _QUESTION
            if went or is_silent or self._asked.coming() or not self._asked.is_settled:
                self._ask_how_it_stands()
            self._cancel_former()
        if not self._asked.is_settled:
            return
        for queue in queues:
            if self._stopping.is_set():
                return
            if self.will_serve(queue):
                self._provide(queue, pending.get(queue, ()), workers)

    def _workers_of(self, queue: str) -> list[WorkerState]:
        found = shared_workers(self._paths, queue, self._controller)
        return [worker for worker in found if worker.controller == self._controller]

    def _provide(
        self,
        queue: str,
        tickets: Sequence[Ticket],
        workers: Mapping[str, Sequence[WorkerState]],
    ) -> None:
        """Ask for what the jobs of a queue lack, and give back what none of them waits for."""
        wanted_by = {ticket.job: ticket.resources for ticket in tickets}
        there = workers[queue]
        begun = {job for worker in there for job in (*worker.running, *worker.ahead)}
        waiting = Counter(wanted for job, wanted in wanted_by.items() if job not in begun)
        supply = [_supply(worker, wanted_by) for worker in there if worker.is_live]
        supply += [asked.supply for asked in self._give_back(queue, waiting, supply)]
        # Those of all queues count, and those that drain: they have their nodes still.
        all_there = sum(map(len, workers.values())) + len(self._asked.coming())
        limits = self._limits_of(self._wishes.get(queue, NO_WISH))
        room = limits.workers - all_there
        if waiting and not any(worker.is_live for worker in there):
            self._make_room(queue, workers)
        wanted = workers_to_ask_for(
            waiting, supply, replace(limits, workers=len(supply) + max(0, room))
        )
        shape, count = wanted or (self._last_shape.get(queue), 0)
        lasting = min(room, self._machine.allocation.min_workers - self._asked.lasting)
        if shape is None or max(count, lasting) <= 0:
            self._steady.forget(queue)
        elif self._is_time(queue, len(tickets), is_first=not supply):
            self._last_shape[queue] = shape
            if lasting > 0:
                self._submit(queue, replace(shape, seconds=limits.usual_seconds), lasting, True)
            if count > max(0, lasting):
                self._submit(queue, shape, count - max(0, lasting), False)

    def _make_room(self, queue: str, workers: Mapping[str, Sequence[WorkerState]]) -> None:
        """Let workers of other queues go that have had nothing to do for a while."""
        with self._lock:
            pending = self._pending
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

    def _submit(self, queue: str, shape: Shape, count: int, lasting: bool) -> None:
        wanted = Wanted(
            cores=shape.capacity.cores,
            memory_mb=shape.capacity.memory_mb,
            gpus=shape.capacity.gpus,
            seconds=shape.seconds,
            whole_node=shape.whole_node,
            count=count,
            wish=self._wishes.get(queue, NO_WISH),
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
        self._has_asked = True
        try:
            ids = self._scheduler.submit(wanted, launch, self._submitted)
        except RefusedError as error:
            if not self._has_live_workers():
                raise
            # A limit of how many there may be, mostly.
            self._next_submission = time.monotonic() + _AFTER_REFUSAL
            self._tell(f"No more allocations now; those that there are go on. {error.message}")
            return
        except UnreachableError as error:
            # Its own pauses: what is asked meanwhile may get an answer all the while.
            self._next_submission = time.monotonic() + self._submission_pauses.next()
            if not self._stopping.is_set():
                self._tell(f"No allocation can be had now; it is tried again. {error.message}")
            return
        self._submission_pauses.answered()
        self._answers()
        self._submitted += ids
        note_allocations(self._paths, self._controller, ids, wanted.describe())
        seconds = None if shape.seconds is None else shape.seconds - MARGIN
        self._asked.add(ids, queue, Supply(shape.capacity, seconds), lasting)
        self._steady.forget(queue)
        self._next_question = time.monotonic() + _QUESTION
        which = ids[0] if len(ids) == 1 else f"{ids[0]} to {ids[-1]}"
        many = f"{wanted.count} allocations" if wanted.count > 1 else "an allocation"
        self._logger.info(
            f"Asked for {many} of {wanted.describe()}: {which}, log: {launch.log(which)}"
        )

    def _has_live_workers(self) -> bool:
        with self._lock:
            queues = list(self._wishes)
        return any(worker.is_live for queue in queues for worker in self._workers_of(queue))

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

    # ---- what the scheduler says

    def _ask_how_it_stands(self) -> None:
        try:
            found = self._scheduler.find()
        except RefusedError as error:
            # Nothing is known, and nothing is lost.
            raise UnreachableError(error.message, error.hint) from error
        self._answers()
        if found is None:
            return
        for asked in self._asked.note_answer(found):
            self._note_end(asked, found.get(asked.id))
        coming = [found[asked.id] for asked in self._asked.coming() if asked.id in found]
        for news in self._reasons.news(coming):
            self._logger.info(news)
        running = {each.id for each in found.values() if each.state == "running"}
        for late in self._asked.late(running):
            log = self._paths.allocation_log(self._controller, late)
            self._tell(f"Allocation {late} runs, and its worker has not come; its log is {log}")
        self._losses.declare({each.id for each in found.values() if each.state != "ended"})
        if not self._asked.is_settled:
            self._next_question = time.monotonic() + _SHORT_QUESTION

    def _note_end(self, asked: Asked, allocation: Allocation | None) -> None:
        self._steady.forget((asked.id,))
        if asked.had_worker or self._had_worker(asked.id):
            self._failed = 0
            return
        self._failed += 1
        if self._failed >= _MOST_FAILED:
            log = self._paths.allocation_log(self._controller, asked.id)
            why = f": {allocation.reason}" if allocation is not None else ""
            raise WorkerError(
                f"{self._failed} allocations ended, and no worker had come; the last is "
                f"{asked.id}, its log is {log}{why}",
                "Read that log.",
            )

    def _had_worker(self, allocation: str) -> bool:
        """Whether one came and went between two looks."""
        return any(
            worker.allocation == allocation and worker.controller == self._controller
            for worker in list_workers(self._paths)
        )

    def _cancel_former(self) -> None:
        if not self._former:
            return
        try:
            if cancelled := self._former.cancel_idle():
                names = ", ".join(cancelled)
                self._logger.info(f"Cancelled allocations of a run that was killed: {names}")
        except KochiError as error:
            self._tell(
                "Allocations of a run that was killed may be there still; they end by themselves "
                f"when they have nothing to do. {error.message}"
            )

    def _no_answer(self, error: UnreachableError) -> None:
        self._next_question = time.monotonic() + self._pauses.next()
        if not self._is_unreachable:
            self._is_unreachable = True
            self._logger.warning(
                "The scheduler gives no answer, and is asked again; what runs goes on. "
                f"{error.message}"
            )

    def _answers(self) -> None:
        self._pauses.answered()
        if self._is_unreachable:
            self._is_unreachable = False
            self._logger.info("The scheduler answers again.")

    def _tell(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._logger.info(what)


def _supply(worker: WorkerState, wanted_by: Mapping[int, Resources]) -> Supply:
    """What a worker has left; it ends its jobs a while before its time is over."""
    begun = [wanted_by[job] for job in (*worker.running, *worker.ahead) if job in wanted_by]
    left = seconds_left(worker)
    return free(worker.capacity, begun, None if left is None else left - _GRACE - _RESERVE)
