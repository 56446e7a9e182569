"""A controller inside a job of Slurm's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from snakemake_kochi.schedulers.settings import AllocationSettings
from snakemake_kochi.schedulers.slurm.commands import run

_PATIENCE = 60.0  # seconds
_ANSWER = 10.0  # the same, of one that watches something else meanwhile
# What says who pays and where: of the rest, a controller needs none.
_OPTIONS = ("partition", "account", "qos", "reservation")


def submit_controller(
    name: str,
    command: str,
    output: Path,
    settings: AllocationSettings,
    arguments: Sequence[str] = (),
) -> str:
    """Have a command for bash run on one core; returns the number of the job. `arguments` are
    further ones for sbatch. Raises RefusedError, or UnreachableError."""
    options = [f"--job-name={name}", f"--output={output}", "--open-mode=append"]
    # Started again by itself it would meet the lock of the one before in its directory.
    options += ["--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--no-requeue"]
    for option in _OPTIONS:
        if (value := getattr(settings, option)) is not None:
            options.append(f"--{option}={value}")
    # Time for the run to end in order, told to the supervisor.
    options += ["--signal=B:USR1@60", *arguments]
    script = f"#!/bin/bash\nexec {command}\n"
    return run(["sbatch", "--parsable", *options], _PATIENCE, script).partition(";")[0]


def controller_job(name: str) -> tuple[str, str, str] | None:
    """Number, state and reason of the job of that name, in Slurm's words; None when it has ended.
    Raises RefusedError, or UnreachableError."""
    said = run(["squeue", "--noheader", "--format=%i|%T|%r", "--me", f"--name={name}"], _PATIENCE)
    if not said:
        return None
    number, state, reason = said.splitlines()[0].split("|", 2)
    return number, state, reason


def has_ended(number: str) -> bool:
    """Whether the job of that number is none that runs, or may come to. Raises RefusedError, or
    UnreachableError."""
    # Asked for by its number, one that is forgotten would be an error like any other.
    return number not in run(["squeue", "--noheader", "--format=%A", "--me"], _ANSWER).split()


def interrupt_controller(number: str, is_pending: bool) -> None:
    """As Ctrl-C; one that has not begun is cancelled. Raises RefusedError, or UnreachableError."""
    how = [] if is_pending else ["--signal=INT", "--batch"]
    run(["scancel", *how, number], _PATIENCE)
