"""`kochi show job`."""

from __future__ import annotations

import shlex

import click

from snakemake_kochi.cli.options import json_option, machine_option
from snakemake_kochi.cli.output import coloured, local_time, print_json, print_pairs
from snakemake_kochi.cli.show.job_data import state_of, to_dict
from snakemake_kochi.place import find_place
from snakemake_kochi.queue import JobView, find_job


@click.command("job")
@machine_option
@json_option
@click.argument("job", type=click.IntRange(min=0))
def command(machine: str | None, as_json: bool, job: int) -> None:
    """All about one job."""
    view = find_job(find_place(machine).machine_paths, job)
    if as_json:
        print_json(to_dict(view))
    else:
        print_pairs(_pairs(view))


def _pairs(view: JobView) -> dict[str, object]:
    ticket, result = view.ticket, view.result
    pairs: dict[str, object] = {"ID": view.job}
    if ticket is None:
        pairs["Name"] = "(the ticket is damaged)"
    else:
        pairs |= {"Name": ticket.name, "Queue": ticket.queue, "Machine": ticket.machine}
    pairs |= {"State": coloured(state_of(view)), "Attempt": view.attempt, "Worker": view.worker}
    if result is not None:
        pairs |= {"Node": result.node, "Exit status": result.exit_status}
    if ticket is not None:
        pairs["Submitted"] = local_time(ticket.submitted)
    pairs["Started"] = local_time(view.started)
    if result is not None:
        pairs["Ended"] = local_time(result.ended)
    if ticket is not None:
        pairs |= {name.capitalize(): value for name, value in ticket.labels.items()}
        pairs["Directory"] = ticket.directory
        pairs["Executed"] = shlex.join(ticket.command)
    pairs["Log"] = view.log
    return {key: value for key, value in pairs.items() if value not in (None, "")}
