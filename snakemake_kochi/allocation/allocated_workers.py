"""Workers inside a scheduler's allocations, as many as the jobs of one controller need."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.allocation.launch import Launch
from snakemake_kochi.allocation.scheduler import Scheduler, UnreachableError, Wanted
from snakemake_kochi.allocation.sizing import Supply, obstacle, workers_to_ask_for
from snakemake_kochi.errors import KochiError, WorkerError
from snakemake_kochi.files import make_directory
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.project.machines import Machine
from snakemake_kochi.queue import Resources, Ticket, WorkerState, seconds_left, shared_workers

# Seconds between two looks at what waits, and between two questions to Slurm.
_LOOK = 0.5
_QUESTION = 10.0
# So many allocations in a row without a worker in them, and something else is wrong.
_MOST_FAILED = 3
# Seconds in which jobs may end after Slurm's signal, and in which what was cancelled is to be gone.
_GRACE = 20.0
_END_PATIENCE = 60.0
_PAUSE = 0.2


@dataclass(frozen=True)
class _Asked:
    """An allocation that was asked for, and whose worker has not come."""

    id: str
    queue: str
    supply: Supply


class AllocatedWorkers:
    """See `interface.Workers`. A thread of its own talks to the scheduler, which may take minutes
    to answer, while results go on to be reported."""

    def __init__(
        self,
        root: Root,
        paths: MachinePaths,
        machine: Machine,
        scheduler: Scheduler,
        controller: str,
        logger: LoggerExecutorInterface,
    ) -> None:
        """Asks the scheduler what its nodes have, as far as the machine does not say. Raises
        KochiError."""
        self._root = root
        self._paths = paths
        self._machine = machine
        self._controller = controller
        self._logger = logger
        self._scheduler = scheduler
        self._limits = self._scheduler.limits()
        self._lock = threading.Lock()
        self._pending: dict[str, Sequence[Ticket]] = {}
        self._asked: dict[str, _Asked] = {}
        self._submitted: list[str] = []
        self._failed = 0  # in a row, without a worker in between
        self._failure: KochiError | None = None
        self._next_question = 0.0
        self._told: set[str] = set()
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kochi-allocations", daemon=True)

    # ---- interface.Workers

    def serve(self, queues: Sequence[str]) -> None:
        if not self._thread.is_alive() and not self._stopping.is_set():
            self._thread.start()

    def will_serve(self, queue: str) -> bool:
        return not any(worker.controller is None for worker in shared_workers(self._paths, queue))

    def fit(self, rule: str, wanted: Resources) -> Resources:
        if why := obstacle(wanted, self._limits):
            raise KochiError(
                f"rule {rule}: no allocation on machine {self._machine.name} can run it: {why}",
                "Ask for less, or raise the limit: machines: "
                f"{self._machine.name}: allocation: in kochi.yaml.",
            )
        return wanted

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
        if self._thread.is_alive():
            self._thread.join()
        if not self._submitted:
            return
        try:
            self._end_all(is_urgent)
        except KochiError as error:
            self._logger.error(
                f"This run's allocations were not cancelled: {error.message}\n"
                f"To do it, type: {self._scheduler.how_to_cancel}"
            )

    # ---- the thread

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait(_LOOK)
            self._wake.clear()
            try:
                self._turn()
            except UnreachableError as error:
                self._tell(f"The scheduler gives no answer, and is asked again: {error.message}")
            except KochiError as error:
                with self._lock:
                    self._failure = error
                return

    def _turn(self) -> None:
        with self._lock:
            pending = self._pending
        workers = {queue: self._workers_of(queue) for queue in pending}
        for worker in (each for found in workers.values() for each in found):
            if worker.allocation in self._asked:
                del self._asked[worker.allocation]
                self._failed = 0
        for queue, tickets in pending.items():
            if self._stopping.is_set():
                return
            if self.will_serve(queue):
                self._provide(queue, tickets, workers)
        if self._asked and time.monotonic() >= self._next_question:
            self._next_question = time.monotonic() + _QUESTION
            self._ask_how_it_stands()

    def _workers_of(self, queue: str) -> list[WorkerState]:
        found = shared_workers(self._paths, queue, self._controller)
        return [worker for worker in found if worker.controller == self._controller]

    def _provide(
        self,
        queue: str,
        tickets: Sequence[Ticket],
        workers: Mapping[str, Sequence[WorkerState]],
    ) -> None:
        """Ask for what the jobs of a queue lack, or give back what none of them waits for."""
        own = [worker for worker in workers[queue] if worker.is_live]
        begun = {job for worker in own for job in (*worker.running, *worker.ahead)}
        waiting = Counter(ticket.resources for ticket in tickets if ticket.job not in begun)
        asked = [each for each in self._asked.values() if each.queue == queue]
        if not waiting:
            self._give_back(asked)
            return
        supply = [Supply(worker.capacity, seconds_left(worker)) for worker in own]
        supply += [each.supply for each in asked]
        others = sum(len(found) for name, found in workers.items() if name != queue)
        others += len(self._asked) - len(asked)
        limits = replace(self._limits, workers=self._limits.workers - others)
        wanted = workers_to_ask_for(waiting, supply, limits)
        if wanted is None:
            return
        shape, count = wanted
        self._submit(
            queue,
            Wanted(
                cores=shape.capacity.cores,
                memory_mb=shape.capacity.memory_mb,
                gpus=shape.capacity.gpus,
                seconds=shape.seconds,
                whole_node=shape.whole_node,
                count=count,
            ),
            Supply(shape.capacity, shape.seconds),
        )

    def _submit(self, queue: str, wanted: Wanted, supply: Supply) -> None:
        launch = Launch(
            self._root,
            self._paths,
            self._controller,
            (queue,),
            self._machine.allocation.idle_timeout,
            self._machine.load_env_on_machine,
            _GRACE,
        )
        make_directory(self._paths.allocations)
        ids = self._scheduler.submit(wanted, launch, self._submitted)
        self._submitted += ids
        for each in ids:
            self._asked[each] = _Asked(each, queue, supply)
        self._next_question = time.monotonic() + _QUESTION
        which = ids[0] if len(ids) == 1 else f"{ids[0]} to {ids[-1]}"
        many = f"{wanted.count} allocations" if wanted.count > 1 else "an allocation"
        self._logger.info(
            f"Asked for {many} of {wanted.describe()}: {which}, log: {launch.log(which)}"
        )

    def _give_back(self, asked: Sequence[_Asked]) -> None:
        if asked:
            self._scheduler.cancel(each.id for each in asked)
            for each in asked:
                del self._asked[each.id]

    def _ask_how_it_stands(self) -> None:
        if (found := self._scheduler.find()) is None:
            return
        for asked in list(self._asked.values()):
            if (allocation := found.get(asked.id)) is not None:
                if allocation.state == "pending":
                    self._tell(f"Allocation {asked.id} waits: {allocation.reason}")
                continue
            del self._asked[asked.id]
            self._failed += 1
            if self._failed >= _MOST_FAILED:
                log = self._paths.allocation_log(self._controller, asked.id)
                raise WorkerError(
                    f"{self._failed} allocations ended, and no worker had come; the last is "
                    f"{asked.id}, its log is {log}",
                    "Read that log.",
                )

    def _tell(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._logger.info(what)

    # ---- the end

    def _end_all(self, is_urgent: Callable[[], bool]) -> None:
        self._scheduler.cancel()
        deadline = time.monotonic() + _END_PATIENCE
        while left := self._scheduler.find():
            if time.monotonic() > deadline:
                self._logger.error(f"Allocations that have not ended: {', '.join(left)}")
                return
            time.sleep(_PAUSE)
