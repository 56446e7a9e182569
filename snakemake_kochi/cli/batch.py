"""`kochi batch`: experiment files on the command line, and Snakemake."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from snakemake_kochi.cli.options import (
    default_batch,
    git_remote_option,
    machine_option,
    where_option,
)
from snakemake_kochi.cli.output import say
from snakemake_kochi.cli.snakemake_calls import call_snakemake, snakemake_command
from snakemake_kochi.enqueue.experiment_files import globs_with, load, path_in_project
from snakemake_kochi.errors import KochiError
from snakemake_kochi.location import Location, find_location
from snakemake_kochi.paths import WorkingPaths

if TYPE_CHECKING:
    from snakemake_kochi.project.experiment import Experiment
    from snakemake_kochi.project.machines import Machine
    from snakemake_kochi.project.recipes import Project, Recipe


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
@click.option(
    "-n",
    "--dry-run",
    is_flag=True,
    help="Show what would run, and run nothing: "
    "the states of points, the jobs of each rule, and the reasons.",
)
@click.option(
    "--unlock",
    is_flag=True,
    help="Remove the lock of a killed run, once it is certain that the run is dead.",
)
@click.option(
    "--launch",
    is_flag=True,
    help="Run it as `kochi launch` does, so that it goes on after logout. If it runs already, join "
    "it.",
)
@click.option("-f", "--follow", is_flag=True, help="With --launch: show the output until its end.")
@click.option("--json", "as_json", is_flag=True, hidden=True)
@click.option("--from", "position", type=int, hidden=True, help="Skip output of a joined run.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[-- SNAKEMAKE OPTIONS]")
def command(machine: str | None, file: str, name: str | None, **given: Any) -> int:
    """Run batch NAME of an experiment: all its runs that are missing or out of date.

    The same as `snakemake EXPERIMENT_NAME --executor kochi`, in the project's directory. With -w,
    --retry or --again it runs a part of the batch; `kochi show batch` shows the states of its
    points.

    If the batch has `machines` and none is named, it is run on each of them, by a launched run for
    each: Ctrl-C ends only what is shown here, and the same line shows it again.
    """
    if name and name.startswith("-"):  # the first option of Snakemake: click does not tell
        name, given["options"] = None, (name, *given["options"])
    location = find_location(machine, asks=True)
    project = location.require_project()
    path = path_in_project(project, file)
    asked = _Asked(machine, file, path, name, **given)
    asked.check()
    if name and not location.is_named and (experiment := _of_machines(project, path, name, asked)):
        from snakemake_kochi.cli.machines_of_batch import run_on_machines

        wanted = asked.commands(experiment.batch(name).machines, location.machines)
        return run_on_machines(location, experiment, name, wanted, asked.runs)
    if location.is_elsewhere:
        return _elsewhere(location, asked)
    name = name or default_batch("NAME", load(project, path))
    if asked.pause or asked.resume:
        from snakemake_kochi.cli.part import order_pause, order_resume

        (order_pause if asked.pause else order_resume)(location, path, name)
        return 0
    return _run(location, load(project, path, location.machine), name, asked)


@dataclass(frozen=True)
class _Asked:
    """What was typed; `path` is that of the file in the project."""

    machine: str | None
    file: str
    path: str
    name: str | None
    git_remote: str | None
    conditions: tuple[str, ...]
    retry: str | None
    again: tuple[str, ...]
    pause: bool
    resume: bool
    dry_run: bool
    unlock: bool
    launch: bool
    follow: bool
    as_json: bool
    position: int | None
    options: tuple[str, ...]

    def check(self) -> None:
        """Raises click.UsageError for options that exclude each other."""
        others = (self.conditions, self.retry, self.again, self.dry_run, self.unlock, self.options)
        if (self.pause or self.resume) and (
            (self.pause and self.resume) or any(others) or self.launch
        ):
            raise click.UsageError("--pause and --resume cannot be combined with other options")
        if self.launch and self.dry_run:
            raise click.UsageError("--launch and --dry-run exclude each other")

    @property
    def runs(self) -> bool:
        """Whether it is to run the batch, and not only to order or to show something."""
        return not (self.pause or self.resume or self.dry_run)

    def commands(
        self, names: Sequence[str], known: Mapping[str, Machine]
    ) -> list[tuple[str, list[str]]]:
        """Several machines, and the words after `kochi` for each.

        The runs of this computer share a directory. At its end a Snakemake deletes all of
        Snakemake's locks there, which ends another one that is just making its own. Our own locks
        exclude two runs with the same files.
        """
        here = [each for each in names if not known[each].is_elsewhere()]
        shared = self
        if self.runs and len(here) > 1 and "--nolock" not in self.options:
            shared = replace(self, options=("--nolock", *self.options))
        return [(each, (shared if each in here else self).words(each)) for each in names]

    def words(self, machine: str | None, unlock: bool = False) -> list[str]:
        """The words after `kochi` for a machine, without how the run is followed."""
        flags = {
            "--pause": self.pause,
            "--resume": self.resume,
            "--dry-run": self.dry_run,
            "--unlock": self.unlock or unlock,
        }
        pairs = [("-m", machine), ("-g", self.git_remote), ("--retry", self.retry)]
        pairs += [("-w", each) for each in self.conditions]
        pairs += [("--again", each) for each in self.again]
        typed = [word for pair in pairs if pair[1] is not None for word in pair]
        rest = ["--", *self.options] if self.options else []
        names = [self.file, *([self.name] if self.name else [])]
        set_flags = [flag for flag, is_set in flags.items() if is_set]
        return ["batch", *set_flags, *filter(None, typed), *names, *rest]


def _of_machines(project: Project, path: str, name: str, asked: _Asked) -> Experiment | None:
    """The experiment if its batch has `machines`."""
    try:
        experiment = load(project, path)
        return experiment if experiment.batch(name).machines else None
    except KochiError:
        # A run that is paused or resumed has the experiment of before; the file is being edited.
        if asked.pause or asked.resume:
            return None
        raise


def _elsewhere(location: Location, asked: _Asked) -> int:
    """The same on a login host: a launched run, which is followed from here."""
    from snakemake_kochi.cli.elsewhere import run_elsewhere
    from snakemake_kochi.cli.joined_results import end_of_run

    if asked.name is None or not asked.runs or (asked.launch and not asked.follow):
        return run_elsewhere(location)
    from snakemake_kochi.remote.controller import launch_there

    words = [*asked.words(location.machine.name)]
    words.insert(1, "--launch")
    # Of several machines, the results are brought home one after the other.
    is_alone = asked.position is None
    return end_of_run(location, lambda: launch_there(location, words, asked.position), is_alone)


def _run(location: Location, experiment: Experiment, name: str, asked: _Asked) -> int:
    """Run a batch, or a part of it, here."""
    from snakemake_kochi.cli.install import say_locked
    from snakemake_kochi.cli.part import asked_part
    from snakemake_kochi.cli.unlock import unlock_dead_run
    from snakemake_kochi.library.files import batch_rule, collected

    project, machine = location.require_project(), location.machine.name
    recipes = checked(location, experiment, name)
    grid = experiment.grid(name, machine)
    part = asked_part(experiment, grid, asked.conditions, asked.retry, asked.again)
    if not part.has_points(location, asked.path):
        selected = "selected " * bool(asked.conditions)
        say(f"No {selected}point of batch {name} of {asked.path} has failed.")
        return 0
    target = batch_rule(experiment.name, name)
    config = {
        "kochi_batch": target,
        "kochi_experiments": globs_with(project, asked.path),
        "kochi_experiment": asked.path,
        **part.config,
    }
    words = _options(location, config)
    if part.is_again:
        words += ["--forcerun", *part.run_rules(experiment.name)]
    if asked.dry_run:
        from snakemake_kochi.cli.show.batch import say_states

        say_states(location, asked.path, name, asked.conditions)
        say("\nFor each job and its reason, add: -- --quiet host\n")
        # Snakemake's last `--quiet` counts.
        quiet = ["--quiet", "rules", "host"]
        call_snakemake(location, [target], [*words, *quiet, "--dry-run", *asked.options])

    def prepare() -> None:
        table = f"{collected(machine, experiment.name, name)}.csv"
        same = shlex.join(["kochi", *asked.words(asked.machine, unlock=True)])
        unlock_dead_run(location.machine_paths, project.directory, table, asked.unlock, same)
        say_locked(location, recipes)

    if asked.launch:
        from snakemake_kochi.cli.launched_batch import launch_batch

        snakemake = snakemake_command(location, [target], [*words, *asked.options])
        called = f"{asked.path} {name}"
        shown = asked.position or 0
        follow, as_json = asked.follow, asked.as_json
        return launch_batch(location, called, snakemake, prepare, follow, as_json, shown)
    prepare()
    call_snakemake(location, [target], [*words, *asked.options])


def checked(location: Location, experiment: Experiment, name: str) -> list[Recipe]:
    """The recipes of a batch. All errors of the experiment are reported before Snakemake starts."""
    from snakemake_kochi.phases.freeze import check_codes, recipes_of
    from snakemake_kochi.phases.sources import check_sources, restored_sources
    from snakemake_kochi.project.checks import check_experiments

    project, machine = location.require_project(), location.machine.name
    batch = experiment.batch(name)
    check_experiments([experiment], machine, project)
    recipes = list(recipes_of(project, experiment, batch, machine))
    check_sources(project, recipes, restored_sources(WorkingPaths(project.directory, machine)))
    check_codes(project.directory, experiment, batch, machine)
    return recipes


def run_options(location: Location) -> list[str]:
    """The options of each Snakemake that runs points."""
    words = ["--executor", "kochi", "--jobs", "100"]
    # After an interrupt the run continues where it was; a failed run does not stop the others.
    words += ["--rerun-incomplete", "--keep-going"]
    if location.machine.has_allocations:
        # As in the profile `cluster`: files that other nodes write may become visible later.
        words += ["--latency-wait", "60"]
    return words


def _options(location: Location, config: Mapping[str, Any]) -> list[str]:
    """The options of Snakemake; None in `config` stands for what is not given."""
    words = run_options(location)
    if not os.environ.get("SNAKEMAKE_PROFILE"):
        # As in our profiles; a profile of the user may name another logger.
        words += ["--logger", "kochi"]
    given = [f"{key}={json.dumps(value)}" for key, value in config.items() if value is not None]
    return [*words, *(["--config", *given] if given else [])]
