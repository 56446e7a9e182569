"""`kochi batch`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence

import click

from snakemake_kochi.cli.experiment_file import globs_with, load, path_in_project
from snakemake_kochi.cli.options import git_remote_option, machine_option
from snakemake_kochi.location import find_location


@click.command()
@machine_option
@click.argument("file", metavar="FILE.yaml")
@click.argument("name")
@git_remote_option
@click.option("-n", "--dry-run", is_flag=True, help="Only show what would be run.")
@click.option(
    "--unlock",
    is_flag=True,
    help="Remove the lock of a run that was killed, once it is certain that it is dead.",
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
    """Run batch NAME of an experiment: the runs that are not done yet, or not up to date.

    The same as `snakemake EXPERIMENT_NAME --executor kochi`, in the project's directory.
    """
    import json

    from snakemake_kochi.cli.left_lock import see_to_left_lock
    from snakemake_kochi.cli.snakemake_call import call_snakemake
    from snakemake_kochi.library.names import Directories, identifier
    from snakemake_kochi.phases.freeze import check_sources
    from snakemake_kochi.project.checks import check_experiments

    location = find_location(machine)
    location.require_here()
    project = location.require_project()
    path = path_in_project(project, file)
    experiment = load(project, path)
    # All that is wrong with the experiment is said before Snakemake starts.
    batch = experiment.batch(name)
    check_experiments([experiment], location.machine.name)
    required = experiment.requirements_on(location.machine.name, batch.requirements)
    check_sources(
        project, project.resolve(required, location.machine.name, f"{path}: batch {name}")
    )
    words = ["--executor", "kochi", "--jobs", "100"]
    # After an interrupt it goes on where it was; one failed run does not keep others from running.
    words += ["--rerun-incomplete", "--keep-going"]
    if not os.environ.get("SNAKEMAKE_PROFILE"):
        # As our profiles do; a profile of one's own may name another.
        words += ["--logger", "kochi"]
    if location.machine.has_allocations:
        # As the profile `cluster` does: what other nodes write may come to be seen later.
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
        see_to_left_lock(location.machine_paths, project.directory, table, unlock, again)
    target = f"{identifier(experiment.name)}_{identifier(name)}"
    call_snakemake(location, [target], [*words, *options])


def _again(given: Mapping[str, str | None], words: Sequence[str], options: Sequence[str]) -> str:
    """What to type for the same, if the directory is to be unlocked."""
    said = [word for pair in given.items() if pair[1] is not None for word in pair]
    rest = ["--", *options] if options else []
    return shlex.join(["kochi", "batch", "--unlock", *filter(None, said), *words, *rest])
