"""The lock of a dead run in a directory: a person agrees that it is removed."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from snakemake_kochi.cli.output import agreed, remark
from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import is_same_directory
from snakemake_kochi.next import IS_NEXT
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import this_node
from snakemake_kochi.queue.controllers import (
    ControllerState,
    OtherControllers,
    list_controllers,
    may_make,
    read_controller,
)

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
    dead = (_dead_next if IS_NEXT else _dead_old)(machine, directory, wanted, sleep)
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


def _dead_next(
    machine: MachinePaths, directory: Path, wanted: str, sleep: Callable[[float], object]
) -> list[_Dead]:
    """The dead runs that hold the lock. Raises KochiError for one that lives and makes the file."""
    from snakemake_kochi.next.runs import Holders, refusal

    holders, told = Holders(machine, str(directory)), False
    while True:
        found = holders.look()
        # One that has ended is about to remove its lock.
        open_ = [each for each in found if each[0].makes(wanted) and not each[0].has_ended]
        for run, life in open_:
            if life == "alive":
                raise refusal(run)
        if not (unknown := [run for run, life in open_ if life == "unknown"]):
            dead = (run for run, life in found if life == "dead")
            return [
                _Dead(f"process {r.process} on {r.host}, since {r.started}", r.locks) for r in dead
            ]
        if not told:
            told = True
            remark(
                f"A run on {unknown[0].host} has locked this directory (process "
                f"{unknown[0].process}, since {unknown[0].started}): waiting for a sign of its "
                "life, a minute at most ..."
            )
        sleep(_LOOK)


def _dead_old(
    machine: MachinePaths, directory: Path, wanted: str, sleep: Callable[[float], object]
) -> list[_Dead]:
    return [
        _Dead(f"process {each.process.pid} on {each.node.host}, since {each.started}", each.locks)
        for each in holders(machine, directory)
        if _is_dead(machine, each, wanted, sleep)
    ]


def holders(machine: MachinePaths, directory: Path) -> list[ControllerState]:
    """The runs of Kochi, alive or dead, that have locked a directory."""
    return [
        state
        for state in list_controllers(machine)
        if any(lock.is_there for lock in state.locks)
        and state.directory is not None
        and is_same_directory(state.directory, str(directory))
    ]


def _is_dead(
    machine: MachinePaths,
    holder: ControllerState,
    wanted: str,
    sleep: Callable[[float], object],
) -> bool:
    """Whether the run is certainly dead, with its process.

    Raises KochiError if the run is alive, or perhaps alive, and makes the wanted file.
    """
    from snakemake_kochi.detached.control import Ends

    is_over = Ends(machine).is_over
    others = OtherControllers(machine, "", "", is_over, among=[holder])
    told = False
    try:
        while watched := others.look():
            left = watched[0].seconds_left
            if not told and left is not None:
                told = True
                remark(
                    f"A run on {holder.node.host} has locked this directory (process "
                    f"{holder.process.pid}, since {holder.started}): waiting for a sign of its "
                    f"life, {left:.0f} s at most ..."
                )
            sleep(_LOOK)
        if others.ended:
            return False  # it has ended by itself: Snakemake is about to remove its lock
        with contextlib.suppress(OSError, DamagedFileError):
            state = read_controller(machine, holder.identity)
            if not state.left or state.is_process_gone or is_over(state, True):
                return True
            raise _still_ends(machine, state)
    except KochiError:
        if may_make(machine, holder.identity, wanted):
            raise
    return False


def _still_ends(machine: MachinePaths, state: ControllerState) -> KochiError:
    host, pid = state.node.host, state.process.pid
    hint = "Wait a moment, and try again."
    if not this_node().can_see(state.node):
        gone = shlex.quote(str(machine.controller(state.identity).gone))
        hint += (
            f" If the error stays, see whether the process exists. On {host}, type: ps {pid}\n"
            f"If it does not exist, type: touch {gone}"
        )
    return KochiError(
        f"the run that locked this directory was interrupted, and is still ending (process {pid} "
        f"on {host}, since {state.started})",
        hint,
    )
