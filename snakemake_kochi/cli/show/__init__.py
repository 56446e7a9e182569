"""`kochi show`: the table of its subcommands."""

from __future__ import annotations

import click

from snakemake_kochi.cli.main import Group

_PACKAGE = "snakemake_kochi.cli.show"
_COMMANDS = {
    "queues": (
        f"{_PACKAGE}.workers",
        "All queues: how many jobs wait and run, and who serves them.",
    ),
    "workers": (f"{_PACKAGE}.workers", "Workers that are there; -a: all that ever were."),
    "jobs": (f"{_PACKAGE}.jobs", "Jobs that wait or run; -t: those that ended, too."),
    "job": (f"{_PACKAGE}.jobs", "All about one job."),
    "installs": (f"{_PACKAGE}.installs", "All recipes, and whether they are installed."),
    "install": (f"{_PACKAGE}.installs", "All about one recipe."),
    "projects": (f"{_PACKAGE}.path", "The projects that keep something below KOCHI_ROOT."),
    "log": (f"{_PACKAGE}.log", "What a worker, a job or an installation printed."),
    "path": (f"{_PACKAGE}.path", "Where something is on disk."),
}


@click.group(cls=Group, commands_in=_COMMANDS)
def command() -> None:
    """Show queues, workers, jobs, logs, installations, projects and paths."""
