"""`kochi show log`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from snakemake_kochi.cli.main import Group
from snakemake_kochi.cli.options import JOB, WORKER, machine_option, recipes_in, recipes_option
from snakemake_kochi.cli.output import remark, show_file
from snakemake_kochi.errors import NameNotFoundError
from snakemake_kochi.location import Location, find_location
from snakemake_kochi.locks import intended_lock_settings, read_lock_settings
from snakemake_kochi.project.recipes import Requirement
from snakemake_kochi.queue import find_job, find_worker


@click.group("log", cls=Group)
def command() -> None:
    """Show the output of a worker, a job or an installation; -f: follow it."""


def _follow_option(function: Callable[..., Any]) -> Callable[..., Any]:
    help_text = "Follow the output until its end."
    return click.option("-f", "--follow", is_flag=True, help=help_text)(function)


@command.command("job")
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
    show_file(view.log, follow, lambda: find_job(paths, job).state == "ended")


@command.command("worker")
@machine_option
@_follow_option
@click.argument("worker", type=WORKER)
def worker_log(machine: str | None, follow: bool, worker: int) -> None:
    """Show the log of a worker."""
    paths = find_location(machine).machine_paths
    find_worker(paths, worker)

    def is_gone() -> bool:
        return find_worker(paths, worker).describe() in ("left", "lost")

    show_file(paths.worker(worker).log, follow, is_gone)


@command.command("install")
@machine_option
@_follow_option
@recipes_option
def install_log(
    machine: str | None, follow: bool, words: tuple[str, ...], dependencies: tuple[str, ...]
) -> None:
    """Show the output of a recipe's newest installation, whether it succeeded or not."""
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
    lock = locks.paths.project(location.project_paths).install(found.dependency, found.name)
    # A running installation holds the lock.
    show_file(log, follow, lambda: not locks.is_held(lock))
