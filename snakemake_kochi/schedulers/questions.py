"""When a scheduler is asked again, and whether it answers."""

from __future__ import annotations

import time
from collections.abc import Callable

from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.backoff import Backoff
from snakemake_kochi.schedulers.interface import UnreachableError

# Seconds between two questions about all allocations; fewer where the answer is about to change.
_QUESTION = 10.0
_SHORT_QUESTION = 1.0


class Questions:
    """The questions of one controller, each about all of its allocations."""

    def __init__(
        self, logger: LoggerExecutorInterface, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._clock = clock
        self._next = 0.0
        self._backoff = Backoff(_QUESTION)
        self._is_unreachable = False

    def is_due(self) -> bool:
        """Whether it is time for a question; the next one is then as far off as usual."""
        if self._clock() < self._next:
            return False
        self._next = self._clock() + _QUESTION
        return True

    def at_once(self) -> None:
        """Something has happened that is worth a question, unless the scheduler gives no answer."""
        if not self._is_unreachable:
            self._next = 0.0

    def soon(self) -> None:
        """The answer is about to change."""
        self._next = self._clock() + _SHORT_QUESTION

    def later(self) -> None:
        """Nothing new is to be expected for a while."""
        self._next = self._clock() + _QUESTION

    def answered(self) -> None:
        self._backoff.worked()
        if self._is_unreachable:
            self._is_unreachable = False
            self._logger.info("The scheduler answers again.")

    def not_answered(self, error: UnreachableError) -> None:
        """Nothing is known, and nothing is lost: the next question comes after a growing pause."""
        self._next = self._clock() + self._backoff.failed()
        if not self._is_unreachable:
            self._is_unreachable = True
            self._logger.warning(
                "The scheduler gives no answer, and is asked again; what runs goes on. "
                f"{error.message}"
            )
