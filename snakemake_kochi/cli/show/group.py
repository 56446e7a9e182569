"""The group of what can be shown."""

from __future__ import annotations

import click

from snakemake_kochi.cli.lazy_group import LazyGroup

_ROOM = "snakemake_kochi.cli.show"
_COMMANDS = {
    "queues": (f"{_ROOM}.queues", "All queues: how many jobs wait and run, and who serves them."),
    "workers": (f"{_ROOM}.workers", "Workers that are there; -a: all that ever were."),
    "jobs": (f"{_ROOM}.jobs", "Jobs that wait or run; -t: those that ended, too."),
    "job": (f"{_ROOM}.job", "All about one job."),
    "installs": (f"{_ROOM}.installs", "All recipes, and whether they are installed."),
    "install": (f"{_ROOM}.installs", "All about one recipe."),
    "projects": (f"{_ROOM}.projects", "The projects that keep something below KOCHI_ROOT."),
    "log": (f"{_ROOM}.log", "What a worker, a job or an installation printed."),
    "path": (f"{_ROOM}.path", "Where something is on disk."),
}


@click.group(cls=LazyGroup, commands_in=_COMMANDS)
def command() -> None:
    """Show queues, workers, jobs, logs, installations, projects and paths."""
