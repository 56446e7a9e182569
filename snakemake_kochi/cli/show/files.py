"""`kochi show log`, `kochi show path` and `kochi show projects`: files on disk."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from snakemake_kochi.cli.main import Group
from snakemake_kochi.cli.options import (
    JOB,
    WORKER,
    json_option,
    machine_option,
    recipes_in,
    recipes_option,
)
from snakemake_kochi.cli.output import print_json, print_table, remark, show_file
from snakemake_kochi.errors import DamagedFileError, KochiError, NameNotFoundError, nearest
from snakemake_kochi.files import read_json
from snakemake_kochi.location import Location, find_location
from snakemake_kochi.locks import intended_lock_settings, read_lock_settings
from snakemake_kochi.paths import MachinePaths, ProjectPaths, Root
from snakemake_kochi.project.recipes import Requirement
from snakemake_kochi.queue.views import JobView, find_job, find_worker


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
    """Show the directory of a project below KOCHI_ROOT.

    NAME is a project that `kochi show projects` lists; by default this project.
    """
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
    _print(Path(paths.layout.worker(worker).directory), as_json)


@path_command.command("job")
@machine_option
@json_option
@click.argument("job", type=JOB)
def job_path(machine: str | None, as_json: bool, job: int) -> None:
    """Show the directory of a job's log."""
    paths = find_location(machine).machine_paths
    view = find_job(paths, job)
    return _print(view.log.parent, as_json)


@path_command.command("install")
@machine_option
@json_option
@click.argument("recipe", metavar="DEPENDENCY:RECIPE")
def install_path(machine: str | None, as_json: bool, recipe: str) -> None:
    """Show the prefix of an installed recipe."""
    from snakemake_kochi.phases.make import current_installs

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


@click.group("log", cls=Group)
def log_command() -> None:
    """Show the output of a worker, a job or an installation; -f: follow it."""


def _follow_option(function: Callable[..., Any]) -> Callable[..., Any]:
    help_text = "Follow the output until its end."
    return click.option("-f", "--follow", is_flag=True, help=help_text)(function)


@log_command.command("job")
@machine_option
@_follow_option
@click.argument("job", type=JOB)
def job_log(machine: str | None, follow: bool, job: int) -> None:
    """Show the output of a job."""
    paths = find_location(machine).machine_paths
    view = find_job(paths, job)
    if view.state == "waiting" and not follow:
        if view.attempt > 1:
            remark(f"Job {job} is waiting for attempt {view.attempt}.")
        else:
            remark(f"Job {job} is waiting: it has printed nothing yet.")
    return _show_output(paths, view, follow)


def _show_output(machine: MachinePaths, view: JobView, follow: bool) -> None:
    """Copy the output of a job: that of all its attempts."""
    attempt, shown = 1, 0
    while True:
        while attempt < view.attempt or (attempt == view.attempt and view.state == "ended"):
            sys.stdout.buffer.write(view.output_of(attempt)[shown:])
            attempt, shown = attempt + 1, 0
        sys.stdout.buffer.flush()
        if view.state == "ended":
            break
        shown = show_file(view.log, follow, partial(_is_over, machine, view))
        if not follow:
            return
        view = find_job(machine, view.job)
    if not view.output and view.result is not None:
        remark(f"Job {view.job} printed nothing: {view.result.describe()}")


def _is_over(machine: MachinePaths, view: JobView) -> bool:
    now = find_job(machine, view.job)
    return now.state == "ended" or bool(now.log != view.log)


@log_command.command("worker")
@machine_option
@_follow_option
@click.argument("worker", type=WORKER)
def worker_log(machine: str | None, follow: bool, worker: int) -> None:
    """Show the log of a worker, and what its allocation has printed.

    If kochi alloc requested it, that is also what its jobs have printed.
    """
    paths = find_location(machine).machine_paths
    found = find_worker(paths, worker)

    def is_gone() -> bool:
        state = find_worker(paths, worker)
        # A worker that has left writes its last line after that state.
        return state.is_gone and not (state.is_on_this_node and state.process.is_alive())

    log = Path(paths.layout.worker(worker).log)
    if found.allocation:
        output = paths.allocation_log(found.controller, found.allocation)
        if output.is_file():
            show_file(log, False, is_gone)
            log = output
    show_file(log, follow, is_gone)


@log_command.command("install")
@machine_option
@_follow_option
@recipes_option
def install_log(
    machine: str | None, follow: bool, words: tuple[str, ...], dependencies: tuple[str, ...]
) -> None:
    """Show the output of a recipe's newest installation.

    The installation may have failed, or may be running.
    """
    location = find_location(machine)
    for wanted in recipes_in(words, dependencies):
        _show_install(location, location.require_project().requirement(wanted), follow)


def _show_install(location: Location, wanted: Requirement, follow: bool) -> None:
    found = location.require_project().recipe(wanted)
    names = (location.machine.name, found.dependency, found.name)
    log = location.project_paths.newest_install_log(*names)
    if log is None:
        raise NameNotFoundError(
            f"{found} was never installed on machine '{location.machine.name}'",
            f"Type: kochi install -d {found}",
        )
    # A command that only reads does not settle the locks.
    locks = read_lock_settings(location.machine_paths) or intended_lock_settings(
        location.machine_paths, location.machine.lock_directory, location.machine.lock_kind
    )
    lock = locks.paths.project(location.project_paths.directory).install(
        found.dependency, found.name
    )
    # A running installation holds the lock.
    show_file(log, follow, lambda: not locks.is_held(lock))
