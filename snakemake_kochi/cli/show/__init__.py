"""`kochi show`: the table of its subcommands."""

from __future__ import annotations

import click

from snakemake_kochi.cli.main import Group

_PACKAGE = "snakemake_kochi.cli.show"
_COMMANDS = {
    "batch": (f"{_PACKAGE}.batch", "Show the states of a batch's points; --follow: live."),
    "pipeline": (f"{_PACKAGE}.pipeline", "Show what one run goes through, as exact texts."),
    "queues": (
        f"{_PACKAGE}.workers",
        "List queues: their waiting and running jobs, their workers.",
    ),
    "workers": (f"{_PACKAGE}.workers", "List workers; -a: also those that are gone."),
    "runs": (f"{_PACKAGE}.runs", "List launched runs, their states and how far they are."),
    "jobs": (f"{_PACKAGE}.jobs", "List waiting and running jobs; -t: also those that ended."),
    "job": (f"{_PACKAGE}.jobs", "Show all about one job."),
    "installs": (f"{_PACKAGE}.installs", "List recipes, and whether they are installed."),
    "install": (f"{_PACKAGE}.installs", "Show all about one recipe."),
    "record": (f"{_PACKAGE}.records", "Show the record of a run; --schema: what its keys mean."),
    "projects": (f"{_PACKAGE}.files", "List the projects that have files below KOCHI_ROOT."),
    "log": (f"{_PACKAGE}.files", "Show the output of a worker, a job or an installation."),
    "path": (f"{_PACKAGE}.files", "Show where something is on disk."),
}


@click.group(cls=Group, commands_in=_COMMANDS)
def command() -> None:
    """Show queues, workers, jobs, logs, installations, records, projects and paths."""
