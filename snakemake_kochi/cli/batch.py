"""`kochi batch`: experiment files on the command line, the lock of a dead run, and Snakemake."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import click

from snakemake_kochi.cli.options import git_remote_option, machine_option
from snakemake_kochi.cli.output import agreed, remark
from snakemake_kochi.enqueue.experiment_files import globs_with, load, path_in_project
from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import is_there
from snakemake_kochi.location import Location, find_location
from snakemake_kochi.paths import MachinePaths, WorkingPaths
from snakemake_kochi.processes import this_node
from snakemake_kochi.queue.controllers import (
    ControllerState,
    OtherControllers,
    is_same_directory,
    list_controllers,
    may_make,
    read_controller,
)
from snakemake_kochi.resources import workflow_directory

_USES_OUR_RULES = re.compile(r"^\s*use\s+rule\s+\*\s+from\s+\w+\s*(#.*)?$", re.MULTILINE)

_DRY_RUN = frozenset({"-n", "--dry-run", "--dryrun"})
_ELSEWHERE = frozenset({"-d", "--directory"})  # Snakemake writes somewhere else
_STATE = ("incomplete", "iocache", "locks", "log", "metadata")  # directories in .snakemake

_LOOK = 0.5  # seconds between two looks at a run that may be dead


@click.command()
@machine_option
@click.argument("file", metavar="FILE.yaml")
@click.argument("name")
@git_remote_option
@click.option("-n", "--dry-run", is_flag=True, help="Show what would run, and run nothing.")
@click.option(
    "--unlock",
    is_flag=True,
    help="Remove the lock of a killed run, once it is certain that the run is dead.",
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[-- SNAKEMAKE OPTIONS]")
def command(
    machine: str | None,
    file: str,
    name: str,
    git_remote: str | None,
    dry_run: bool,
    unlock: bool,
    options: tuple[str, ...],
) -> None:
    """Run batch NAME of an experiment: all its runs that are missing or out of date.

    The same as `snakemake EXPERIMENT_NAME --executor kochi`, in the project's directory.
    """
    import json

    from snakemake_kochi.library.outputs import Directories, batch_rule
    from snakemake_kochi.phases.sources import check_sources, restored_sources
    from snakemake_kochi.project.checks import check_experiments

    location = find_location(machine)
    location.require_here()
    project = location.require_project()
    path = path_in_project(project, file)
    experiment = load(project, path)
    # All errors of the experiment are reported before Snakemake starts.
    batch = experiment.batch(name)
    check_experiments([experiment], location.machine.name)
    required = experiment.requirements_on(location.machine.name, batch.requirements)
    check_sources(
        project,
        project.resolve(required, location.machine.name, f"{path}: batch {name}"),
        restored_sources(WorkingPaths(project.directory, location.machine.name)),
    )
    words = ["--executor", "kochi", "--jobs", "100"]
    # After an interrupt the run continues where it was; a failed run does not stop the others.
    words += ["--rerun-incomplete", "--keep-going"]
    if not os.environ.get("SNAKEMAKE_PROFILE"):
        # As in our profiles; a profile of the user may name another logger.
        words += ["--logger", "kochi"]
    if location.machine.has_allocations:
        # As in the profile `cluster`: files that other nodes write may become visible later.
        words += ["--latency-wait", "60"]
    config = {"kochi_experiments": globs_with(project, path), "kochi_git_remote": git_remote}
    given = [f"{key}={json.dumps(value)}" for key, value in config.items() if value is not None]
    if given:
        words += ["--config", *given]
    if dry_run:
        words.append("--dry-run")
    else:
        table = f"{Directories(location.machine.name).collected(experiment.name, name)}.csv"
        again = _again({"-m": machine, "-g": git_remote}, [file, name], options)
        unlock_dead_run(location.machine_paths, project.directory, table, unlock, again)
    target = batch_rule(experiment.name, name)
    call_snakemake(location, [target], [*words, *options])


def _again(given: Mapping[str, str | None], words: Sequence[str], options: Sequence[str]) -> str:
    """The same command line, with the option that unlocks the directory."""
    said = [word for pair in given.items() if pair[1] is not None for word in pair]
    rest = ["--", *options] if options else []
    return shlex.join(["kochi", "batch", "--unlock", *filter(None, said), *words, *rest])


def call_snakemake(
    location: Location,
    targets: Sequence[str],
    options: Sequence[str],
    variables: Mapping[str, str] | None = None,
) -> NoReturn:
    """Print the command line and become Snakemake, which then handles signals and the exit status.

    The project's Snakefile is used if it has all rules of the library under their own names, else
    the library's.
    """
    directory = location.require_project().directory
    words = [*targets, *_snakefile_options(directory), *options]
    given = {word.partition("=")[0] for word in words}
    if not given & _ELSEWHERE:
        require_writable(location, dry_run=bool(given & _DRY_RUN))
    remark(f"$ cd {shlex.quote(str(directory))} && {shlex.join(['snakemake', *words])}")
    command, environment = _command(location, words, variables or {})
    os.chdir(directory)
    os.execve(sys.executable, command, environment)


def require_writable(location: Location, dry_run: bool = False) -> None:
    """Raise KochiError unless this user may write Snakemake's state and the results.

    Snakemake would show a traceback after it has read everything. A dry run only makes the
    directories of the state that are missing.
    """
    directory = location.require_project().directory
    state = directory / ".snakemake"
    wanted = [state, *(state / name for name in _STATE)]
    wanted.append(WorkingPaths(directory, location.machine.name).results)
    if dry_run:
        wanted = [each for each in (state / "locks",) if not is_there(each)]
    for each in wanted:
        path = next(above for above in (each, *each.parents) if is_there(above))
        if not os.access(path, os.W_OK | os.X_OK):
            raise KochiError(
                f"you may not write to {path}, where Snakemake writes its state and the results",
                "Work in a clone of your own. Type: git clone "
                f"{shlex.quote(os.fspath(directory))} DIRECTORY",
            )


def run_snakemake(location: Location, words: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run Snakemake in the project's directory; return its exit status.

    Its output goes to standard error. If this process is told to end, by Ctrl-C or SIGTERM, so is
    Snakemake, and this process ends after it: raises KeyboardInterrupt or SystemExit.
    """
    command, environment = _command(location, words, variables)
    directory = location.require_project().directory
    process = subprocess.Popen(
        command, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr
    )
    stopped: list[BaseException] = []

    def stop(*_: object) -> None:
        stopped.append(SystemExit(128 + signal.SIGTERM))
        process.terminate()

    before = signal.signal(signal.SIGTERM, stop)
    try:
        while True:
            try:
                status = process.wait()
                break
            except KeyboardInterrupt as error:
                stopped.append(error)  # the terminal has told Snakemake, too
    finally:
        signal.signal(signal.SIGTERM, before)
    if stopped:
        raise stopped[0]
    return status


def _command(
    location: Location, words: Sequence[str], variables: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """The command that runs Snakemake, and its environment."""
    sys.stdout.flush()
    sys.stderr.flush()
    # -P: as for the command `snakemake`, the project's own modules do not hide ours.
    command = [sys.executable, "-P", "-m", "snakemake", *words]
    return command, {**os.environ, **location.variables, **variables}


def _snakefile_options(directory: Path) -> list[str]:
    from snakemake_kochi.cli.init import SNAKEFILES

    existing = [directory / name for name in SNAKEFILES if (directory / name).is_file()]
    if existing:
        text = existing[0].read_text("utf-8", "replace")
        if "snakemake_kochi" in text and _USES_OUR_RULES.search(text):
            return []
    return ["--snakefile", str(workflow_directory() / "Snakefile")]


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
    holders = [
        state
        for state in list_controllers(machine)
        if any(lock.is_there for lock in state.locks)
        and state.directory is not None
        and is_same_directory(state.directory, str(directory))
    ]
    dead = [holder for holder in holders if _is_dead(machine, holder, wanted, sleep)]
    if not dead:
        return
    who = ", ".join(
        f"process {each.process.pid} on {each.node.host}, since {each.started}" for each in dead
    )
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
