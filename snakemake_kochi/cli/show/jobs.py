"""`kochi show jobs`."""

from __future__ import annotations

from collections.abc import Callable

import click

from snakemake_kochi.cli.options import COUNT, json_option, machine_option
from snakemake_kochi.cli.output import coloured, local_time, print_json, print_table, remark
from snakemake_kochi.cli.project_jobs import belongs_to
from snakemake_kochi.cli.show.job_data import state_of, to_dict
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.place import Place, find_place
from snakemake_kochi.queue import JobView, list_jobs


@click.command("jobs")
@machine_option
@click.option("-t", "--terminated", is_flag=True, help="Also those that ended.")
@click.option(
    *("-l", "--limit"),
    type=COUNT,
    default=30,
    show_default=True,
    help="How many, the newest first.",
)
@click.option("-a", "--all", "all_projects", is_flag=True, help="Of all projects.")
@click.option("-q", "--queue", metavar="QUEUE", help="Only of this queue.")
@click.option("-n", "--name", metavar="NAME", help="Only of this name.")
@json_option
def command(
    machine: str | None,
    terminated: bool,
    limit: int,
    all_projects: bool,
    queue: str | None,
    name: str | None,
    as_json: bool,
) -> None:
    """Jobs of this project that wait or run; outside of a project, of all."""
    place = find_place(machine)
    if queue is not None:
        # Refused when it can be no queue's name: it is mistyped.
        place.machine_paths.queue(queue)

    def is_wanted(view: JobView) -> bool:
        ticket = view.ticket
        return (
            (queue is None or (ticket is not None and ticket.queue == queue))
            and (name is None or (ticket is not None and ticket.name == name))
            and (all_projects or place.project is None or belongs_to(view, place.project))
        )

    # One more, to know whether there are more.
    found = _newest(place.machine_paths, terminated, limit + 1, is_wanted)
    views = found[:limit]
    if as_json:
        print_json([to_dict(view) for view in views])
        return
    print_table(
        ("ID", "Name", "Queue", "State", "Worker", "Submitted", "Started", "Ended"),
        [_row(view) for view in views],
        _nothing(place, terminated, all_projects),
    )
    if len(found) > limit:
        remark(f"The newest {limit}; to see more, add: -l {10 * limit}")


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
    ticket, result = view.ticket, view.result
    return (
        view.job,
        ticket.name if ticket else "(damaged)",
        ticket.queue if ticket else None,
        coloured(state_of(view)),
        view.worker,
        local_time(ticket.submitted if ticket else None),
        local_time(view.started),
        local_time(result.ended if result else None),
    )


def _nothing(place: Place, terminated: bool, all_projects: bool) -> str:
    whose = "no project" if all_projects or place.project is None else "this project"
    text = "There are no jobs" if whose == "no project" else "This project has no jobs"
    if terminated:
        return f"{text}."
    return f"{text} that wait or run; those that ended: kochi show jobs -t"
