"""`kochi show job`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import click

from snakemake_kochi.cli.options import NUMBER, json_option, machine_option
from snakemake_kochi.cli.output import (
    clock_duration,
    coloured,
    local_time,
    print_json,
    print_pairs,
)
from snakemake_kochi.cli.show.job_data import (
    attempt_to_dict,
    running_seconds,
    state_of,
    to_dict,
    what_it_takes,
)
from snakemake_kochi.location import find_location
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import AttemptView, JobView, attempts, find_job, reasons


@click.command("job")
@machine_option
@json_option
@click.argument("job", type=NUMBER)
def command(machine: str | None, as_json: bool, job: int) -> None:
    """All about one job; why it waits, if it does, and how its attempts ended."""
    paths = find_location(machine).machine_paths
    view = find_job(paths, job)
    if as_json:
        tried = [attempt_to_dict(attempt) for attempt in attempts(paths, view)]
        print_json({**to_dict(view), "why": reasons(paths, view), "attempts": tried})
    else:
        print_pairs(_pairs(paths, view))


def _pairs(machine: MachinePaths, view: JobView) -> dict[str, object]:
    ticket, result = view.ticket, view.result
    pairs: dict[str, object] = {"ID": view.job}
    if ticket is None:
        pairs["Name"] = "(the ticket is damaged)"
    else:
        pairs |= {"Name": ticket.name, "Queue": ticket.queue, "Machine": ticket.machine}
    pairs["State"] = coloured(state_of(view))
    if result is None:
        pairs[view.state.capitalize()] = "; ".join(reasons(machine, view))
    pairs |= {"Attempt": view.attempt, "Worker": view.worker}
    pairs |= _attempts(attempts(machine, view))
    if result is not None:
        pairs |= {"Node": result.node, "Exit status": result.exit_status}
    if ticket is not None:
        pairs["Submitted"] = local_time(ticket.submitted)
    pairs["Started"] = local_time(view.started)
    if result is not None:
        pairs["Ended"] = local_time(result.ended)
    pairs["Running time"] = clock_duration(running_seconds(view), digits=3)
    if ticket is not None:
        pairs |= {name.capitalize(): value for name, value in ticket.labels.items()}
        pairs["Takes"] = what_it_takes(ticket.resources)
        pairs["Directory"] = ticket.directory
        pairs["Executed"] = shlex.join(ticket.command)
    pairs["Log"] = view.log
    return {key: value for key, value in pairs.items() if value not in (None, "")}


def _attempts(tried: Sequence[AttemptView]) -> dict[str, object]:
    """One line for each: who, for how long, and how it ended."""
    lines: dict[str, object] = {}
    for attempt in tried:
        who = f"worker {attempt.worker} on {attempt.node}"
        how = f"runner {attempt.runner}" if attempt.runner else ""
        how += f" ({attempt.skipped_runners})" if attempt.skipped_runners else ""
        parts = (who, clock_duration(attempt.seconds), how, attempt.ending or "running")
        key = f"Attempt {attempt.attempt}"
        # One that was presumed dead, and came to an end all the same, has two.
        lines[f"{key} (late)" if key in lines else key] = ", ".join(filter(None, parts))
    return lines
