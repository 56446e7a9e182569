"""The allocations of a run: how they are requested, awaited and cancelled, and how they fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.allocation.failures import FailedStarts, was_written, where_log_is
from snakemake_kochi.allocation.notes import note_allocations
from snakemake_kochi.allocation.packing import Supply
from snakemake_kochi.allocation.request import (
    WorkerCommand,
    nodes_of,
    settings_of,
    unmet_cores,
    wanted_of,
)
from snakemake_kochi.allocation.sizing import Shape
from snakemake_kochi.backoff import Backoff
from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import has_room, make_directory
from snakemake_kochi.location import Location, is_found, with_file_to_edit
from snakemake_kochi.notices import Notices
from snakemake_kochi.schedulers.commands import Questions, WaitReasons
from snakemake_kochi.schedulers.interface import (
    NO_REQUEST,
    Allocation,
    AllocationRequest,
    Limits,
    RefusedError,
    Scheduler,
    State,
    UnreachableError,
)

# Seconds in which an allocation that has lost its worker mostly ends, or waits again.
_SETTLING = 15.0
_LATE = 120.0  # seconds after which a person is told that an allocation runs without a worker
_AFTER_REFUSAL = 60.0  # seconds before more is requested, while workers exist
_WITHOUT_ROOM = 5.0  # seconds before more is requested, on a full disk


@dataclass
class Requested:
    """One allocation.

    `state`: the last one that the scheduler reported. `stays`: its worker stays although it is
    idle. `had_worker`: one has come. `gone_since`: when the last one was seen to be gone.
    """

    id: str
    queue: str
    supply: Supply
    stays: bool
    since: float
    state: State = "pending"
    had_worker: bool = False
    gone_since: float | None = None

    @property
    def is_coming(self) -> bool:
        """Whether a worker may still come; after a first one only if it was requeued."""
        return not self.had_worker or (self.gone_since is not None and self.state == "pending")

    @property
    def is_settled(self) -> bool:
        """Whether it is known if another worker will come."""
        is_gone = self.gone_since is not None and self.state != "pending"
        return not is_gone or time.monotonic() - (self.gone_since or 0.0) >= _SETTLING


class Allocations:
    """Those of one run; one thread calls it, and another one after that has ended.

    `has_requested`: whether anything was submitted, with or without an answer.
    """

    def __init__(
        self,
        location: Location,
        run: int,
        scheduler: Scheduler,
        stopping: threading.Event,
        logger: LoggerExecutorInterface,
    ) -> None:
        """Ask the scheduler for the limits that the machine does not give. Raises KochiError.

        `stopping`: set when nothing more may be submitted.
        """
        self._location = location
        self._paths = location.machine_paths
        self._machine = with_file_to_edit(location.machine)
        self._run = str(run)
        self._scheduler = scheduler
        self._stopping = stopping
        self._logger = logger
        self._notices = Notices(logger)
        self._reasons = WaitReasons()
        unsure = location.root if is_found(location.machine) else None
        self.failed_starts = FailedStarts(scheduler.can_exclude, logger, root_if_unsure=unsure)
        self.questions = Questions(logger)
        # A request may select other nodes, which have other limits.
        self._limits: dict[AllocationRequest, Limits] = {NO_REQUEST: scheduler.limits()}
        if unmet := unmet_cores(self._machine, self._limits[NO_REQUEST]):
            logger.warning(unmet)
        self._all: dict[str, Requested] = {}
        self._submitted: list[str] = []
        self._submissions, self._cancellations = Backoff(), Backoff()
        self.has_requested = False

    # ---- what is requested

    def limits(self, request: AllocationRequest) -> Limits:
        """Asks the scheduler once for each kind of nodes. Raises KochiError."""
        nodes = nodes_of(request)
        if nodes not in self._limits:
            self._limits[nodes] = self._scheduler.limits(nodes)
        return self._limits[nodes]

    @property
    def may_submit(self) -> bool:
        """Whether no pause is in progress."""
        return self._submissions.is_due and self.failed_starts.may_request

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

        `is_alone`: no worker exists that could go on after a refusal. In that case raises
        RefusedError, or WorkerError. `purpose`: see `Wanted`.
        """
        make_directory(self._paths.allocations)
        if not has_room(self._paths.allocations):  # no worker could register itself
            self._submissions.hold(_WITHOUT_ROOM)
            return False
        excluded = self.failed_starts.excluded
        wanted = wanted_of(shape, request, self.limits(request), count, excluded, purpose)
        own = self._location.root, self._machine, self._scheduler, self._run
        settings = settings_of(*own, queue, request, shape, stays)
        worker = WorkerCommand(settings, self._machine.load_env_on_machine)
        self.has_requested = True
        try:
            ids = self._scheduler.submit(wanted, worker, self._submitted)
        except RefusedError as error:
            self._refused(error, is_alone)
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
        self.questions.answered()
        self.questions.later()
        self._submitted += ids
        note_allocations(self._paths, self._run, ids, wanted.describe())
        supply, now = Supply(shape.capacity, shape.seconds), time.monotonic()
        self._all |= {each: Requested(each, queue, supply, stays, now) for each in ids}
        if count == 1:
            many, which, logs = "an allocation", ids[0], f"log, once it runs: {worker.log(ids[0])}"
        else:
            many, which = f"{count} allocations", f"{ids[0]} to {ids[-1]}"
            logs = f"logs, once they run: {worker.log('*')}"
        self._logger.info(f"Requested {many} of {wanted.describe()}: {which}, {logs}")
        return True

    def _refused(self, error: RefusedError, is_alone: bool) -> None:
        if is_alone:
            if self.failed_starts.excluded:
                raise self.failed_starts.error(error.message) from error
            raise error
        self._submissions.hold(_AFTER_REFUSAL)  # mostly a limit on the number of allocations
        said = "No more allocations for now; the earlier ones go on."
        self._notices.info(f"{said} {error.message}. {error.hint or ''}".rstrip())

    def cancel(self, ids: Collection[str], have_workers: bool = False) -> bool:
        """Cancel some; returns whether that was possible. Otherwise it may be tried again.

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
        for each in ids:
            self._all.pop(each, None)
        return True

    # ---- what becomes of them

    def all(self) -> list[Requested]:
        return list(self._all.values())

    def coming(self, queue: str | None = None) -> list[Requested]:
        """Those whose worker may still come: of one queue, or all."""
        return [each for each in self.all() if each.is_coming and queue in (None, each.queue)]

    @property
    def staying(self) -> int:
        """The number of those with a worker that stays, and which exists or may come."""
        return sum(e.stays and (e.is_coming or e.gone_since is None) for e in self.all())

    @property
    def is_settled(self) -> bool:
        return all(each.is_settled for each in self.all())

    def look(self, there: Collection[str], came: Callable[[], Collection[str]]) -> None:
        """Note the workers, and ask the scheduler if they do not tell enough.

        `there`: the allocations with a worker; `came`: those that have had one. Raises
        UnreachableError, or KochiError for a node that does not see KOCHI_ROOT.
        """
        ever = came()
        for each in self.all():
            if not each.had_worker and each.id in ever:
                self.failed_starts.worker_came()
                each.had_worker = True
            if each.id in there:
                if each.gone_since is not None and each.state == "running":
                    self._tell_requeued(each)
                each.gone_since, each.state = None, "running"
            elif each.had_worker and each.gone_since is None:
                each.gone_since = time.monotonic()
                self.questions.at_once()
        if self.questions.is_due() and (self.coming() or not self.is_settled):
            self._ask(came)

    def _ask(self, came: Callable[[], Collection[str]]) -> None:
        try:
            found = self._scheduler.find()
            if found is not None:
                found = self._without_failed(found)
        except RefusedError as error:  # nothing is known, and nothing is lost
            raise UnreachableError(error.message, error.hint) from error
        self.questions.answered()
        if found is None:
            return
        self._note_ends([e for e in self.all() if self._has_ended(e, found.get(e.id))], found, came)
        for each in self.all():
            self._note(each, found[each.id])
        waiting = [found[each.id] for each in self.coming()]
        for line in self._reasons.lines(waiting):
            self._logger.info(line)
        if not self.is_settled:
            self.questions.soon()

    @staticmethod
    def _has_ended(each: Requested, seen: Allocation | None) -> bool:
        # Without a scheduler to ask, a worker that has left has left for good.
        if seen is not None and not seen.is_certain and each.had_worker:
            return each.gone_since is not None
        return seen is None or seen.state == "ended"

    def _note(self, each: Requested, seen: Allocation) -> None:
        if (
            each.had_worker
            and seen.is_certain
            and (each.state, seen.state) == ("running", "pending")
        ):
            self._tell_requeued(each)
        if seen.is_certain or not each.had_worker:
            each.state = seen.state
        is_late = time.monotonic() - each.since > _LATE
        if is_late and seen.state == "running" and not each.had_worker:
            log = self._paths.allocation_log(self._run, each.id)
            self._notices.info(
                f"Allocation {each.id} runs, but its worker has not started; {where_log_is(log)}",
                key=f"late {each.id}",
            )

    def _tell_requeued(self, each: Requested) -> None:
        self._logger.warning(
            f"The scheduler requeued allocation {each.id}: its unfinished jobs are "
            "begun again, there when it has begun again, or in others"
        )

    def _without_failed(self, found: Mapping[str, Allocation]) -> dict[str, Allocation]:
        """Cancel those that are held because a node could not begin them. Raises KochiError.

        Perhaps no operator releases them, and another one may begin on another node.
        """
        failed = {
            each: replace(found[each], state="ended")
            for each in self._all
            if each in found and found[each].has_failed
        }
        if failed:
            self._scheduler.cancel(failed)
            why = ", ".join(sorted({each.reason for each in failed.values()}))
            self._logger.warning(
                f"Cancelled allocations that were held: {', '.join(failed)} ({why})"
            )
        return {**found, **failed}

    def _note_ends(
        self,
        ended: Sequence[Requested],
        found: Mapping[str, Allocation],
        came: Callable[[], Collection[str]],
    ) -> None:
        for each in ended:
            del self._all[each.id]
        taken = {e.id: found[e.id].reason for e in ended if e.id in found and found[e.id].was_taken}
        if taken:
            told = ", ".join(f"{id} ({reason})" for id, reason in taken.items())
            self._logger.warning(
                f"The scheduler ended allocations of this run: {told}. Their unfinished jobs are "
                "begun again in others, which the run requests."
            )
        without = [each.id for each in ended if not each.had_worker and each.id not in taken]
        if not without or not has_room(self._paths.directory):
            return  # on a full disk none can start, and no node is at fault
        ever = came()  # between two looks
        if not set(ever).isdisjoint(without):
            self.failed_starts.worker_came()
        without = [id for id in without if id not in ever]
        known = {**found, **self._ends([id for id in without if id not in found])}
        cancelled = []
        for id in without:
            end, log = known.get(id), self._paths.allocation_log(self._run, id)
            # If it is not known how it ended, that counts as cancelled, unless it has a log.
            if end.was_cancelled if end else not was_written(log):
                cancelled.append(id)
            else:
                self.failed_starts.failed(id, end, log)
        if cancelled:
            self.failed_starts.cancelled(cancelled)

    def _ends(self, ids: Sequence[str]) -> Mapping[str, Allocation]:
        try:
            return self._scheduler.ends(ids) if ids else {}
        except UnreachableError:
            return {}


def cancel_pending(scheduler: Scheduler) -> list[str]:
    """Cancel the allocations of a run that have not begun; these. Raises KochiError."""
    found = scheduler.find() or {}
    if pending := sorted(each for each in found if found[each].state == "pending"):
        scheduler.cancel(pending)
    return pending


def cancel_of_killed(
    scheduler: Scheduler, logger: LoggerExecutorInterface, notices: Notices
) -> None:
    """Cancel what a killed run, whose jobs this one took over, requested and has not begun.

    Its workers run no other run's jobs, and leave when they have none.
    """
    try:
        if pending := cancel_pending(scheduler):
            logger.info(f"Cancelled allocations of a run that was killed: {', '.join(pending)}")
    except KochiError as error:
        notices.info(
            "Allocations of a run that was killed may still exist. They end by themselves when "
            f"they have no job. {error.message}"
        )
