"""How long a worker will be there."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from snakemake_kochi.errors import WorkerError
from snakemake_kochi.quantities import walltime_of
from snakemake_kochi.queue.capacity import format_duration
from snakemake_kochi.queue.processes import ProcessIdentity

# Seconds between the end of the jobs and the worker's own, to put the tickets back.
_RESERVE = 5.0
# Seconds for squeue: a worker does not wait for a controller that is away.
_PATIENCE = 20.0


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
    """What a person said (seconds from now), and what Slurm says: the earlier.

    Raises WorkerError for an option that leaves no time for jobs.
    """
    if option is not None and option <= grace + _RESERVE:
        least = format_duration(grace + _RESERVE)
        raise WorkerError(
            f"a walltime of {format_duration(option)} leaves no time for jobs: {least} are kept "
            "to end them in order",
            "Use a longer one, for example: --walltime 2h",
        )
    limits = [option, _left_by_slurm(environment)]
    return Walltime(min((limit for limit in limits if limit is not None), default=None), grace)


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


def _left_by_slurm(environment: Mapping[str, str]) -> float | None:
    """In seconds; None where Slurm does not limit this process, or does not say so."""
    try:
        return float(environment["SLURM_JOB_END_TIME"]) - time.time()
    except (KeyError, ValueError):
        job = environment.get("SLURM_JOB_ID")
        if array := environment.get("SLURM_ARRAY_JOB_ID"):
            # The last one of an array has the number of the whole array, which stands for all.
            job = f"{array}_{environment.get('SLURM_ARRAY_TASK_ID')}"
        return None if job is None else _asked_of_slurm(job)


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
