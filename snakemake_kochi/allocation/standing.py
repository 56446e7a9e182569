"""What has become of the allocations of a run, as its workers show and its scheduler says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.allocation.asked_for import Asked, AskedFor
from snakemake_kochi.allocation.losses import Losses
from snakemake_kochi.allocation.notices import Reasons
from snakemake_kochi.allocation.orphaned import OrphanedAllocations
from snakemake_kochi.allocation.setbacks import Setbacks, was_written
from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import has_room
from snakemake_kochi.notices import Notices
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import WorkerState, list_workers
from snakemake_kochi.schedulers.interface import (
    Allocation,
    RefusedError,
    Scheduler,
    UnreachableError,
)
from snakemake_kochi.schedulers.questions import Questions


class Standing:
    """Keeps `asked` up to date, tells a person what is new, and ends what a controller that died
    has left. Called by one thread, and by another one after that has ended."""

    def __init__(
        self,
        paths: MachinePaths,
        scheduler_of: Callable[[str], Scheduler],
        scheduler: Scheduler,
        controller: str,
        asked: AskedFor,
        questions: Questions,
        setbacks: Setbacks,
        logger: LoggerExecutorInterface,
    ) -> None:
        self._paths = paths
        self._scheduler = scheduler
        self._controller = controller
        self._asked = asked
        self._questions = questions
        self._logger = logger
        self._notices = Notices(logger)
        self._reasons = Reasons()
        self._losses = Losses(paths)
        self._orphaned = OrphanedAllocations(paths, scheduler_of)
        self._setbacks = setbacks

    def adopt(self, controllers: Sequence[str]) -> None:
        """See `interface.Workers`."""
        self._orphaned.add(controllers)

    def look(self, workers: Sequence[WorkerState]) -> None:
        """Take note of all workers of the run that have not gone, and ask the scheduler where they
        do not tell enough. Raises UnreachableError."""
        came, went = self._asked.note_workers(workers)
        if came:
            self._setbacks.worker_came()
        is_silent = self._losses.look(workers)
        if went or self._orphaned.have_room:
            self._questions.at_once()
        if self._questions.is_due():
            if went or is_silent or self._asked.coming() or not self._asked.is_settled:
                self._ask()
            self.cancel_orphaned()

    def cancel_orphaned(self) -> None:
        """Cancel what a controller that was killed has left and nobody needs."""
        if not self._orphaned:
            return
        try:
            if cancelled := self._orphaned.cancel_idle():
                names = ", ".join(cancelled)
                self._logger.info(f"Cancelled allocations of a run that was killed: {names}")
        except (OSError, KochiError) as error:
            why = error.message if isinstance(error, KochiError) else error
            self._notices.info(
                "Allocations of a run that was killed may be there still; they end by themselves "
                f"when they have nothing to do. {why}"
            )

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
        self._note_ends(self._asked.note_answer(found), found)
        coming = [found[asked.id] for asked in self._asked.coming() if asked.id in found]
        for notice in self._reasons.notices(coming):
            self._logger.info(notice)
        running = {each.id for each in found.values() if each.state == "running"}
        for late in self._asked.late(running):
            log = self._paths.allocation_log(self._controller, late)
            self._notices.info(
                f"Allocation {late} runs, and its worker has not come; its log is {log}"
            )
        # In one that waits there is no worker any more: it was requeued.
        self._losses.declare(running | {each.id for each in found.values() if not each.is_certain})
        if not self._asked.is_settled:
            self._questions.soon()

    def _without_failed(self, found: Mapping[str, Allocation]) -> dict[str, Allocation]:
        """What is held because a node could not begin it has ended: nobody may be there to let it
        go, and on another node another one may begin. Raises KochiError."""
        failed = {
            asked.id: replace(found[asked.id], state="ended")
            for asked in self._asked.all()
            if asked.id in found and found[asked.id].has_failed
        }
        if failed:
            self._scheduler.cancel(failed)
            why = ", ".join(sorted({each.reason for each in failed.values()}))
            self._logger.warning(f"Given back, because it is held: {', '.join(failed)} ({why})")
        return {**found, **failed}

    def _note_ends(self, ended: Iterable[Asked], found: Mapping[str, Allocation]) -> None:
        without = [asked.id for asked in ended if not asked.had_worker]
        if not without or not has_room(self._paths.directory):
            return  # on a full disk none can start, and no node is to blame
        came = self._had_worker(without)
        if came:
            self._setbacks.worker_came()
        unknown = [id for id in without if id not in came and id not in found]
        known = {**found, **self._ends(unknown)}
        cancelled = []
        for id in without:
            if id in came:
                continue
            end, log = known.get(id), self._paths.allocation_log(self._controller, id)
            if end.was_cancelled if end is not None else not was_written(log):
                cancelled.append(id)
            else:
                self._setbacks.failed(id, end, log)
        if cancelled:
            self._setbacks.cancelled(cancelled)

    def _ends(self, ids: Sequence[str]) -> Mapping[str, Allocation]:
        try:
            return self._scheduler.ends(ids) if ids else {}
        except UnreachableError:
            return {}

    def _had_worker(self, allocations: Collection[str]) -> set[str]:
        """Those in which one came and went between two looks."""
        return {
            worker.allocation
            for worker in list_workers(self._paths)
            if worker.allocation is not None
            and worker.allocation in allocations
            and worker.controller == self._controller
        }
