"""`kochi show jobs`."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from snakemake_kochi.cli.options import COUNT, json_option, machine_option
from snakemake_kochi.cli.output import (
    clock_duration,
    coloured,
    local_time,
    print_json,
    print_table,
    remark,
    shortened,
    shown,
)
from snakemake_kochi.cli.project_jobs import belongs_to
from snakemake_kochi.cli.show.job_data import (
    running_seconds,
    state_name,
    state_of,
    to_dict,
    what_runs,
)
from snakemake_kochi.location import Location, find_location
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import JobView, list_jobs

_LIMIT = 30
_WIDTH = 48  # of the column that tells jobs of one name apart


@click.command("jobs")
@machine_option
@click.option(
    "-t", "--terminated", "--show-terminated", is_flag=True, help="Also those that ended."
)
@click.option(
    "--failed", is_flag=True, help="Only those that ended without success and were not cancelled."
)
@click.option(
    *("-l", "--limit"),
    type=COUNT,
    help=f"How many, the newest first; by default {_LIMIT}, and with -a all.",
)
@click.option("-a", "--all", "all_projects", is_flag=True, help="Of all projects.")
@click.option(
    *("-q", "--queue", "queues"),
    metavar="QUEUE",
    multiple=True,
    help="Only of this queue; may be given several times.",
)
@click.option(
    *("-n", "--name", "names"),
    metavar="NAME",
    multiple=True,
    help="Only of this name; may be given several times.",
)
@json_option
def command(
    machine: str | None,
    terminated: bool,
    failed: bool,
    limit: int | None,
    all_projects: bool,
    queues: tuple[str, ...],
    names: tuple[str, ...],
    as_json: bool,
) -> None:
    """Jobs of this project that wait or run; outside of a project, of all."""
    location = find_location(machine)
    for queue in queues:
        # Refused when it can be no queue's name: it is mistyped.
        location.machine_paths.queue(queue)
    count = limit or (sys.maxsize - 1 if all_projects else _LIMIT)

    def is_wanted(view: JobView) -> bool:
        ticket = view.ticket
        return (
            (not queues or (ticket is not None and ticket.queue in queues))
            and (not names or (ticket is not None and ticket.name in names))
            and (not failed or state_name(view) == "failed")
            and (all_projects or location.project is None or belongs_to(view, location.project))
        )

    # One more, to know whether there are more.
    found = _newest(location.machine_paths, terminated or failed, count + 1, is_wanted)
    views = found[:count]
    if as_json:
        print_json([to_dict(view) for view in views])
        return
    print_table(
        (
            *("ID", "Name", "What it runs", "Queue", "State", "Worker"),
            *("Submitted", "Started", "Running Time"),
        ),
        [_row(view) for view in views],
        _nothing(location, terminated, failed, all_projects),
    )
    if len(found) > count:
        remark(f"The newest {count}; to see more, add: -l {10 * count}")


def _newest(
    machine: MachinePaths, ended: bool, limit: int, is_wanted: Callable[[JobView], bool]
) -> list[JobView]:
    """Looks at as few jobs as it can: there may be many, and most of other projects."""
    size = limit
    while True:
        views = list_jobs(machine, ended=ended, limit=size)
        wanted = [view for view in views if is_wanted(view)]
        if len(wanted) >= limit or len(views) < size:
            return wanted[:limit]
        size *= 4


def _row(view: JobView) -> tuple[object, ...]:
    ticket = view.ticket
    return (
        view.job,
        ticket.name if ticket else "(damaged)",
        shortened(shown(what_runs(view)), _WIDTH),
        ticket.queue if ticket else None,
        coloured(state_of(view)),
        view.worker,
        local_time(ticket.submitted if ticket else None),
        local_time(view.started),
        clock_duration(running_seconds(view), digits=3),
    )


def _nothing(location: Location, terminated: bool, failed: bool, all_projects: bool) -> str:
    whose = "no project" if all_projects or location.project is None else "this project"
    text = "There are no jobs" if whose == "no project" else "This project has no jobs"
    if failed:
        return f"{text} that failed."
    if terminated:
        return f"{text}."
    return f"{text} that wait or run; those that ended: kochi show jobs -t"
