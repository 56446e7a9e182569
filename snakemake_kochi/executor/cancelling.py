"""Cancelling jobs of a run that is being ended, and waiting for their ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import cancel_all

_PATIENCE = 15.0  # seconds
_PAUSE = 0.05


class Cancelling:
    """The jobs that are to end, all told at once when this is made."""

    def __init__(
        self, machine: MachinePaths, jobs: Sequence[int], logger: LoggerExecutorInterface
    ) -> None:
        self._machine = machine
        self._jobs = jobs
        self._logger = logger
        self._cancelled = 0
        for job, outcome in cancel_all(machine, jobs).items():
            if isinstance(outcome, Exception):
                # A full disk, say: the others are cancelled all the same.
                logger.error(f"kochi job {job} could not be cancelled: {outcome}")
            else:
                self._cancelled += outcome != "ended"

    def wait(self, is_urgent: Callable[[], bool]) -> None:
        """Until all have ended: at the longest for a while, or until it becomes urgent."""
        deadline = time.monotonic() + _PATIENCE
        left = self._not_ended()
        while left and time.monotonic() < deadline and not is_urgent():
            time.sleep(_PAUSE)
            left = self._not_ended()

    def _not_ended(self) -> list[int]:
        return [job for job in self._jobs if not self._machine.job(job).result.exists()]

    def report(self) -> None:
        """Say how many were cancelled, or name what is left."""
        if left := self._not_ended():
            numbers = " ".join(map(str, left))
            self._logger.error(
                f"Told to end, but not ended yet: kochi jobs {numbers}. See: kochi show jobs; if "
                f"they stay, repeat with: kochi cancel {numbers}"
            )
        elif self._jobs:
            self._logger.info(
                f"Cancelled {self._cancelled} kochi jobs; nothing of this run is left."
            )
