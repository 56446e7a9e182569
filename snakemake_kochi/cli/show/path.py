"""`kochi show path` and `kochi show projects`: paths on disk."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from snakemake_kochi.cli.main import Group
from snakemake_kochi.cli.options import JOB, WORKER, json_option, machine_option
from snakemake_kochi.cli.output import print_json, print_table
from snakemake_kochi.errors import DamagedFileError, KochiError, NameNotFoundError, nearest
from snakemake_kochi.files import read_json
from snakemake_kochi.location import find_location
from snakemake_kochi.paths import ProjectPaths, Root
from snakemake_kochi.queue import find_job, find_worker


@click.group("path", cls=Group)
def path_command() -> None:
    """Show where something is on disk."""


@path_command.command("root")
@machine_option
@json_option
def root_path(machine: str | None, as_json: bool) -> None:
    """Show KOCHI_ROOT."""
    _print(find_location(machine).root.directory, as_json)


@path_command.command("project")
@machine_option
@json_option
@click.argument("name", required=False)
def project_path(machine: str | None, as_json: bool, name: str | None) -> None:
    """Show the directory below KOCHI_ROOT of this project, or of the one called NAME."""
    location = find_location(machine)
    paths = location.project_paths if name is None else find_project(location.root, name)
    _print(paths.directory, as_json)


@path_command.command("worker")
@machine_option
@json_option
@click.argument("worker", type=WORKER)
def worker_path(machine: str | None, as_json: bool, worker: int) -> None:
    """Show the directory of a worker."""
    paths = find_location(machine).machine_paths
    find_worker(paths, worker)
    _print(paths.worker(worker).directory, as_json)


@path_command.command("job")
@machine_option
@json_option
@click.argument("job", type=JOB)
def job_path(machine: str | None, as_json: bool, job: int) -> None:
    """Show the directory of a job, which exists once the job has started."""
    paths = find_location(machine).machine_paths
    find_job(paths, job)
    _print(paths.job(job).directory, as_json)


@path_command.command("install")
@machine_option
@json_option
@click.argument("recipe", metavar="DEPENDENCY:RECIPE")
def install_path(machine: str | None, as_json: bool, recipe: str) -> None:
    """Show the prefix of an installed recipe."""
    from snakemake_kochi.phases.current import current_installs

    location = find_location(machine)
    project = location.require_project()
    found = project.recipe(project.requirement(recipe))
    (install,) = current_installs(location.project_paths, location.machine, [found])
    _print(Path(install.prefix), as_json)


def _print(path: Path, as_json: bool) -> None:
    if as_json:
        print_json({"path": str(path)})
    else:
        click.echo(str(path))


@click.command("projects")
@machine_option
@json_option
def projects_command(machine: str | None, as_json: bool) -> None:
    """List the projects that have files below KOCHI_ROOT, and their repositories."""
    rows = []
    for paths in find_location(machine).root.projects():
        repository = _repository(paths)
        rows.append(
            {
                "project": paths.directory.name,
                "repository": None if repository is None else str(repository),
                "exists": repository is not None and repository.is_dir(),
                "directory": str(paths.directory),
            }
        )
    if as_json:
        print_json(rows)
        return
    print_table(
        ("Project", "Repository", "Directory"),
        [
            (row["project"], _shown_repository(row["repository"], row["exists"]), row["directory"])
            for row in rows
        ],
        "There are no projects.",
    )


def find_project(root: Root, name: str) -> ProjectPaths:
    """The project with a repository of that name, or with that name below KOCHI_ROOT.

    Raises NameNotFoundError, and KochiError if several have that name.
    """
    names = {paths: _names(paths) for paths in root.projects()}
    found = [paths for paths, called in names.items() if name in called]
    if not found:
        known = nearest(name, {each for called in names.values() for each in called})
        raise NameNotFoundError(
            f"there is no project '{name}'; {known}", "List them with: kochi show projects"
        )
    if len(found) > 1:
        which = ", ".join(f"{each.directory.name} ({_repository(each)})" for each in found)
        raise KochiError(
            f"{len(found)} projects are called '{name}': {which}",
            f"Type, for example: kochi show path project {found[0].directory.name}",
        )
    return found[0]


def _names(paths: ProjectPaths) -> set[str]:
    repository = _repository(paths)
    return {paths.directory.name, *([repository.name] if repository else [])}


def _shown_repository(repository: object, exists: object) -> str:
    if repository is None:
        return "(not known)"
    return f"{repository}" if exists else f"{repository} (gone)"


def _repository(paths: ProjectPaths) -> Path | None:
    """The address of a project's repository, according to its freezes."""
    for file in paths.freezes():
        with contextlib.suppress(DamagedFileError, FileNotFoundError):
            directory = read_json(file).get("directory")
            if isinstance(directory, str):
                return Path(directory)
    return None
