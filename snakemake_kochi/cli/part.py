"""The options of `kochi batch` for a part of a batch, and for pausing and resuming one."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from snakemake_kochi.cli.output import say
from snakemake_kochi.enqueue.experiment_files import globs_with, load
from snakemake_kochi.errors import ConfigError, KochiError
from snakemake_kochi.library.batch import check_not_empty
from snakemake_kochi.library.files import BatchFiles, batch_rule, run_rule
from snakemake_kochi.library.library import FAILED, RETRY, WHERE, Part, check_part
from snakemake_kochi.library.states import BatchStates
from snakemake_kochi.location import Location
from snakemake_kochi.phases.freeze import EXPERIMENT_GLOBS, take_freeze
from snakemake_kochi.project.conditions import Condition, Where
from snakemake_kochi.project.grid import Grid

if TYPE_CHECKING:
    from snakemake_kochi.project.experiment import Experiment
    from snakemake_kochi.queue.paused import PausedBatch


@dataclass(frozen=True)
class AskedPart:
    """The part of a batch that was typed. `config`: what says so to the rule library."""

    grid: Grid
    where: Where | None
    config: Mapping[str, Any]
    is_again: bool

    def has_points(self, location: Location, file: str) -> bool:
        """Whether there is anything to run: none may have failed. `file`: the path of the
        experiment in the project. Raises KochiError."""
        if RETRY not in self.config:
            return True
        project = location.require_project()
        directory, globs = project.directory, globs_with(project, file) or EXPERIMENT_GLOBS
        freeze = take_freeze(directory, location.machine.name, globs, named=file)
        batch = BatchStates.of(freeze, file, self.grid.batch).batch
        return bool(Part(self.where, failed=True).places(batch.files_now(directory), directory))

    def run_rules(self, experiment: str) -> list[str]:
        """The rules that run points. Only selected points are among their jobs."""
        target = batch_rule(experiment, self.grid.batch)
        groups = BatchFiles.of(experiment, self.grid).groups
        return [run_rule(target, index) for index in range(len(groups))]


def asked_part(
    experiment: Experiment,
    grid: Grid,
    conditions: Sequence[str],
    retry: str | None,
    again: Sequence[str],
) -> AskedPart:
    """Raises ConfigError for a batch of which all points are skipped, ConfigError and
    NameNotFoundError for what selects no point of the batch, or only skipped ones, and
    click.UsageError."""
    if retry and again:
        raise click.UsageError("--retry and --again exclude each other")
    check_not_empty(experiment, grid)
    config: dict[str, Any] = {}
    alternatives = [[*_point(text), *conditions] for text in again] or [list(conditions)]
    where = None
    if any(alternatives):
        where = Where.parse(*alternatives)
        check_part(where, grid)
        config[WHERE] = alternatives if again else list(conditions)
    if retry:
        config[RETRY] = FAILED
    return AskedPart(grid, where, config, bool(again))


_NEXT_NAME = re.compile(r",(?=[A-Za-z_][A-Za-z0-9_-]*=)")


def _point(text: str) -> list[str]:
    """`n=1,threads=2` as conditions. Raises ConfigError. A value may contain commas."""
    conditions = _NEXT_NAME.split(text)
    for each in conditions:
        if Condition.parse(each).relation != "=":
            raise ConfigError(
                f"--again {text}: NAME=VALUE,... was expected, such as n=100,threads=2"
            )
    return conditions


def order_resume(location: Location, file: str, batch: str) -> None:
    """Let a paused batch go on. Raises KochiError.

    The experiment may have changed: its run has the one of before, and waits for this.
    """
    from snakemake_kochi.queue.paused import resume

    machine = location.machine_paths
    location.secure(machine.directory)
    what = f"batch {batch} of {file}"
    if resume(machine, _paused_batch(location, file, batch)):
        say(f"{what.capitalize()} goes on.")
        return
    load(location.require_project(), file, location.machine).batch(batch)
    say(f"{what.capitalize()} is not paused.")


def _paused_batch(location: Location, file: str, batch: str) -> PausedBatch:
    from snakemake_kochi.queue.paused import PausedBatch

    return PausedBatch(os.path.realpath(location.require_project().directory), file, batch)


def order_pause(location: Location, file: str, batch: str) -> None:
    """Pause a batch of a run that goes on. Raises KochiError."""
    from snakemake_kochi.queue.paused import list_paused, pause
    from snakemake_kochi.queue.runs import MakingWatch

    experiment = load(location.require_project(), file, location.machine)
    experiment.batch(batch)
    machine = location.machine_paths
    location.secure(machine.directory)
    wanted = _paused_batch(location, file, batch)
    directory = wanted.directory
    what = f"batch {batch} of {experiment.file}"
    words = ["kochi", "batch", experiment.file, batch]
    how_to_resume = shlex.join([*words, "--resume"])
    if any(each.digest == wanted.digest for each in list_paused(machine)):
        say(f"{what.capitalize()} is paused already. To resume it, type: {how_to_resume}")
        return
    files = BatchFiles.of(experiment.name, experiment.grid(batch, location.machine.name))
    records = files.records
    runs, _ = MakingWatch(machine, directory).look()
    if not any(run.outputs is None or not run.outputs.isdisjoint(records) for run in runs):
        raise KochiError(
            f"no run of {what} goes on in {directory} on machine {location.machine.name}, so there "
            "is nothing to pause",
            f"To see the states of its points, type: {shlex.join(['kochi', 'show', *words[1:]])}\n"
            "Only runs of --executor kochi can be paused.",
        )
    pause(machine, wanted)
    say(
        f"{what.capitalize()} is paused: jobs that run now end, and no further ones start. To "
        f"resume it, type: {how_to_resume}"
    )
