"""How long a worker will be there."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from snakemake_kochi.errors import WorkerError
from snakemake_kochi.queue.capacity import format_duration

# Seconds between the end of the jobs and the worker's own, to put the tickets back.
_RESERVE = 5.0


class Walltime:
    """The end of a worker that somebody has set, a scheduler mostly; or that there is none.

    Measured by a clock that nobody sets and that goes on while the node sleeps, as the
    scheduler's does.
    """

    def __init__(self, seconds: float | None, grace: float) -> None:
        """`seconds` from now; `grace`: what the jobs get to end, in seconds."""
        self.until = None
        self._end = None
        if seconds is not None:
            moment = datetime.now(UTC) + timedelta(seconds=seconds)
            self.until = moment.isoformat(timespec="seconds")
            self._end = _clock() + seconds - grace - _RESERVE

    def seconds_left(self) -> float | None:
        """Until jobs have to be told to end; negative when it is past, None when nothing limits
        them."""
        return None if self._end is None else self._end - _clock()

    @property
    def is_over(self) -> bool:
        left = self.seconds_left()
        return left is not None and left <= 0


def _clock() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def find_walltime(option: float | None, environment: Mapping[str, str], grace: float) -> Walltime:
    """What a person said (seconds from now), and what Slurm says in the environment: the earlier.

    Raises WorkerError for an option that leaves no time for jobs.
    """
    if option is not None and option <= grace + _RESERVE:
        least = format_duration(grace + _RESERVE)
        raise WorkerError(
            f"a walltime of {format_duration(option)} leaves no time for jobs: {least} are kept "
            "to end them in order",
            "Use a longer one, for example: --walltime 2h",
        )
    limits = [] if option is None else [option]
    with contextlib.suppress(KeyError, ValueError):
        limits.append(float(environment["SLURM_JOB_END_TIME"]) - time.time())
    return Walltime(min(limits, default=None), grace)
