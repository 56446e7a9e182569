"""`kochi show path`."""

from __future__ import annotations

from pathlib import Path

import click

from snakemake_kochi.cli.options import NUMBER, json_option, machine_option
from snakemake_kochi.cli.output import print_json
from snakemake_kochi.cli.show.projects import find_project
from snakemake_kochi.location import find_location
from snakemake_kochi.project.recipes import Requirement
from snakemake_kochi.queue import find_job, find_worker


@click.group("path")
def command() -> None:
    """Where something is on disk."""


@command.command("root")
@machine_option
@json_option
def root_path(machine: str | None, as_json: bool) -> None:
    """KOCHI_ROOT."""
    _print(find_location(machine).root.directory, as_json)


@command.command("project")
@machine_option
@json_option
@click.argument("name", required=False)
def project_path(machine: str | None, as_json: bool, name: str | None) -> None:
    """What this project, or that called NAME, keeps below KOCHI_ROOT."""
    location = find_location(machine)
    paths = location.project_paths if name is None else find_project(location.root, name)
    _print(paths.directory, as_json)


@command.command("worker")
@machine_option
@json_option
@click.argument("worker", type=NUMBER)
def worker_path(machine: str | None, as_json: bool, worker: int) -> None:
    """The directory of a worker."""
    paths = find_location(machine).machine_paths
    find_worker(paths, worker)
    _print(paths.worker(worker).directory, as_json)


@command.command("job")
@machine_option
@json_option
@click.argument("job", type=NUMBER)
def job_path(machine: str | None, as_json: bool, job: int) -> None:
    """The directory of a job; it is made when the job starts."""
    paths = find_location(machine).machine_paths
    find_job(paths, job)
    _print(paths.job(job).directory, as_json)


@command.command("install")
@machine_option
@json_option
@click.argument("recipe", metavar="DEPENDENCY:RECIPE")
def install_path(machine: str | None, as_json: bool, recipe: str) -> None:
    """The prefix a recipe is installed in."""
    from snakemake_kochi.phases.current import current_installs

    location = find_location(machine)
    found = location.require_project().recipe(Requirement.parse(recipe))
    (install,) = current_installs(location.project_paths, location.machine, [found])
    _print(Path(install.prefix), as_json)


def _print(path: Path, as_json: bool) -> None:
    if as_json:
        print_json({"path": str(path)})
    else:
        click.echo(str(path))
