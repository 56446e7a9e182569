"""Cancelling jobs of a run that is being ended, and waiting for their ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence

from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.files import has_room, is_there
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import cancel_all

_PATIENCE = 15.0  # seconds
_PATIENCE_WITHOUT_ROOM = 1.0
_PAUSE = 0.05


class Cancelling:
    """The jobs that are to end, all told at once when this is made."""

    def __init__(
        self, machine: MachinePaths, jobs: Sequence[int], logger: LoggerExecutorInterface
    ) -> None:
        self._machine = machine
        self._jobs = jobs
        self._logger = logger
        outcomes: Mapping[int, str | Exception]
        try:
            outcomes = cancel_all(machine, jobs)
        except OSError as error:
            # Not even the queues can be listed: the run's own workers end their jobs all the same.
            outcomes = dict.fromkeys(jobs, error)
        # A full disk, say: the others are cancelled all the same.
        untold = {job: why for job, why in outcomes.items() if isinstance(why, Exception)}
        self._told = [job for job in jobs if job not in untold]
        self._cancelled = sum(
            outcome != "ended" for job, outcome in outcomes.items() if job not in untold
        )
        for why, those in _by_reason(untold).items():
            logger.error(f"kochi jobs {_numbers(those)} could not be told to end: {why}")

    def wait(self, is_urgent: Callable[[], bool]) -> None:
        """Until all have ended that were told so: at the longest for a while, or until it becomes
        urgent. On a full disk no end can be written, and none is waited for."""
        patience = _PATIENCE if self._has_room() else _PATIENCE_WITHOUT_ROOM
        deadline = time.monotonic() + patience
        left = self._not_ended(self._told)
        while left and time.monotonic() < deadline and not is_urgent():
            time.sleep(_PAUSE)
            left = self._not_ended(left)

    def _has_room(self) -> bool:
        with contextlib.suppress(OSError):
            return has_room(self._machine.directory)
        return True  # as far as is known

    def _not_ended(self, jobs: Sequence[int]) -> list[int]:
        return [job for job in jobs if not self._has_ended(job)]

    def _has_ended(self, job: int) -> bool:
        with contextlib.suppress(OSError):
            return is_there(self._machine.job(job).result)
        return False  # as far as is known

    def report(self) -> None:
        """Say how many were cancelled, or name what is left."""
        left = self._not_ended(self._jobs)
        numbers = _numbers(left)
        if left and not self._has_room():
            self._logger.error(
                f"KOCHI_ROOT is full: no end could be written of kochi jobs {numbers}. Those in "
                "this run's own workers have ended. Make room; the next run here sees to them all."
            )
        elif left:
            self._logger.error(
                f"Told to end, but not ended yet: kochi jobs {numbers}. See: kochi show jobs; if "
                f"they stay, repeat with: kochi cancel {numbers}"
            )
        elif self._jobs:
            jobs = "1 kochi job" if self._cancelled == 1 else f"{self._cancelled} kochi jobs"
            self._logger.info(f"Cancelled {jobs}; nothing of this run is left.")


def _by_reason(outcomes: Mapping[int, Exception]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for job, error in outcomes.items():
        # Without the file's name, which is another one for each.
        why = error.strerror if isinstance(error, OSError) else None
        found.setdefault(why or str(error), []).append(job)
    return found


def _numbers(jobs: Sequence[int]) -> str:
    return " ".join(map(str, jobs))
