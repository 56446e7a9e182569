"""The end of all allocations with their run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection

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

from snakemake_kochi.errors import KochiError
from snakemake_kochi.schedulers.interface import Scheduler, UnreachableError, not_ended

# Seconds in which workers without jobs have mostly left, and their allocations ended.
_LEAVE_PATIENCE = 5.0
# Seconds within which cancelled allocations should end, and during which a scheduler that gives no
# answer is asked again. Without an answer the workers leave by themselves.
END_PATIENCE = 45.0
# The same if workers cannot record the end of a job, and the scheduler has to kill them.
END_PATIENCE_WITHOUT_ROOM = 8.0
_ANSWER_PATIENCE = 20.0
_ANSWER_PAUSE = 2.0
# The factor by which each pause is longer than the one before: nodes that end slowly do not cause
# hundreds of questions.
_PAUSE, _SLOWER, _LONGEST_PAUSE = 0.2, 1.3, 2.0


def end_allocations(
    scheduler: Scheduler,
    logger: LoggerExecutorInterface,
    is_urgent: Callable[[], bool],
    patience: float = END_PATIENCE,
    sleep: Callable[[float], None] = time.sleep,
    with_worker: Collection[str] = (),
    without: Collection[str] = (),
) -> None:
    """Cancel all allocations and wait until they have ended, for `patience` seconds.

    Those `with_worker` first have some seconds to end as completed ones, while those known to be
    `without` are cancelled. It does not wait when the end becomes urgent. If an allocation is left,
    it names it and the command that cancels it.
    """

    def stop_after(seconds: float) -> Callable[[RetryCallState], bool]:
        is_late = stop_after_delay(seconds)
        return lambda state: is_late(state) or is_urgent()

    def are_left() -> bool:
        found = scheduler.find()
        return found is None or any(each.is_certain for each in not_ended(found).values())

    def waiting_for_ends(seconds: float) -> Retrying:
        return Retrying(
            retry=retry_if_result(bool),
            stop=stop_after(seconds),
            wait=wait_exponential(_PAUSE, _LONGEST_PAUSE, _SLOWER),
            sleep=sleep,
            retry_error_callback=lambda state: state.outcome and state.outcome.result(),
        )

    if with_worker:
        with contextlib.suppress(KochiError):  # then all are cancelled
            if without:
                scheduler.cancel(without)
            scheduler.tell_to_leave(with_worker)
            if not waiting_for_ends(_LEAVE_PATIENCE)(are_left):
                return
    cancelling = Retrying(
        retry=retry_if_exception_type(UnreachableError),
        stop=stop_after(_ANSWER_PATIENCE),
        wait=wait_fixed(_ANSWER_PAUSE),
        sleep=sleep,
        reraise=True,
    )
    is_cancelled = False
    try:
        cancelling(scheduler.cancel)
        is_cancelled = True
        if left := waiting_for_ends(patience)(lambda: not_ended(scheduler.find() or {})):
            names = ", ".join(left)
            logger.error(
                f"These cancelled allocations have not ended yet: {names}\n"
                f"To cancel them again, type: {scheduler.how_to_cancel}"
            )
    except KochiError as error:
        if is_cancelled and isinstance(error, UnreachableError):
            logger.warning(
                "This run cancelled its allocations. The scheduler does not answer whether they "
                f"have ended: {error.message}"
            )
        else:
            logger.error(
                f"This run's allocations could not be cancelled: {error.message}\n"
                "Their workers leave by themselves, since the run is over. To cancel them at once, "
                f"type: {scheduler.how_to_cancel}"
            )
