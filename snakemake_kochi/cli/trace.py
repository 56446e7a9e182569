"""`kochi trace`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from snakemake_kochi.cli.options import json_option, machine_option
from snakemake_kochi.cli.output import local_time, print_json, print_table, remark
from snakemake_kochi.errors import NameNotFoundError
from snakemake_kochi.location import find_location
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.runs import RunView, find_run, list_runs


@click.command("trace")
@machine_option
@click.option(
    *("-o", "--output", "file"),
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write; by default standard output.",
)
@click.option(
    "--list", "list_them", is_flag=True, help="List the runs, newest first, and export nothing."
)
@json_option
@click.argument("run", required=False, metavar="[RUN]")
def command(
    machine: str | None, file: Path | None, list_them: bool, as_json: bool, run: str | None
) -> None:
    """Export a run as a trace for https://ui.perfetto.dev: each worker is a process, each of its
    slots a track, each job a slice.

    RUN is a run that --list shows, by default the last one in this directory. It may be running,
    ended or killed.
    """
    from snakemake_kochi.trace.events import write_trace
    from snakemake_kochi.trace.history import read_history

    paths = find_location(machine).machine_paths
    if list_them:
        _list(paths, as_json)
        return
    if file is None and sys.stdout.isatty():
        raise click.UsageError("-o FILE was expected: a trace is not for a terminal.")
    history = read_history(paths, _last_run(paths) if run is None else find_run(paths, run))
    if file is None:
        write_trace(history, sys.stdout)
        return
    with file.open("w", encoding="utf-8") as stream:
        write_trace(history, stream)
    remark(f"{file}: open it in https://ui.perfetto.dev")


def _last_run(machine: MachinePaths) -> RunView:
    here = os.getcwd()
    for run in list_runs(machine, here):
        return run
    raise NameNotFoundError(
        f"no run in {here} has handed jobs over to machine {machine.name}",
        "To trace a run, type: kochi trace RUN; to list the runs: kochi trace --list",
    )


def _list(machine: MachinePaths, as_json: bool) -> None:
    runs = list(list_runs(machine))
    if as_json:
        fields = ("controller", "directory", "started", "ended")
        print_json(
            [
                {"state": run.state, **{field: getattr(run, field) for field in fields}}
                for run in runs
            ]
        )
        return
    rows = [
        (run.controller, run.state, local_time(run.started), local_time(run.ended), run.directory)
        for run in runs
    ]
    headers = ("Run", "State", "Started", "Ended", "Directory")
    print_table(headers, rows, "There are no runs.")
