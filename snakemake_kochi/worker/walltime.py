"""How long a worker will be there."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from snakemake_kochi.errors import WorkerError
from snakemake_kochi.quantities import walltime_of
from snakemake_kochi.queue.capacity import format_duration
from snakemake_kochi.queue.explain import FRESH, ROUNDING
from snakemake_kochi.queue.processes import ProcessIdentity

# Seconds that a worker needs of its allocation besides its jobs: to start, and to end in order.
START_AND_END = 60.0
# With this Slurm tells it that its time is about over (`--signal` of sbatch).
END_SIGNAL = signal.SIGUSR1
# Seconds between the end of the jobs and the worker's own, to requeue the tickets.
_RESERVE = 5.0
# Seconds for squeue: a worker does not wait for a controller that is away.
_PATIENCE = 20.0


class Walltime:
    """The end of a worker that somebody has set, a scheduler mostly; or that there is none.

    Measured by a clock that nobody sets and that goes on while the node sleeps, as the
    scheduler's does.
    """

    def __init__(self, seconds: float | None, grace: float, spent: float | None = None) -> None:
        """`seconds` from now; `grace`: what the jobs get to end, in seconds; `spent`: for how long
        the worker's allocation has been there, if it is in one."""
        self.until = None
        self._end = None
        self._fresh_until = _clock() + FRESH
        self._whole = None if seconds is None or spent is None else seconds + spent + ROUNDING
        if seconds is not None:
            moment = datetime.now(UTC) + timedelta(seconds=seconds)
            self.until = moment.isoformat(timespec="seconds")
            self._end = _clock() + seconds - grace - _RESERVE

    def seconds_left(self) -> float | None:
        """Until jobs have to be told to end; negative when it is past, None when nothing limits
        them."""
        return None if self._end is None else self._end - _clock()

    def seconds_for_jobs(self) -> float | None:
        """How long a job may take that begins now, as `queue.seconds_for_jobs` has it."""
        return self._whole if self.is_fresh else self.seconds_left()

    @property
    def is_fresh(self) -> bool:
        """Whether a job may begin that takes all the time of the worker's allocation."""
        return self._whole is not None and _clock() < self._fresh_until

    def job_ended(self) -> None:
        """The worker has been of use, and is no fresh one any more."""
        self._fresh_until = 0.0

    @property
    def is_over(self) -> bool:
        left = self.seconds_left()
        return left is not None and left <= 0


def _clock() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def find_walltime(
    option: float | None,
    environment: Mapping[str, str],
    grace: float,
    began: str | None = None,
    asked: float | None = None,
) -> Walltime:
    """What a person said (seconds from now), and what Slurm says: the earlier. `began`: when the
    worker's allocation did, if it is in one; `asked`: for how many seconds that was asked for.

    Raises WorkerError for an option that leaves no time for jobs.
    """
    if option is not None and option <= grace + _RESERVE:
        least = format_duration(grace + _RESERVE)
        raise WorkerError(
            f"a walltime of {format_duration(option)} leaves no time for jobs: {least} are kept "
            "to end them in order",
            "Use a longer one, for example: --walltime 2h",
        )
    spent = None if began is None else time.time() - datetime.fromisoformat(began).timestamp()
    left = None if asked is None or spent is None else asked - spent
    limits = [option, _left_by_slurm(environment, left)]
    earliest = min((limit for limit in limits if limit is not None), default=None)
    return Walltime(earliest, grace, spent)


def find_beginning(environment: Mapping[str, str]) -> str:
    """When the allocation of this process began, as ISO 8601 in UTC with microseconds: what Slurm
    says, else when this process did, which its script became."""
    try:
        began = float(environment["SLURM_JOB_START_TIME"])  # since 23.02
    except (KeyError, ValueError):
        own = ProcessIdentity.of(os.getpid())
        assert own is not None
        age = _clock() - own.start / os.sysconf("SC_CLK_TCK")
        began = time.time() - age
    return datetime.fromtimestamp(began, UTC).isoformat(timespec="microseconds")


def _left_by_slurm(environment: Mapping[str, str], asked: float | None) -> float | None:
    """In seconds; None where Slurm does not limit this process, or does not say so. `asked`: what
    is left of the time that was asked for."""
    try:
        return float(environment["SLURM_JOB_END_TIME"]) - time.time()
    except (KeyError, ValueError):
        job = environment.get("SLURM_JOB_ID")
        if array := environment.get("SLURM_ARRAY_JOB_ID"):
            # The last one of an array has the number of the whole array, which stands for all.
            job = f"{array}_{environment.get('SLURM_ARRAY_TASK_ID')}"
        # Not for each worker a question to a controller that may have thousands of other jobs.
        if job is None:
            return None
        return _asked_of_slurm(job) if asked is None else asked


def _asked_of_slurm(job: str) -> float | None:
    """Before 23.02 Slurm does not set the variable."""
    # %L: UNLIMITED, NOT_SET, INVALID, or a time as sbatch takes it.
    command = ["squeue", "--noheader", "--format=%L", f"--jobs={job}"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=True,
        )
        return walltime_of(done.stdout.strip())
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
