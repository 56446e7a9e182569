"""`kochi show pipeline`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from snakemake_kochi.cli.options import default_batch, json_option, machine_option, where_option
from snakemake_kochi.cli.output import print_json, remark, say, shown
from snakemake_kochi.errors import KochiError

if TYPE_CHECKING:
    from snakemake_kochi.library.pipeline import Stage
    from snakemake_kochi.library.restorable import Place
    from snakemake_kochi.location import Location

# In place of the name of the run, which is random and becomes a part of paths.
_CONTROLLER = "RUN"


@click.command("pipeline")
@machine_option
@where_option
@json_option
@click.argument("file", metavar="FILE.yaml")
@click.argument("batch", metavar="BATCH", required=False)
def pipeline_command(
    machine: str | None, conditions: tuple[str, ...], as_json: bool, file: str, batch: str | None
) -> int:
    """Show what one run goes through, from snakemake to its command.

    Each stage is the text that would be executed, for the first point for which the conditions
    hold. Nothing is executed. What is only known when the job runs is in angle brackets.
    """
    from snakemake_kochi.enqueue.experiment_files import globs_with, load, path_in_project
    from snakemake_kochi.library.batch import BatchRules
    from snakemake_kochi.library.outputs import Outputs
    from snakemake_kochi.library.part import check_part, name_of
    from snakemake_kochi.library.pipeline import stages_on_node
    from snakemake_kochi.library.restorable import places
    from snakemake_kochi.location import find_location
    from snakemake_kochi.phases.freeze import EXPERIMENT_GLOBS, take_freeze
    from snakemake_kochi.phases.variants import with_variants
    from snakemake_kochi.project.conditions import Where

    location = find_location(machine)
    project = location.require_project()
    path = path_in_project(project, file)
    batch = batch or default_batch("BATCH", load(project, path))
    os.chdir(project.directory)
    globs = globs_with(project, path) or EXPERIMENT_GLOBS
    freeze = take_freeze(Path.cwd(), location.machine.name, globs, named=path)
    freeze = with_variants(freeze, Path.cwd())
    rules = BatchRules.of(Outputs(freeze), freeze.experiment(path), batch)
    grid = rules.grid
    where = Where.parse(conditions) if conditions else None
    if where is not None and grid.points:
        check_part(where, grid)
    of_point = {id(place.point): place for place in places(rules)}
    chosen = [
        of_point[id(point)]
        for point in grid.points
        if where is None or where.has(point.parameters, point.duplicate)
    ]
    if not chosen:
        raise KochiError(
            f"{name_of(grid)}: all points are skipped on machine {grid.machine}",
            f"To see why, type: {shlex.join(['kochi', 'show', 'batch', path, batch])}",
        )
    place = chosen[0]
    stages = [*_before(location, place), *stages_on_node(freeze, place)]
    values = {**place.point.parameters, "duplicate": str(place.point.duplicate)}
    if as_json:
        print_json(
            {
                "experiment": path,
                "batch": batch,
                "machine": grid.machine,
                "parameters": dict(place.point.parameters),
                "duplicate": place.point.duplicate,
                "identity": place.identity,
                "results": [str(each) for each in place.files.values()],
                "stages": [asdict(stage) for stage in stages],
            }
        )
        return 0
    for line in _lines(stages, place, values, location.machine.has_allocations):
        say(line)
    if len(chosen) > 1:
        remark(
            f"This is the first of {len(chosen)} runs; the others differ in values. To choose "
            "one, add -w NAME=VALUE."
        )
    return 0


def _lines(
    stages: list[Stage], place: Place, values: dict[str, str], has_nodes: bool
) -> Iterator[str]:
    from snakemake_kochi.library.pipeline import CONTROLLER, NODE

    here, there = ("login node", "compute node") if has_nodes else ("this computer",) * 2
    where = {CONTROLLER: here, NODE: there}
    yield f"Point: {shown(', '.join(f'{name}={value}' for name, value in values.items()))}"
    yield f"Identity of the run: {place.identity}"
    for number, stage in enumerate(stages, 1):
        yield ""
        yield f"{number}. {stage.name} ({where[stage.where]})"
        if stage.note:
            yield stage.note
        yield from (f"    {line}" if line else "" for line in stage.text.splitlines())
    yield ""
    yield "Results:"
    yield from (f"    {shown(str(file))}" for file in place.files.values())


# ---- before a job is on its node


def _before(location: Location, place: Place) -> Iterator[Stage]:
    """The stages up to the worker."""
    from snakemake_kochi.library.pipeline import CONTROLLER, NODE, Stage
    from snakemake_kochi.worker.settings import start_command

    machine, batch = location.machine, place.batch
    profile = "cluster" if machine.has_allocations else "local"
    command = ["snakemake", "--profile", profile, batch.name]
    yield Stage("snakemake", CONTROLLER, f"{shlex.join(command)}\n", "As you type it.")
    if place.point.queue:
        said = f"The job goes to the queue {place.point.queue}. A worker of yours that serves it "
        note = f"{said}takes the job; else it gets what follows."
    else:
        note = ""
    if not machine.has_allocations:
        text = f"{shlex.join(start_command(Path('SETTINGS')))}\n"
        yield Stage("worker", NODE, text, note or "The run starts it on this computer.")
        return
    usual = "Without --set-resources, and if no other job waited."
    try:
        text = _submission(location, place)
    except KochiError as error:
        yield Stage("allocation", CONTROLLER, "", f"Not known now: {error.message}")
        return
    yield Stage("allocation", CONTROLLER, text, f"{note} {usual}".strip())
    worker = next((line for line in text.splitlines() if line.startswith("exec ")), "")
    yield Stage("worker", NODE, f"{worker}\n", "The end of that script.")


def _submission(location: Location, place: Place) -> str:
    """What would be submitted for the job of a point alone."""
    import logging

    from snakemake_kochi.allocation.request import text_for_one_job
    from snakemake_kochi.allocation.workers import make_scheduler
    from snakemake_kochi.executor.admission import resources_of
    from snakemake_kochi.executor.expected_jobs import ExpectedJob
    from snakemake_kochi.executor.job_queues import JobQueues
    from snakemake_kochi.schedulers.commands import ONCE

    batch, point = place.batch, place.point
    job = ExpectedJob(
        batch.run_name(0),
        point.request.threads or 1,
        {
            **point.request.of_rule,
            "kochi_exclusive": int(batch.grid.run.exclusive),
            "kochi_pinned": int(batch.requests_cores),
        },
        batch.describe(point),
    )
    scheduler = make_scheduler(location.machine, f"kochi-{_CONTROLLER}", pace=ONCE)
    queues = JobQueues(
        _CONTROLLER,
        True,
        logging.getLogger(__name__),
        location.machine.allocation.nodes,
        location.machine.scheduler is None,
    )
    assigned = queues.assign(job, point.queue or _CONTROLLER, resources_of(job), True)
    return text_for_one_job(
        *(location, scheduler, _CONTROLLER, assigned.queue, assigned.request, assigned.resources),
        rule=batch.run_name(0),
    )
