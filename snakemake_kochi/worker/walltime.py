"""The time limit of a worker: a person's, or that of its allocation."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from snakemake_kochi.base import clock
from snakemake_kochi.errors import WorkerError
from snakemake_kochi.processes import ProcessIdentity
from snakemake_kochi.quantities import format_duration
from snakemake_kochi.schedulers.environment import own_allocation
from snakemake_kochi.worker.settings import START_AND_END

TIME_IS_OVER = "its walltime is over"
# A scheduler sends this signal to tell a worker that its time is nearly over.
END_SIGNAL = signal.SIGUSR1
# Seconds between the end of the jobs and the worker's own end, to requeue the tickets.
_RESERVE = 5.0
# Seconds before its end at which a scheduler may signal a worker: Slurm signals up to a minute too
# early.
_ABOUT_OVER = 120.0
_MOST_OF_IT = 0.5
FRESH = 20.0  # seconds after its start during which a worker counts as new
_ROUNDING = 2.0  # seconds by which two rounded times may differ


class Walltime:
    """The time limit of a worker, if any; mostly that of a scheduler.

    It is measured by a clock that cannot be set and that also runs while the node sleeps, like the
    scheduler's clock.
    """

    def __init__(self, seconds: float | None, grace: float, spent: float | None = None) -> None:
        """Begin to measure.

        `seconds`: the limit from now, or None. `grace`: seconds that the jobs get to end. `spent`:
        seconds since the worker's allocation began, if it runs in one.
        """
        self.until = None
        self._over = None if seconds is None else clock.now() + seconds
        self._end = None if self._over is None else self._over - grace - _RESERVE
        self._fresh_until = clock.now() + FRESH
        self._whole = None if seconds is None or spent is None else seconds + spent + _ROUNDING
        if seconds is not None:
            moment = datetime.now(UTC) + timedelta(seconds=seconds)
            self.until = moment.isoformat(timespec="seconds")

    def seconds_left(self) -> float | None:
        """Seconds until jobs must be told to end; negative after that, None without a limit."""
        return None if self._end is None else self._end - clock.now()

    def seconds_for_jobs(self) -> float | None:
        """How long a job may take that begins now; None without a limit."""
        return self._whole if self.is_fresh else self.seconds_left()

    @property
    def is_fresh(self) -> bool:
        """Whether a job may begin that takes all the time of the worker's allocation."""
        return self._whole is not None and clock.now() < self._fresh_until

    def job_ended(self) -> None:
        """Note that the worker has run a job and is no longer fresh."""
        self._fresh_until = 0.0

    @property
    def is_over(self) -> bool:
        left = self.seconds_left()
        return left is not None and left <= 0

    def was_used_by(self, seconds: float, worked: float) -> bool:
        """Whether a job used most of the time of a worker whose time is about over.

        `seconds`: how long the job has run; `worked`: how long the worker has. A requeued job is
        the first that the next worker starts, so it would run out of time there, too.
        """
        is_about_over = self._over is not None and self._over - clock.now() <= _ABOUT_OVER
        return is_about_over and seconds >= _MOST_OF_IT * worked

    def is_shorter_than_allocation_for(self, limit: float) -> bool:
        """Whether an allocation for a job with this limit would be longer than the worker's own.

        `limit` is in seconds.
        """
        return self._whole is not None and limit + START_AND_END > self._whole


def find_walltime(
    option: float | None,
    environment: Mapping[str, str],
    grace: float,
    began: str | None = None,
    requested: float | None = None,
) -> Walltime:
    """The earlier of a person's limit (seconds from now) and the scheduler's limit.

    `began`: when the worker's allocation began, if it runs in one. `requested`: the seconds for
    which the allocation was requested. Raises WorkerError if the option leaves no time for jobs.
    """
    if option is not None and option <= grace + _RESERVE:
        least = format_duration(grace + _RESERVE)
        raise WorkerError(
            f"a walltime of {format_duration(option)} leaves no time for jobs: a worker needs "
            f"{least} to end them",
            "Use a longer walltime, for example: --walltime 2h",
        )
    spent = None if began is None else time.time() - datetime.fromisoformat(began).timestamp()
    left = None if requested is None or spent is None else requested - spent
    own = own_allocation(environment)
    limits = [option, None if own is None else own.seconds_left(left)]
    earliest = min((limit for limit in limits if limit is not None), default=None)
    return Walltime(earliest, grace, spent)


def find_beginning(environment: Mapping[str, str]) -> str:
    """When the allocation of this process began, as ISO 8601 in UTC with microseconds.

    The scheduler reports it. Otherwise it is the start of this process, which has replaced the
    allocation's script.
    """
    own = own_allocation(environment)
    began = None if own is None else own.began
    if began is None:
        process = ProcessIdentity.of(os.getpid())
        assert process is not None
        age = clock.now() - process.start / os.sysconf("SC_CLK_TCK")
        began = time.time() - age
    return datetime.fromtimestamp(began, UTC).isoformat(timespec="microseconds")
