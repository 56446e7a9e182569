"""What has become of the allocations of a run, as its workers show and its scheduler says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.allocation.asked_for import Asked, AskedFor
from snakemake_kochi.allocation.former import FormerAllocations
from snakemake_kochi.allocation.losses import Losses
from snakemake_kochi.allocation.news import Once, Reasons
from snakemake_kochi.allocation.questions import Questions
from snakemake_kochi.allocation.scheduler import (
    Allocation,
    RefusedError,
    Scheduler,
    UnreachableError,
)
from snakemake_kochi.errors import KochiError, WorkerError
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import WorkerState, list_workers

# So many allocations in a row without a worker in them, and something else is wrong.
_MOST_FAILED = 3


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
        logger: LoggerExecutorInterface,
    ) -> None:
        self._paths = paths
        self._scheduler = scheduler
        self._controller = controller
        self._asked = asked
        self._questions = questions
        self._logger = logger
        self._once = Once(logger)
        self._reasons = Reasons()
        self._losses = Losses(paths)
        self._former = FormerAllocations(paths, scheduler_of)
        self._failed = 0  # in a row, without a worker in between

    def succeed(self, controllers: Sequence[str]) -> None:
        """See `interface.Workers`."""
        self._former.add(controllers)

    def look(self, workers: Sequence[WorkerState]) -> None:
        """Take note of all workers of the run that have not gone, and ask the scheduler where they
        do not tell enough. Raises UnreachableError; WorkerError when allocations are of no use."""
        came, went = self._asked.note_workers(workers)
        if came:
            self._failed = 0
        is_silent = self._losses.look(workers)
        if went or self._former.have_room:
            self._questions.at_once()
        if self._questions.is_due():
            if went or is_silent or self._asked.coming() or not self._asked.is_settled:
                self._ask()
            self.cancel_former()

    def cancel_former(self) -> None:
        """Cancel what a controller that was killed has left and nobody needs."""
        if not self._former:
            return
        try:
            if cancelled := self._former.cancel_idle():
                names = ", ".join(cancelled)
                self._logger.info(f"Cancelled allocations of a run that was killed: {names}")
        except (OSError, KochiError) as error:
            why = error.message if isinstance(error, KochiError) else error
            self._once.say(
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
        for asked in self._asked.note_answer(found):
            self._note_end(asked, found.get(asked.id))
        coming = [found[asked.id] for asked in self._asked.coming() if asked.id in found]
        for news in self._reasons.news(coming):
            self._logger.info(news)
        running = {each.id for each in found.values() if each.state == "running"}
        for late in self._asked.late(running):
            log = self._paths.allocation_log(self._controller, late)
            self._once.say(f"Allocation {late} runs, and its worker has not come; its log is {log}")
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

    def _note_end(self, asked: Asked, allocation: Allocation | None) -> None:
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
