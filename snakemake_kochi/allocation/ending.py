"""Cancelling allocations: all at the end of a run, and idle ones of a controller that died."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    retry_if_result,
    stop_after_delay,
    wait_exponential,
    wait_fixed,
)

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.notices import Told
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import WorkerState, list_workers
from snakemake_kochi.queue.workers import read_worker
from snakemake_kochi.schedulers.interface import Scheduler, UnreachableError, not_ended

# Seconds within which cancelled allocations should end, and during which a scheduler that gives no
# answer is asked again. Without an answer the workers leave by themselves.
PATIENCE = 45.0
# The same if workers cannot record the end of a job, and the scheduler has to kill them.
PATIENCE_WITHOUT_ROOM = 8.0
_ANSWER_PATIENCE = 20.0
_ANSWER_PAUSE = 2.0
# The factor by which each pause is longer than the one before: nodes that end slowly do not cause
# hundreds of questions.
_PAUSE, _SLOWER, _LONGEST_PAUSE = 0.2, 1.3, 2.0


def end_allocations(
    scheduler: Scheduler,
    logger: LoggerExecutorInterface,
    is_urgent: Callable[[], bool],
    patience: float = PATIENCE,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Cancel all allocations and wait until they have ended, for `patience` seconds.

    It does not wait when the end becomes urgent. If an allocation is left, it names it and the
    command that cancels it.
    """

    def stop_after(seconds: float) -> Callable[[RetryCallState], bool]:
        is_late = stop_after_delay(seconds)
        return lambda state: is_late(state) or is_urgent()

    cancelling = Retrying(
        retry=retry_if_exception_type(UnreachableError),
        stop=stop_after(_ANSWER_PATIENCE),
        wait=wait_fixed(_ANSWER_PAUSE),
        sleep=sleep,
        reraise=True,
    )
    ending = Retrying(
        retry=retry_if_result(bool),
        stop=stop_after(patience),
        wait=wait_exponential(_PAUSE, _LONGEST_PAUSE, _SLOWER),
        sleep=sleep,
        retry_error_callback=lambda state: state.outcome and state.outcome.result(),
    )
    is_cancelled = False
    try:
        cancelling(scheduler.cancel)
        is_cancelled = True
        if left := ending(lambda: not_ended(scheduler.find() or {})):
            names = ", ".join(left)
            logger.error(f"Allocations that were cancelled, and have not ended yet: {names}")
    except KochiError as error:
        if is_cancelled and isinstance(error, UnreachableError):
            logger.warning(
                "This run's allocations were cancelled. The scheduler gives no answer whether they "
                f"have ended: {error.message}"
            )
        else:
            logger.error(
                f"This run's allocations could not be cancelled: {error.message}\n"
                "Their workers leave by themselves, since the run is over. To end them at once, "
                f"type: {scheduler.how_to_cancel}"
            )


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
