"""Submits and cancels allocations, with growing pauses after refusals and missing answers."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.allocation.failures import FailedStarts
from snakemake_kochi.allocation.packing import Supply
from snakemake_kochi.allocation.request import (
    WorkerCommand,
    nodes_of,
    settings_of,
    unmet_cores,
    wanted_of,
)
from snakemake_kochi.allocation.sizing import Shape
from snakemake_kochi.allocation.tracker import Tracker
from snakemake_kochi.backoff import Backoff
from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import has_room, make_directory
from snakemake_kochi.notices import Notices
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.project.machines import Machine
from snakemake_kochi.queue import note_allocations
from snakemake_kochi.schedulers.commands import Questions
from snakemake_kochi.schedulers.interface import (
    NO_REQUEST,
    AllocationRequest,
    Limits,
    RefusedError,
    Scheduler,
    UnreachableError,
)

# Seconds before more is requested, after a refusal while workers exist, and after a failed write in
# KOCHI_ROOT.
_AFTER_REFUSAL = 60.0
_WITHOUT_ROOM = 5.0


class Submitter:
    """Submits for all queues of one controller; called by one thread.

    `has_requested`: whether anything was submitted, with or without an answer.
    """

    def __init__(
        self,
        root: Root,
        paths: MachinePaths,
        machine: Machine,
        scheduler: Scheduler,
        controller: str,
        tracker: Tracker,
        questions: Questions,
        failed_starts: FailedStarts,
        logger: LoggerExecutorInterface,
        stopping: threading.Event,
        after_refusal: float = _AFTER_REFUSAL,
    ) -> None:
        """Ask the scheduler for the resources of its nodes that the machine does not give.

        `stopping`: set when nothing more may be submitted. Raises KochiError.
        """
        self._root = root
        self._paths = paths
        self._machine = machine
        self._scheduler = scheduler
        self._controller = controller
        self._tracker = tracker
        self._questions = questions
        self._failed_starts = failed_starts
        self._logger = logger
        self._notices = Notices(logger)
        self._stopping = stopping
        self._after_refusal = after_refusal
        # A request may select other nodes, which have other limits.
        self._limits_of: dict[AllocationRequest, Limits] = {NO_REQUEST: scheduler.limits()}
        if unmet := unmet_cores(machine, self._limits_of[NO_REQUEST]):
            logger.warning(unmet)
        self._submitted: list[str] = []
        self._submissions = Backoff()
        self._cancellations = Backoff()
        self.has_requested = False

    def limits(self, request: AllocationRequest) -> Limits:
        """The limits for a request. Raises KochiError.

        Asks the scheduler once for each kind of nodes.
        """
        nodes = nodes_of(request)
        if nodes not in self._limits_of:
            self._limits_of[nodes] = self._scheduler.limits(nodes)
        return self._limits_of[nodes]

    @property
    def may_submit(self) -> bool:
        """Whether no pause is in progress."""
        return self._submissions.is_due and self._failed_starts.may_request

    def submit(
        self,
        queue: str,
        request: AllocationRequest,
        shape: Shape,
        count: int,
        stays: bool,
        is_alone: bool,
        purpose: str,
    ) -> bool:
        """Request allocations, each with a worker for a queue; returns whether that worked.

        `stays`: whether the worker stays although it is idle. `is_alone`: no worker exists that
        could go on after a refusal. In that case raises RefusedError, or WorkerError. `purpose`:
        see `Wanted`.
        """
        excluded = self._failed_starts.excluded
        wanted = wanted_of(shape, request, self.limits(request), count, excluded, purpose)
        settings = settings_of(
            *(self._root, self._machine, self._scheduler, self._controller),
            *(queue, request, shape, stays),
        )
        worker = WorkerCommand(settings, self._machine.load_env_on_machine)
        make_directory(self._paths.allocations)
        if not has_room(self._paths.allocations):
            # No worker could register itself. The run's queues are watched for a full disk, too.
            self._submissions.hold(_WITHOUT_ROOM)
            return False
        self.has_requested = True
        try:
            ids = self._scheduler.submit(wanted, worker, self._submitted)
        except RefusedError as error:
            if is_alone:
                if self._failed_starts.excluded:
                    raise self._failed_starts.error(error.message) from error
                raise
            # Mostly a limit on the number of allocations.
            self._submissions.hold(self._after_refusal)
            said = "No more allocations for now; the earlier ones go on."
            self._notices.info(f"{said} {error.message}. {error.hint or ''}".rstrip())
            return False
        except UnreachableError as error:
            # Pauses of its own: the scheduler may answer other questions meanwhile.
            self._submissions.failed()
            if not self._stopping.is_set():
                self._notices.info(
                    f"The run cannot request allocations now, and tries again. {error.message}"
                )
            return False
        self._submissions.worked()
        self._questions.answered()
        self._submitted += ids
        note_allocations(self._paths, self._controller, ids, wanted.describe())
        self._tracker.add(ids, queue, Supply(shape.capacity, shape.seconds), stays)
        self._questions.later()
        if count == 1:
            many, which, logs = "an allocation", ids[0], f"log, once it runs: {worker.log(ids[0])}"
        else:
            many, which = f"{count} allocations", f"{ids[0]} to {ids[-1]}"
            logs = f"logs, once they run: {worker.log('*')}"
        self._logger.info(f"Requested {many} of {wanted.describe()}: {which}, {logs}")
        return True

    def cancel(self, ids: Sequence[str], have_workers: bool = False) -> bool:
        """Cancel allocations; returns whether that was possible. Otherwise it may be tried again.

        Nothing depends on it: workers without jobs leave by themselves. Those that `have_workers`
        end as completed ones.
        """
        if not self._cancellations.is_due:
            return False
        try:
            (self._scheduler.tell_to_leave if have_workers else self._scheduler.cancel)(ids)
        except KochiError as error:
            self._cancellations.failed()
            self._notices.info(f"Allocations cannot be cancelled at the moment: {error.message}")
            return False
        self._cancellations.worked()
        self._tracker.drop(ids)
        return True
