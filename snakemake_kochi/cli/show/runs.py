"""`kochi show runs`: the launched runs of a machine."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

import click

from snakemake_kochi.cli.options import COUNT, json_option, machine_option
from snakemake_kochi.cli.output import coloured, local_time, print_json, print_table, remark
from snakemake_kochi.detached.control import settled
from snakemake_kochi.detached.launches import Found, all_launches, steps_of
from snakemake_kochi.location import find_location

_STATES = {"launched": "waiting", "unattended": "running", "elsewhere": "running"}


@click.command("runs")
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
    """List launched runs: those of this directory, or with -a of all, the newest first.

    `kochi launch --follow`, --status and --stop are for the newest one of a directory.
    """
    location = find_location(machine)
    here = None if all_runs else os.getcwd()
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
        on = f" -m {shlex.quote(location.machine.name)}" if location.is_named else ""
        remark(f"To follow the newest one, type: kochi launch{on} --follow")


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
