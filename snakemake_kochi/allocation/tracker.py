"""Tracks the allocations of a run: their requests, their workers, and their ends.

Also the allocations of controllers that died: it cancels the idle ones.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.allocation.failures import FailedStarts, was_written, where_log_is
from snakemake_kochi.allocation.packing import Supply
from snakemake_kochi.allocation.silent import SilentWorkers
from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import has_room
from snakemake_kochi.notices import Notices, Told
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import WorkerState, list_workers
from snakemake_kochi.queue.workers import read_worker
from snakemake_kochi.schedulers.commands import Questions, WaitReasons
from snakemake_kochi.schedulers.interface import (
    Allocation,
    RefusedError,
    Scheduler,
    State,
    UnreachableError,
    not_ended,
)

# Seconds. When a worker has left, its allocation has mostly ended a moment later, or waits again.
_SETTLING = 15.0
# Seconds after which the user is told of an allocation that runs and has no worker.
_LATE = 120.0


@dataclass
class Requested:
    """One allocation.

    `state`: the last one that the scheduler reported. `stays`: its worker stays although it is
    idle. `had_worker`: a worker has come. `gone_since`: when the run noticed that its worker had
    gone, in monotonic seconds as `since`.
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
        """Whether a worker may still come.

        After a first one only if the scheduler requeued the allocation.
        """
        return not self.had_worker or (self.gone_since is not None and self.state == "pending")


class Tracker:
    """The allocations of one controller that have not ended, from its workers and its scheduler.

    Tells the user what is new, and cancels orphaned allocations. One thread calls it, and another
    one after that has ended.
    """

    def __init__(
        self,
        paths: MachinePaths,
        scheduler: Scheduler,
        controller: str,
        questions: Questions,
        failed_starts: FailedStarts,
        orphaned: OrphanedAllocations,
        logger: LoggerExecutorInterface,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths = paths
        self._scheduler = scheduler
        self._controller = controller
        self._questions = questions
        self._failed_starts = failed_starts
        self._orphaned = orphaned
        self._logger = logger
        self._notices = Notices(logger)
        self._wait_reasons = WaitReasons(clock)
        self._clock = clock
        self._silent = SilentWorkers(paths, clock)
        self._all: dict[str, Requested] = {}

    # ---- what was requested

    def add(self, ids: Iterable[str], queue: str, supply: Supply, stays: bool) -> None:
        for each in ids:
            self._all[each] = Requested(each, queue, supply, stays, self._clock())

    def drop(self, ids: Iterable[str]) -> None:
        for each in ids:
            self._all.pop(each, None)

    def all(self) -> list[Requested]:
        return list(self._all.values())

    def coming(self, queue: str | None = None) -> list[Requested]:
        """The allocations whose worker may still come: of one queue, or all."""
        return [
            each for each in self._all.values() if each.is_coming and queue in (None, each.queue)
        ]

    def is_kept_waiting(self, queue: str, seconds: float) -> bool:
        """Whether an allocation for this queue was requested that long ago and had no worker."""
        now = self._clock()
        return any(
            not each.had_worker and now - each.since >= seconds for each in self.coming(queue)
        )

    @property
    def staying(self) -> int:
        """The number of allocations with a worker that stays, and which exists or may come."""
        return sum(
            each.stays and (each.is_coming or each.gone_since is None)
            for each in self._all.values()
        )

    @property
    def is_settled(self) -> bool:
        """Whether it is known of each allocation that lost its worker if another one will come."""
        return not any(map(self._is_unsettled, self._all.values()))

    def _is_unsettled(self, each: Requested) -> bool:
        if each.gone_since is None or each.state == "pending":
            return False
        return self._clock() - each.gone_since < _SETTLING

    # ---- what becomes of it

    def look(self, workers: Sequence[WorkerState]) -> None:
        """Note all workers of the run that have not gone.

        If they do not tell enough, ask the scheduler. Raises UnreachableError.
        """
        has_gone = self.note_workers(workers)
        is_silent = self._silent.look(workers)
        if has_gone or self._orphaned.have_room:
            self._questions.at_once()
        if self._questions.is_due():
            if has_gone or is_silent or self.coming() or not self.is_settled:
                self._ask()
            self.cancel_orphaned()

    def note_workers(self, workers: Iterable[WorkerState]) -> bool:
        """Note all workers that have not gone.

        Returns whether an allocation has lost its last one.
        """
        there = {worker.allocation for worker in workers}
        has_gone = False
        for each in self._all.values():
            if each.id in there:
                if not each.had_worker:
                    self._failed_starts.worker_came()
                each.had_worker, each.gone_since, each.state = True, None, "running"
            elif each.had_worker and each.gone_since is None:
                each.gone_since = self._clock()
                has_gone = True
        return has_gone

    def _ask(self) -> None:
        try:
            found = self._scheduler.find()
            if found is not None:
                found = self._without_failed(found)
        except RefusedError as error:
            # Nothing is known, and nothing is lost.
            raise UnreachableError(error.message, error.hint) from error
        self._questions.answered()
        if found is None:
            return
        self._note_ends(self.note_answer(found), found)
        waiting = [found[each.id] for each in self.coming() if each.id in found]
        for line in self._wait_reasons.lines(waiting):
            self._logger.info(line)
        running = {each.id for each in found.values() if each.state == "running"}
        self._tell_late(running)
        # A waiting allocation has no worker any more: it was requeued.
        may_have_worker = {each.id for each in found.values() if not each.is_certain}
        self._silent.presume_dead(running | may_have_worker)
        if not self.is_settled:
            self._questions.soon()

    def note_answer(self, found: Mapping[str, Allocation]) -> list[Requested]:
        """Note the scheduler's report on all allocations.

        Drops and returns those that have ended.
        """
        ended = []
        for each in self.all():
            allocation = found.get(each.id)
            # Without a scheduler to ask, a worker that has left has left for good.
            is_guess = allocation is not None and not allocation.is_certain
            if is_guess and each.had_worker:
                if each.gone_since is not None:
                    ended.append(self._all.pop(each.id))
            elif allocation is None or allocation.state == "ended":
                ended.append(self._all.pop(each.id))
            else:
                if each.had_worker and (each.state, allocation.state) == ("running", "pending"):
                    self._logger.warning(
                        f"The scheduler requeued allocation {each.id}: its unfinished jobs are "
                        "begun again, there when it has begun again, or in others"
                    )
                each.state = allocation.state
        return ended

    def _without_failed(self, found: Mapping[str, Allocation]) -> dict[str, Allocation]:
        """Cancel allocations that are held because a node could not begin them. Raises KochiError.

        Perhaps no operator is available to release them, and another allocation may begin on
        another node.
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

    def _note_ends(self, ended: Iterable[Requested], found: Mapping[str, Allocation]) -> None:
        taken = {
            each.id: found[each.id].reason
            for each in ended
            if each.id in found and found[each.id].was_taken
        }
        if taken:
            told = ", ".join(f"{id} ({reason})" for id, reason in taken.items())
            self._logger.warning(
                f"The scheduler ended allocations of this run: {told}. Their unfinished jobs are "
                "begun again in others, which the run requests."
            )
        without = [each.id for each in ended if not each.had_worker and each.id not in taken]
        if not without or not has_room(self._paths.directory):
            return  # on a full disk none can start, and no node is at fault
        came = self._had_worker(without)
        if came:
            self._failed_starts.worker_came()
        unknown = [id for id in without if id not in came and id not in found]
        known = {**found, **self._ends(unknown)}
        cancelled = []
        for id in without:
            if id in came:
                continue
            end, log = known.get(id), self._paths.allocation_log(self._controller, id)
            if _was_cancelled(end, log):
                cancelled.append(id)
            else:
                self._failed_starts.failed(id, end, log)
        if cancelled:
            self._failed_starts.cancelled(cancelled)

    def _ends(self, ids: Sequence[str]) -> Mapping[str, Allocation]:
        try:
            return self._scheduler.ends(ids) if ids else {}
        except UnreachableError:
            return {}

    def _had_worker(self, allocations: Collection[str]) -> set[str]:
        """The allocations in which a worker came and went between two looks."""
        return {
            worker.allocation
            for worker in list_workers(self._paths)
            if worker.allocation is not None
            and worker.allocation in allocations
            and worker.controller == self._controller
        }

    def _tell_late(self, running: Collection[str]) -> None:
        """Name the allocations that run according to the scheduler, and whose worker is overdue."""
        for each in self._all.values():
            is_late = each.id in running and not each.had_worker
            if is_late and self._clock() - each.since > _LATE:
                log = self._paths.allocation_log(self._controller, each.id)
                self._notices.info(
                    f"Allocation {each.id} runs, but its worker has not started; "
                    f"{where_log_is(log)}",
                    key=f"late {each.id}",
                )

    # ---- orphaned ones

    def cancel_orphaned(self) -> None:
        """Cancel the allocations that a killed controller has left and no job needs."""
        if not self._orphaned:
            return
        try:
            if cancelled := self._orphaned.cancel_idle():
                names = ", ".join(cancelled)
                self._logger.info(f"Cancelled allocations of a run that was killed: {names}")
        except (OSError, KochiError) as error:
            why = error.message if isinstance(error, KochiError) else error
            self._notices.info(
                "Allocations of a run that was killed may still exist. They end by themselves when "
                f"they have no job. {why}"
            )


def _was_cancelled(end: Allocation | None, log: Path) -> bool:
    """Whether a person cancelled an allocation that ended like this before its worker started.

    If it is not known how it ended, that counts as cancelled, unless it has a log. A scheduler also
    cancels those that a node could not begin, and then gives that node to nobody.
    """
    return not was_written(log) if end is None else end.was_cancelled


class OrphanedAllocations:
    """Allocations of controllers that died, and whose jobs this controller adopted.

    Their workers run no other run's jobs, so an allocation without a running job is useless.
    """

    def __init__(self, paths: MachinePaths, scheduler_of: Callable[[str], Scheduler]) -> None:
        """`scheduler_of`: makes the scheduler for the allocations of a controller."""
        self._paths = paths
        self._scheduler_of = scheduler_of
        self._schedulers: dict[str, Scheduler] = {}
        self._busy: list[int] = []  # busy workers, at the last look
        self._told = Told()

    def __bool__(self) -> bool:
        return bool(self._schedulers)

    def adopt(self, controllers: Sequence[str]) -> None:
        for controller in controllers:
            self._schedulers[controller] = self._scheduler_of(controller)

    @property
    def have_room(self) -> bool:
        """Whether a worker that had jobs has none any more: others may wait for its nodes."""
        for number in self._busy:
            with contextlib.suppress(OSError, DamagedFileError):
                if not _is_busy(read_worker(self._paths, number)):
                    return True
        return False

    def cancel_idle(self) -> list[str]:
        """Cancel the allocations that run no job; returns each of them once.

        Slurm still lists them for a while. Raises OSError, or KochiError.
        """
        cancelled: list[str] = []
        self._busy = []
        for controller, scheduler in list(self._schedulers.items()):
            found = not_ended(scheduler.find() or {})
            if not found:
                del self._schedulers[controller]
                continue
            workers = [each for each in list_workers(self._paths) if each.controller == controller]
            busy = list(filter(_is_busy, workers))
            self._busy += [worker.worker for worker in busy]
            if idle := sorted(found.keys() - {worker.allocation for worker in busy}):
                scheduler.cancel(idle)
                cancelled += filter(self._told.is_new, idle)
        return cancelled


def _is_busy(worker: WorkerState) -> bool:
    return bool(worker.running) and not worker.is_gone
