"""`kochi show runs`: the launched runs of a machine."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import click

from snakemake_kochi.cli.options import COUNT, json_option, machine_option
from snakemake_kochi.cli.output import coloured, local_time, print_json, print_table, remark
from snakemake_kochi.detached.control import settled
from snakemake_kochi.detached.launches import Found, all_launches, steps_of
from snakemake_kochi.location import find_location

_STATES = {"launched": "waiting", "unattended": "running", "elsewhere": "running"}


def _or_launch(function: Callable[..., Any]) -> Callable[..., Any]:
    """With --follow or --stop, the command is `kochi launch` with that option."""

    @functools.wraps(function)
    def call(follow: bool, stop: bool, **given: Any) -> Any:
        if not (follow or stop):
            return function(**given)
        from snakemake_kochi.cli.launch import of_last

        return of_last(find_location(given["machine"]), stop=stop)

    return call


@click.command("runs")
@click.option("-f", "--follow", is_flag=True, help="Show the output of the newest one instead.")
@click.option("--stop", is_flag=True, help="Stop the newest one instead.")
@_or_launch
@machine_option
@click.option("-a", "--all", "all_runs", is_flag=True, help="Those of all directories.")
@click.option(
    *("-l", "--limit"),
    type=COUNT,
    default=30,
    show_default=True,
    help="How many to list, the newest first.",
)
@json_option
def runs_command(machine: str | None, all_runs: bool, limit: int, as_json: bool) -> None:
    """List launched runs: those of this directory and of its project, or with -a all, the newest
    first.

    --follow and --stop are those of `kochi launch`, which has --status, too. They are for the
    newest run of this directory.
    """
    location = find_location(machine)
    here = None
    if not all_runs:
        # A batch is launched in the project's directory.
        project = location.project
        here = {os.getcwd(), *([] if project is None else [str(project.directory)])}
    runs = list(_some(all_launches(location.machine_paths, here), limit))
    if as_json:
        print_json([_to_dict(run) for run in runs])
        return
    headers = ["Run", "State", "Launched", "Done", "Failed", "Name"]
    print_table(
        [*headers, "Directory"] if all_runs else headers,
        [_row(run, all_runs) for run in runs],
        f"No run was launched {'' if all_runs else 'in this directory '}on machine "
        f"{location.machine.name}. To launch one, type: kochi launch",
    )
    if any(not run.is_over for run in runs):
        remark(f"To follow the newest one, type: {location.typed('launch', '--follow')}")


def _some(found: Iterator[Found], limit: int) -> Iterator[Found]:
    for run, _ in zip(found, range(limit), strict=False):
        yield run if run.is_over else settled(run)


def _row(run: Found, with_directory: bool) -> list[object]:
    steps = steps_of(run)
    return [
        run.launch.identity,
        coloured(_state(run)),
        local_time(run.launch.time).partition(".")[0],
        None if steps is None else f"{steps.done} of {steps.total}",
        None if steps is None else steps.failed or None,
        run.launch.name,
        *([run.launch.directory] if with_directory else []),
    ]


def _state(run: Found) -> str:
    """The state in a word or two; it begins with a word that has a colour."""
    if run.state == "ended":
        if run.is_time_up:
            return "failed: time limit"
        return "done" if run.status == 0 else f"failed: exit {run.status}"
    return _STATES.get(run.state, run.state)


def _to_dict(run: Found) -> dict[str, object]:
    steps = steps_of(run)
    counts = {f"steps_{key}": getattr(steps, key, None) for key in ("done", "failed", "total")}
    return run.describe() | counts
