"""The end of a run: its allocations are cancelled, and waited for."""

from __future__ import annotations

import time
from collections.abc import Callable

from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.errors import KochiError
from snakemake_kochi.schedulers.interface import Scheduler, UnreachableError, not_ended

# Seconds in which what was cancelled is to be gone, and in which a scheduler that gives no answer
# is asked again: without one the workers leave by themselves.
_PATIENCE = 45.0
# The same where their workers can write down no end of a job, and the scheduler has to kill them.
PATIENCE_WITHOUT_ROOM = 8.0
_ANSWER_PATIENCE = 20.0
_PAUSE = 0.2
_LONGER_PAUSE = 2.0
# Each pause is so much longer than the one before: nodes that take long to end are not asked about
# hundreds of times.
_SLOWER = 1.3


def end_allocations(
    scheduler: Scheduler,
    logger: LoggerExecutorInterface,
    is_urgent: Callable[[], bool],
    patience: float = _PATIENCE,
) -> None:
    """Cancel all and wait until they have ended; where that does not work, name those that are
    left, and what a person can type. Waited for during `patience` seconds, and not when it becomes
    urgent."""
    began = time.monotonic()
    deadline = began + patience
    pause = _PAUSE
    try:
        if not _cancelled(scheduler, logger, is_urgent, began + _ANSWER_PATIENCE):
            return
        while left := not_ended(scheduler.find() or {}):
            if time.monotonic() > deadline or is_urgent():
                names = ", ".join(left)
                logger.error(f"Allocations that were cancelled, and have not ended yet: {names}")
                return
            time.sleep(pause)
            pause = min(_LONGER_PAUSE, _SLOWER * pause)
    except UnreachableError as error:
        logger.warning(
            "This run's allocations were cancelled; whether they have ended cannot be asked: "
            f"{error.message}"
        )
    except KochiError as error:
        _say_how(scheduler, logger, error)


def _cancelled(
    scheduler: Scheduler,
    logger: LoggerExecutorInterface,
    is_urgent: Callable[[], bool],
    deadline: float,
) -> bool:
    while True:
        try:
            scheduler.cancel()
            return True
        except UnreachableError as error:
            if time.monotonic() > deadline or is_urgent():
                _say_how(scheduler, logger, error)
                return False
            time.sleep(_LONGER_PAUSE)


def _say_how(scheduler: Scheduler, logger: LoggerExecutorInterface, error: KochiError) -> None:
    logger.error(
        f"This run's allocations could not be cancelled: {error.message}\n"
        "Their workers leave by themselves, since the run is over. To end them at once, type: "
        f"{scheduler.how_to_cancel}"
    )
