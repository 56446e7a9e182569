"""`kochi show pipeline`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from snakemake_kochi.cli.options import default_batch, json_option, machine_option, where_option
from snakemake_kochi.cli.output import print_json, remark, say, shown
from snakemake_kochi.errors import KochiError

if TYPE_CHECKING:
    from snakemake_kochi.library.batch import BatchRules
    from snakemake_kochi.library.products import Variant
    from snakemake_kochi.location import Location
    from snakemake_kochi.phases.products import Install
    from snakemake_kochi.project.grid import Point

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
    """Show the texts that are executed for one run, from the request for an allocation to its
    script.

    They are those of the first point for which the conditions hold. Nothing is executed. What is
    only known when the job runs is in angle brackets.
    """
    from snakemake_kochi.enqueue.experiment_files import globs_with, load, path_in_project
    from snakemake_kochi.library.batch import BatchRules
    from snakemake_kochi.library.library import check_part, name_of
    from snakemake_kochi.library.products import Products
    from snakemake_kochi.location import find_location
    from snakemake_kochi.phases.freeze import EXPERIMENT_GLOBS, take_freeze
    from snakemake_kochi.project.conditions import Where

    location = find_location(machine)
    project = location.require_project()
    path = path_in_project(project, file)
    batch = batch or default_batch("BATCH", load(project, path))
    os.chdir(project.directory)
    globs = globs_with(project, path) or EXPERIMENT_GLOBS
    freeze = take_freeze(Path.cwd(), location.machine.name, globs, named=path)
    rules = BatchRules.of(Products(freeze), freeze.experiment(path), batch)
    grid = rules.grid
    where = Where.parse(conditions) if conditions else None
    if where is not None and grid.points:
        check_part(where, grid)
    of_point = {id(place.point): place for place in rules.files.places}
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
    stages = [*_before(location, rules, place.point), *_on_node(rules, place.point)]
    identity = rules.identity(place.point)
    if as_json:
        print_json(
            {
                "experiment": path,
                "batch": batch,
                "machine": grid.machine,
                "parameters": dict(place.point.parameters),
                "duplicate": place.point.duplicate,
                "identity": identity,
                "results": list(map(str, place.files)),
                "stages": [each._asdict() for each in stages],
            }
        )
        return 0
    values = {**place.point.parameters, "duplicate": str(place.point.duplicate)}
    say(f"Point: {shown(', '.join(f'{name}={value}' for name, value in values.items()))}")
    say(f"Identity of the run: {identity}")
    for number, stage in enumerate(stages, 1):
        say(f"\n{number}. {stage.name}{f' ({stage.note})' if stage.note else ''}")
        for line in stage.text.rstrip("\n").splitlines():
            say(f"    {line}".rstrip())
    say("\nResults:")
    for each in place.files:
        say(f"    {shown(str(each))}")
    if len(chosen) > 1:
        remark(
            f"This is the first of {len(chosen)} runs; the others differ in values. To choose "
            "one, add -w NAME=VALUE."
        )
    return 0


class _Stage(NamedTuple):
    """A step of the way to the script of a run: its text for bash, and a note for people."""

    name: str
    text: str
    note: str = ""


def _before(location: Location, batch: BatchRules, point: Point) -> Iterator[_Stage]:
    """The request for an allocation, whose script starts the worker."""
    if location.machine.has_allocations:
        try:
            yield _Stage(
                "allocation", _submission(location, batch, point), "if no other job waited"
            )
        except KochiError as error:
            yield _Stage("allocation", "", f"not known now: {error.message}")


def _on_node(batch: BatchRules, point: Point) -> Iterator[_Stage]:
    from snakemake_kochi.phases.batch_freeze import BatchFreeze
    from snakemake_kochi.phases.launcher import line_of, shape_of
    from snakemake_kochi.phases.script import Environment, mode_of, source_variables
    from snakemake_kochi.project.values import CODE

    code = point.parameters.get(CODE, "")
    known = BatchFreeze.of(batch.freeze, batch.experiment, batch.grid.batch, code)
    for recipe in batch.variants.at(point).recipes:
        exports = _exports(recipe.envs)
        yield _Stage(f"install {recipe}", f"{exports}{recipe.install_script}\n", "once")
    preamble = Environment(
        known.load_environment, _installs(batch.variants.at(point)), {}
    ).preamble()
    variables = {
        "KOCHI_MACHINE": known.machine_name,
        **source_variables(known.snapshot["base"], known.snapshot["dirty"]),
    }
    prepared = {}
    if (step := batch.grid.prepare) is not None:
        exports = _exports(step.environment(point.parameters))
        yield _Stage("prepare", f"{exports}{step.script}\n", "once per batch")
        prepared = {"KOCHI_PREPARED": "<what prepare made>"}
    if known.build.script.strip():
        exports = _exports(variables | known.build.environment(point.parameters))
        text = f"{exports}{preamble}{mode_of(known.build.strict)}\n{known.build.script}\n"
        yield _Stage("build", text, "once for all runs with the same sources and parameters")
    placement = batch.placement(point)
    shape, _ = shape_of(placement.resources, placement.resources.get("nodes", 1))
    variables |= {"KOCHI_JOB_NAME": point.name, **prepared}
    variables |= {"KOCHI_LAUNCH": line_of(placement.launcher, shape)}
    exports = _exports(variables | dict(point.environment(known.run)))
    yield _Stage("environment", f"{exports}{preamble}{mode_of(known.run.strict)}\n")
    isolation = known.run.isolation
    words = "" if isolation is None else ", ".join(isolation.words) or "container"
    yield _Stage("script", f"{known.run.script}\n", words and f"isolated: {words}")


def _installs(variant: Variant) -> tuple[Install, ...]:
    """The installations that a point uses, or, before they are made, what is known of them."""
    from snakemake_kochi.phases.products import Install, merge, read_manifest

    try:
        return merge(read_manifest(Path(file)) for file in variant.installs)
    except (FileNotFoundError, KochiError):
        return tuple(
            Install(r.dependency, r.name, "", f"<prefix of {r}>", {}, r.activate_script)
            for r in variant.recipes
        )


def _exports(variables: Mapping[str, str]) -> str:
    return "".join(f"export {name}={shlex.quote(text)}\n" for name, text in variables.items())


def _submission(location: Location, batch: BatchRules, point: Point) -> str:
    """What would be submitted for the job of a point alone."""
    import logging

    from snakemake_kochi.allocation.request import text_for_one_job
    from snakemake_kochi.allocation.workers import make_scheduler
    from snakemake_kochi.executor.admission import resources_of
    from snakemake_kochi.executor.job_queues import ExpectedJob, JobQueues
    from snakemake_kochi.schedulers.commands import ONCE

    run = batch.runs[0]
    job = ExpectedJob(
        run.name,
        point.request.threads or 1,
        {
            **point.request.of_rule,
            **{name: run.resources[name] for name in ("kochi_exclusive", "kochi_pinned")},
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
        rule=run.name,
    )
