"""Running one of Slurm's commands."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    sleep_using_event,
    stop_after_delay,
    stop_when_event_set,
    wait_exponential,
    wait_random,
)

from snakemake_kochi.schedulers.interface import RefusedError, UnreachableError
from snakemake_kochi.schedulers.slurm.answers import is_transient
from snakemake_kochi.schedulers.slurm.environment import without_outer_job


@dataclass(frozen=True)
class Pace:
    """Seconds: for one answer of a controller that is busy (Slurm's own patience is ten), for which
    a submission or a first question is tried again, and between two tries at first and at most."""

    answer: float = 60.0
    submission: float = 60.0
    first_pause: float = 1.0
    most_pause: float = 30.0


USUAL = Pace()


def trying_again(
    pace: Pace,
    has_given_up: threading.Event,
    before_pause: Callable[[RetryCallState], None] | None = None,
) -> Retrying:
    """Makes a call again while it raises UnreachableError, and raises the last one."""
    return Retrying(
        retry=retry_if_exception_type(UnreachableError),
        wait=wait_exponential(multiplier=pace.first_pause, max=pace.most_pause)
        + wait_random(0, pace.first_pause),
        stop=stop_after_delay(pace.submission) | stop_when_event_set(has_given_up),
        sleep=sleep_using_event(has_given_up),
        before_sleep=before_pause,
        reraise=True,
    )


class NoProgramError(RefusedError):
    """There is no such program."""


def run(command: Sequence[str], patience: float, text: str = "") -> str:
    """What a command says when it reads `text`, without blanks around it.

    Raises UnreachableError where another try may do, also when there is no answer in `patience`
    seconds; NoProgramError; RefusedError in the command's own words.
    """
    program = command[0]
    environment = without_outer_job()
    if program != "sbatch":  # whose environment is that of the worker, and of its jobs
        environment["LC_ALL"] = "C"
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # Ctrl-C is for Snakemake: it must not end an sbatch that has submitted and not said so.
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise NoProgramError(
            f"there is no program {program} here",
            "Is this a login node of the cluster? If so, type: module load slurm\n"
            "Otherwise, to run on this computer, add to the line: --kochi-where here",
        ) from error
    except OSError as error:
        raise UnreachableError(f"{program} cannot be run: {error}") from error
    with process:
        try:
            output, errors = process.communicate(text, timeout=patience)
        except BaseException as error:
            _end(process)
            if isinstance(error, subprocess.TimeoutExpired):
                raise UnreachableError(f"{program} gave no answer in {patience:.0f} s") from error
            raise
    if process.returncode == 0:
        return output.strip()
    said = errors.strip() or output.strip() or "nothing"
    # Ended by a signal, it has not refused; the login node may be short of memory.
    if process.returncode < 0 or is_transient(said):
        raise UnreachableError(f"{program}: {said}")
    raise RefusedError(f"{program} refused (status {process.returncode}): {said}")


def _end(process: subprocess.Popen[str]) -> None:
    """With what it has started: many sites have a script in place of the program, and what that
    leaves behind might submit later."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
