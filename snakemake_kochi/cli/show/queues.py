"""`kochi show queues`."""

from __future__ import annotations

import click

from snakemake_kochi.cli.options import json_option, machine_option
from snakemake_kochi.cli.output import print_json, print_table
from snakemake_kochi.location import find_location
from snakemake_kochi.queue import list_queues


@click.command("queues")
@machine_option
@json_option
def command(machine: str | None, as_json: bool) -> None:
    """All queues: how many jobs wait and run, and which workers serve them."""
    views = list_queues(find_location(machine).machine_paths)
    if as_json:
        print_json(
            [
                {
                    "queue": view.name,
                    "waiting": view.waiting,
                    "running": view.running,
                    "workers": list(view.workers),
                }
                for view in views
            ]
        )
        return
    print_table(
        ("Queue", "Waiting", "Running", "Workers"),
        [(view.name, view.waiting, view.running, view.workers) for view in views],
        "There are no queues. To make one, type: kochi work -q NAME -b",
    )
