"""Workers in a scheduler's allocations, as many as the jobs of one controller need."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.allocation.ending import (
    END_PATIENCE,
    END_PATIENCE_WITHOUT_ROOM,
    end_allocations,
)
from snakemake_kochi.allocation.failures import FailedStarts
from snakemake_kochi.allocation.packing import exceeded, obstacle
from snakemake_kochi.allocation.provision import Provision
from snakemake_kochi.allocation.request import how_to_fit
from snakemake_kochi.allocation.submission import Submitter
from snakemake_kochi.allocation.tracker import OrphanedAllocations, Tracker
from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import has_room
from snakemake_kochi.location import is_found, with_file_to_edit
from snakemake_kochi.notices import Notices
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.project.machines import Machine
from snakemake_kochi.queue import Resources, Ticket, WorkerState, shared_workers
from snakemake_kochi.queue.paused import PausedBatches
from snakemake_kochi.schedulers.commands import Questions
from snakemake_kochi.schedulers.interface import (
    NO_REQUEST,
    AllocationRequest,
    Lack,
    RefusedError,
    Scheduler,
    UnreachableError,
)

# Seconds between two looks at waiting jobs; a look takes at most a twentieth of the time.
_LOOK = 0.5
_LOOK_SHARE = 20
# Seconds to wait for a submission that is in progress when the run ends.
_LAST_PATIENCE = 30.0
_PAUSE = 0.2
_FAULT = "The run cannot check its workers at the moment"


class AllocatedWorkers:
    """Workers in allocations; see `WorkerProvider`.

    A thread of its own talks to the scheduler, which may take minutes to answer. Meanwhile the run
    continues to report results.
    """

    def __init__(
        self,
        root: Root,
        paths: MachinePaths,
        machine: Machine,
        scheduler_of: Callable[[str], Scheduler],
        controller: str,
        logger: LoggerExecutorInterface,
        last_patience: float = _LAST_PATIENCE,
    ) -> None:
        """Ask the scheduler for the resources of its nodes that the machine does not give.

        `scheduler_of`: makes the scheduler for the allocations of a controller. `last_patience`:
        seconds to wait at the end for a submission that is in progress. Raises KochiError.
        """
        self._paths = paths
        unsure = root if is_found(machine) else None
        self._machine = machine = with_file_to_edit(machine)
        self._controller = controller
        self._logger = logger
        self._notices = Notices(logger, repeat_faults=math.inf)
        self._scheduler = scheduler_of(controller)
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._questions = Questions(logger)
        failed_starts = FailedStarts(self._scheduler.can_exclude, logger, root_if_unsure=unsure)
        self._orphaned = OrphanedAllocations(paths, scheduler_of)
        self._tracker = Tracker(
            *(paths, self._scheduler, controller, self._questions, failed_starts),
            *(self._orphaned, logger),
        )
        self._submitter = Submitter(
            *(root, paths, machine, self._scheduler, controller),
            *(self._tracker, self._questions, failed_starts, logger, self._stopping),
        )
        self._provision = Provision(
            *(machine, self._submitter, self._tracker, failed_starts, logger),
            paused=PausedBatches(paths),
        )
        self._last_patience = last_patience
        self._lock = threading.Lock()
        self._requests: dict[str, AllocationRequest] = {}  # by queue, of all queues
        self._left_to_others: set[str] = set()  # queues, as of the last successful look
        self._pending: dict[str, Sequence[Ticket]] = {}
        self._seen: dict[int, str] = {}  # the allocations of workers that were there, by number
        self._failure: Exception | None = None
        self._has_started = False
        self._has_stopped = False
        self._thread = threading.Thread(target=self._run, name="kochi-allocations", daemon=True)

    # ---- WorkerProvider

    @property
    def takes_requests(self) -> bool:
        return True

    @property
    def usual_nodes(self) -> int:
        return self._machine.allocation.nodes

    @property
    def have_one_size(self) -> bool:
        return self._machine.scheduler is None

    def serve(self, queues: Sequence[str], request: AllocationRequest = NO_REQUEST) -> None:
        with self._lock:
            self._requests.update(dict.fromkeys(queues, request))
        self._start()

    def adopt(self, controllers: Sequence[str]) -> None:
        if controllers:
            self._orphaned.adopt(controllers)
            self._start()

    def _start(self) -> None:
        # Once: the thread may have failed, and `look_after` reports that.
        with self._lock:
            is_first = not self._has_started and not self._stopping.is_set()
            self._has_started |= is_first
        if is_first:
            self._thread.start()

    def will_serve(self, queue: str) -> bool:
        try:
            shared = shared_workers(self._paths, queue)
        except OSError:
            return queue not in self._left_to_others  # as far as is known
        if any(worker.controller is None for worker in shared):
            self._left_to_others.add(queue)
            return False
        self._left_to_others.discard(queue)
        return True

    def fit(
        self, rule: str, wanted: Resources, request: AllocationRequest = NO_REQUEST
    ) -> Resources:
        machine = self._machine.name
        try:
            self._scheduler.check(request, wanted.gpus or request.gpus)
            limits = self._submitter.limits(request)
        except RefusedError as error:
            raise KochiError(f"rule {rule}: {error.message}", error.hint) from error
        if why := obstacle(wanted, limits):
            raise KochiError(
                f"rule {rule}: no allocation on machine {machine} can run it: {why}",
                how_to_fit(self._machine, exceeded(wanted, limits), limits.seconds),
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
        """Nothing to note: the arrival of a worker counts, not its jobs."""

    @property
    def go_on_alone(self) -> bool:
        return True

    def leave(self, is_needed: bool) -> None:
        self._end_thread(lambda: False)
        self._has_stopped = True
        if is_needed or not self._submitter.has_requested:
            return
        try:
            found = self._scheduler.find() or {}
            if pending := [id for id, each in found.items() if each.state == "pending"]:
                self._scheduler.cancel(pending)
        except KochiError as error:
            self._logger.warning(
                f"Allocations that have not begun could not be cancelled: {error.message}\n"
                f"To cancel all allocations of this run, type: {self._scheduler.how_to_cancel}"
            )

    def _end_thread(self, is_urgent: Callable[[], bool]) -> None:
        self._stopping.set()
        self._wake.set()
        self._scheduler.give_up()
        deadline = time.monotonic() + self._last_patience
        while self._thread.is_alive() and time.monotonic() < deadline and not is_urgent():
            self._thread.join(_PAUSE)

    def stop(self, is_urgent: Callable[[], bool] = lambda: False) -> None:
        self._end_thread(is_urgent)
        if self._has_stopped:
            return
        self._has_stopped = True
        # An allocation that is being submitted may come although its number is not known.
        if self._submitter.has_requested or self._thread.is_alive():
            has_room = self._has_room()
            may_leave = has_room and not self._thread.is_alive() and not is_urgent()
            there = self._allocations_with_worker() if may_leave else set()
            end_allocations(
                *(self._scheduler, self._logger, is_urgent),
                END_PATIENCE if has_room else END_PATIENCE_WITHOUT_ROOM,
                with_worker=there,
                without={each.id for each in self._tracker.coming()} - there,
            )
        if self._submitter.has_requested and self._thread.is_alive():
            self._logger.warning(
                "The scheduler may still start an allocation. Its worker would leave at once. "
                f"To cancel it, type: {self._scheduler.how_to_cancel}"
            )
        self._tracker.cancel_orphaned()

    def _allocations_with_worker(self) -> set[str]:
        """As far as is known."""
        with contextlib.suppress(OSError):
            there = [worker for queue in self._requests for worker in self._workers_of(queue)]
            return {worker.allocation for worker in there if worker.allocation is not None}
        return set()

    def _has_room(self) -> bool:
        """Whether KOCHI_ROOT has room for a write, as far as this is known."""
        with contextlib.suppress(OSError):
            return has_room(self._paths.directory)
        return True

    # ---- the thread

    def _run(self) -> None:
        try:
            self._tracker.cancel_orphaned()
            self._look_until_the_end()
        except Exception as error:
            # The run must learn of any error: its jobs would wait for ever.
            with self._lock:
                self._failure = error

    def _look_until_the_end(self) -> None:
        """Look again and again. Raises KochiError when further looks are useless."""
        while not self._stopping.is_set():
            self._wake.wait(_LOOK)
            self._wake.clear()
            began = time.monotonic()
            try:
                self._turn()
                self._notices.over(_FAULT)
            except UnreachableError as error:
                self._questions.not_answered(error)
            except OSError as error:
                # A full disk or an unavailable file server: the jobs in the workers go on.
                self._notices.fault(_FAULT, error)
            self._stopping.wait(_LOOK_SHARE * min(1.0, time.monotonic() - began))

    def _turn(self) -> None:
        with self._lock:
            pending, requests = self._pending, dict(self._requests)
        queues = sorted({*requests, *pending})
        workers = {queue: self._workers_of(queue) for queue in queues}
        there = [worker for found in workers.values() for worker in found]
        self._seen |= {each.worker: each.allocation for each in there if each.allocation}
        self._tracker.look(there)
        if not self._tracker.is_settled:
            return
        for queue in queues:
            if self._stopping.is_set():
                return
            if not self.will_serve(queue):
                self._notices.forget(queue)
            elif (lack := self._scheduler.lacks) is not None:
                self._wait_for_others(queue, lack, pending)
            else:
                self._provision.provide(queue, requests.get(queue, NO_REQUEST), pending, workers)

    def _wait_for_others(
        self, queue: str, lack: Lack, pending: Mapping[str, Sequence[Ticket]]
    ) -> None:
        if pending.get(queue):
            self._notices.warning(
                f"Queue {queue} needs a worker that you start: {lack.reason}. To start one, type: "
                f"kochi alloc -m {self._machine.name} -q {queue} {lack.options}",
                key=queue,
            )

    def _workers_of(self, queue: str) -> list[WorkerState]:
        found = shared_workers(self._paths, queue, self._controller)
        return [worker for worker in found if worker.controller == self._controller]
