"""The lock of a dead run in a directory: a person agrees that it is removed."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from snakemake_kochi.cli.output import agreed, remark
from snakemake_kochi.errors import KochiError
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.runs import MakingWatch, refusal

_LOOK = 0.5  # seconds between two looks at a run that may be dead


def unlock_dead_run(
    machine: MachinePaths,
    directory: Path,
    wanted: str,
    unlock: bool,
    how: str,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Offer to remove the lock of a dead run, before a run that makes the file `wanted`.

    `wanted` is relative to the directory. `unlock`: remove it without asking. Takes a minute at
    most if the dead run was on another host. `how`: the command to suggest if standard input is no
    terminal. Raises KochiError if it is none, when the answer is no, and when the run that holds
    the lock goes on or is still ending, and makes the same file.
    """
    dead = _dead_runs(machine, directory, wanted, sleep)
    if not dead:
        return
    who = ", ".join(each.who for each in dead)
    said = f"the run that locked this directory is dead ({who}), and its lock is still there"
    question = f"{said[0].upper()}{said[1:]}. Unlock the directory, and continue the run?"
    hint = f"To unlock the directory and continue the run, type: {how}"
    if not unlock and not sys.stdin.isatty():
        raise KochiError(said, hint)
    if unlock:
        remark(f"Unlocked: {said.replace('is still', 'was still')}.")
    elif not agreed(question, False, hint):
        raise KochiError("the directory stays locked; nothing was changed")
    for lock in (lock for each in dead for lock in each.locks):
        if lock.is_there:
            with contextlib.suppress(FileNotFoundError):
                Path(lock.path).unlink()


class _Dead(NamedTuple):
    who: str
    locks: Sequence[Any]  # with `path` and `is_there`


def _dead_runs(
    machine: MachinePaths, directory: Path, wanted: str, sleep: Callable[[float], object]
) -> list[_Dead]:
    """The dead runs that hold the lock. Raises KochiError for one that lives and makes the file."""
    watch, told = MakingWatch(machine, str(directory)), False
    while True:
        found = watch.holders()
        # One that has ended is about to remove its lock.
        open_ = [each for each in found if each[0].makes(wanted) and each[0].state != "ended"]
        for run, life in open_:
            if life == "alive":
                raise refusal(run)
        if not (unknown := [run for run, life in open_ if life == "unknown"]):
            dead = (run for run, life in found if life == "dead")
            return [_Dead(f"{run.who}, since {run.started}", run.locks) for run in dead]
        if not told:
            told = True
            remark(
                f"A run on {unknown[0].node.host} has locked this directory (process "
                f"{unknown[0].process.pid}, since {unknown[0].started}): waiting for a sign of its "
                "life, a minute at most ..."
            )
        sleep(_LOOK)
