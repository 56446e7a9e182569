"""The points of a batch, made from its combinations of parameters: all of a grid.

A run makes its own point only, and does not load this module.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.expansion import Expansion
from snakemake_kochi.project.grid import (
    MAXIMUM_DUPLICATES,
    Artifact,
    Batch,
    Point,
    PointTexts,
    Recorded,
    point_problems,
)
from snakemake_kochi.project.parameters import Given, Skipped, without_parameter
from snakemake_kochi.project.problems import KeyPath, Problems
from snakemake_kochi.project.requests import missing_names, request_of
from snakemake_kochi.project.templates import is_fact

if TYPE_CHECKING:
    from snakemake_kochi.project.experiment import Experiment

_log = logging.getLogger(__name__)

MAXIMUM_POINTS = 1_000_000
# From here on, planning takes minutes and a gigabyte.
_MANY_POINTS = 100_000
_MOST_TOLD = 10**12


def make_points(
    batch: Batch, expansions: Sequence[Expansion], facts: Given, problems: Problems
) -> tuple[tuple[Point, ...], tuple[Skipped, ...]]:
    """The points of a batch, duplicates innermost, and the combinations that it skips.

    `expansions`: those of its sweeps. If a problem is noted, the points are for further checks
    only: what has no value is missing or empty in them.
    """
    if _are_too_many(batch, expansions, problems):
        return (), ()
    path: KeyPath = ("batches", batch.name)

    def place(*keys: str | int) -> KeyPath:
        default = (f"default_{keys[0]}",) if keys[0] in ("name", "queue") else keys
        return problems.source_map.first((*path, *keys), default, path)

    texts = PointTexts.parse(batch.job_name, batch.queue, batch.artifacts)
    points = []
    skipped = []
    for index, parameters, reason in _combinations(expansions, problems):
        if reason:
            skipped.append(Skipped(parameters, reason))
            continue
        values = {**facts.values, **parameters}
        missing = list(texts.missing(parameters))
        for phase, key in ((batch.run, "run"), (batch.build, "build")):
            missing += [((key, *at), name) for at, name in missing_names(phase, values)]
        for at, name in missing:
            if is_fact(name):
                problems.add_example(place(*at), facts.problem(name))
            elif name in batch.sometimes:
                said = without_parameter(name, parameters, batch.parameters)
                problems.add_example(place(*at), said)
        request, wrong = request_of(batch.run, values)
        told = {("run", *at): said for at, said in wrong.items()}
        told |= {("build", *at): said for at, said in request_of(batch.build, values)[1].items()}
        for at, said in told.items():
            problems.add_example(place(*at), said)
        for duplicate in range(batch.duplicates):
            point = texts.point(parameters, batch.name, duplicate, index, batch.sometimes)
            for key, said in point_problems(point):
                problems.add_example(place(key), said)
            points.append(replace(point, request=request))
    if not (points or skipped or problems):
        excluding = next(sweep for sweep in batch.sweeps if sweep.exclude)
        said = "nothing is left of the grid; remove an entry"
        problems.add((*excluding.place, "exclude"), said)
    return tuple(points), tuple(skipped)


def _are_too_many(batch: Batch, expansions: Iterable[Expansion], problems: Problems) -> bool:
    path: KeyPath = ("batches", batch.name)
    if batch.duplicates > MAXIMUM_DUPLICATES:
        told = f"{batch.duplicates} duplicates; at most {MAXIMUM_DUPLICATES} are possible"
        problems.add((*path, "duplicates"), told)
        return True
    count = batch.duplicates * sum(each.count for each in expansions)
    if count > MAXIMUM_POINTS:
        told = str(count) if count <= _MOST_TOLD else f"more than {_MOST_TOLD}"
        said = f"{told} points; at most {MAXIMUM_POINTS} are possible"
        problems.add(path, f"{said}; give the parameters fewer values")
        return True
    if count >= _MANY_POINTS:
        _log.warning("batch %s has %d points; planning them takes minutes", batch.name, count)
    return False


def _combinations(
    expansions: Sequence[Expansion], problems: Problems
) -> Iterator[tuple[int, FrozenDict[str, str], str]]:
    """The index of the sweep of each combination, its parameters, and why it is skipped.

    A point that one sweep skips and another one has is not skipped.
    """
    owners: dict[FrozenDict[str, str], int] = {}
    skipped: dict[FrozenDict[str, str], tuple[int, str]] = {}
    for index, expansion in enumerate(expansions):
        for parameters, reason in expansion:
            if reason:
                skipped.setdefault(parameters, (index, reason))
            elif (first := owners.get(parameters)) is None:
                owners[parameters] = index
                yield index, parameters, ""
            elif first != index or not problems:
                shown = ", ".join(f"{name}={value}" for name, value in parameters.items())
                said = f"is in {expansions[first].sweep.called}, too; leave it out of one"
                if first == index:
                    said = "is there twice: two values are the same when they are computed"
                problems.add_example(expansion.sweep.place, f"the point ({shown}) {said}")
    for parameters, (index, reason) in skipped.items():
        if parameters not in owners:
            yield index, parameters, reason


# ---- what was recorded: a rerun on another machine has the values of the machine of the record


def only_recorded(
    experiment: Experiment, recorded: Mapping[str, Sequence[Recorded]], below: str
) -> Experiment:
    """The experiment with these batches and points only, with all artifacts in the directory
    `below`.

    Raises NameNotFoundError for a batch that the experiment does not have.
    """
    batches = {}
    for name, points in recorded.items():
        batch = experiment.batch(name)
        artifacts = (Artifact(a.type, f"{below}/{a.dest}", a.src) for a in batch.artifacts)
        batches[name] = replace(
            batch, artifacts=tuple(artifacts), recorded=tuple(points), below=below
        )
    return replace(experiment, batches=FrozenDict(batches), remarks=())


def recorded_points(file: str, batch: Batch, names: Sequence[str], facts: Given) -> Iterator[Point]:
    """The points of a batch that were recorded.

    `names`: the parameters of the batch in the experiment `file`. Raises ConfigError for
    a point with others, or with values that no such point has.
    """
    texts = PointTexts.parse(batch.job_name, batch.queue, batch.artifacts)
    for each in batch.recorded or ():
        where = f"{file}: batch '{batch.name}', record {each.identity}"
        differing = sorted(({*each.parameters} ^ {*names}) - batch.sometimes)
        if differing:
            raise ConfigError(
                f"{where}: it does not have the parameters of the batch, but differs in "
                f"{', '.join(differing)}",
                "Was the record edited? A record describes the code that it names.",
            )
        # In the order of the file, as in the grid.
        parameters = FrozenDict((n, each.parameters[n]) for n in names if n in each.parameters)
        point = texts.point(parameters, batch.name, each.duplicate)
        request, wrong = request_of(batch.run, {**facts.values, **parameters})
        problems = [said for _, said in point_problems(point)]
        problems += [f"run.{'.'.join(map(str, key))}: {said}" for key, said in wrong.items()]
        if problems:
            raise ConfigError(f"{where}: {problems[0]}")
        yield replace(point, request=request, rerun_of=each.identity)
