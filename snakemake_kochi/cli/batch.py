"""`kochi batch`: experiment files on the command line, and Snakemake."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from snakemake_kochi.cli.options import (
    git_remote_option,
    machine_option,
    missing_batch,
    where_option,
)
from snakemake_kochi.cli.output import remark, say
from snakemake_kochi.enqueue.experiment_files import globs_with, load, path_in_project
from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import is_there
from snakemake_kochi.location import Location, find_location
from snakemake_kochi.paths import WorkingPaths
from snakemake_kochi.resources import workflow_directory

_USES_OUR_RULES = re.compile(r"^\s*use\s+rule\s+\*\s+from\s+\w+\s*(#.*)?$", re.MULTILINE)

_DRY_RUN = frozenset({"-n", "--dry-run", "--dryrun"})
_ELSEWHERE = frozenset({"-d", "--directory"})  # Snakemake writes somewhere else
_STATE = ("incomplete", "iocache", "locks", "log", "metadata")  # directories in .snakemake


@click.command()
@machine_option
@click.argument("file", metavar="FILE.yaml")
@click.argument("name", metavar="NAME", required=False)
@git_remote_option
@where_option
@click.option(
    "--retry",
    type=click.Choice(["failed"]),
    help="Run only the points whose last attempt failed.",
)
@click.option(
    "--again",
    metavar="POINT",
    multiple=True,
    help="Run a finished point again though nothing has changed. POINT is NAME=VALUE,... as "
    "n=100,threads=2,duplicate=0; parameters that are left out may have any value. May be given "
    "several times.",
)
@click.option("--pause", is_flag=True, help="Start no further runs of the batch until --resume.")
@click.option("--resume", is_flag=True, help="Let a paused batch go on.")
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
    name: str | None,
    git_remote: str | None,
    conditions: tuple[str, ...],
    retry: str | None,
    again: tuple[str, ...],
    pause: bool,
    resume: bool,
    dry_run: bool,
    unlock: bool,
    options: tuple[str, ...],
) -> None:
    """Run batch NAME of an experiment: all its runs that are missing or out of date.

    The same as `snakemake EXPERIMENT_NAME --executor kochi`, in the project's directory. With -w,
    --retry or --again it runs a part of the batch; `kochi show batch` shows the states of its
    points.
    """
    from snakemake_kochi.cli.part import asked_part, order_pause, order_resume
    from snakemake_kochi.cli.unlock import unlock_dead_run
    from snakemake_kochi.library.outputs import Directories, batch_rule
    from snakemake_kochi.phases.sources import check_sources, restored_sources
    from snakemake_kochi.phases.variants import check_codes, recipes_of
    from snakemake_kochi.project.checks import check_experiments

    location = find_location(machine)
    location.require_here()
    project = location.require_project()
    path = path_in_project(project, file)
    name = name or missing_batch("NAME", load(project, path))
    if pause or resume:
        if (pause and resume) or conditions or retry or again or dry_run or unlock or options:
            raise click.UsageError("--pause and --resume cannot be combined with other options")
        (order_pause if pause else order_resume)(location, path, name)
        return
    experiment = load(project, path, location.machine)
    # All errors of the experiment are reported before Snakemake starts.
    batch = experiment.batch(name)
    check_experiments([experiment], location.machine.name, project)
    check_sources(
        project,
        recipes_of(project, experiment, batch, location.machine.name),
        restored_sources(WorkingPaths(project.directory, location.machine.name)),
    )
    check_codes(project.directory, experiment, batch, location.machine.name)
    grid = experiment.grid(name, location.machine.name)
    part = asked_part(experiment, grid, conditions, retry, again)
    if not part.has_points(project.directory):
        say(f"No {'selected ' * bool(conditions)}point of batch {name} of {path} has failed.")
        return
    config = {
        "kochi_experiments": globs_with(project, path),
        "kochi_git_remote": git_remote,
        **part.config,
    }
    words = _options(location, config)
    if part.is_again:
        words += ["--forcerun", *part.run_rules(experiment.name)]
    if dry_run:
        words.append("--dry-run")
    else:
        table = f"{Directories(location.machine.name).collected(experiment.name, name)}.csv"
        said = [("-m", machine), ("-g", git_remote), ("--retry", retry)]
        said += [("-w", each) for each in conditions] + [("--again", each) for each in again]
        same = _same_command(said, [file, name], options)
        unlock_dead_run(location.machine_paths, project.directory, table, unlock, same)
    target = batch_rule(experiment.name, name)
    call_snakemake(location, [target], [*words, *options])


def _options(location: Location, config: Mapping[str, Any]) -> list[str]:
    """The options of Snakemake; None in `config` stands for what is not given."""
    words = ["--executor", "kochi", "--jobs", "100"]
    # After an interrupt the run continues where it was; a failed run does not stop the others.
    words += ["--rerun-incomplete", "--keep-going"]
    if not os.environ.get("SNAKEMAKE_PROFILE"):
        # As in our profiles; a profile of the user may name another logger.
        words += ["--logger", "kochi"]
    if location.machine.has_allocations:
        # As in the profile `cluster`: files that other nodes write may become visible later.
        words += ["--latency-wait", "60"]
    given = [f"{key}={json.dumps(value)}" for key, value in config.items() if value is not None]
    return [*words, *(["--config", *given] if given else [])]


def _same_command(
    given: Sequence[tuple[str, str | None]], words: Sequence[str], options: Sequence[str]
) -> str:
    """The same command line, with the option that unlocks the directory."""
    said = [word for pair in given if pair[1] is not None for word in pair]
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
