"""The points of a batch, made from its combinations of parameters: all of a grid.

A run makes its own point only, and does not load this module.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.expansion import Expansion
from snakemake_kochi.project.grid import (
    MAXIMUM_DUPLICATES,
    Batch,
    Point,
    PointTexts,
    point_problems,
)
from snakemake_kochi.project.machine_facts import Facts
from snakemake_kochi.project.parameters import Skipped, without_parameter
from snakemake_kochi.project.problems import KeyPath, Problems
from snakemake_kochi.project.requests import Requests, request_texts
from snakemake_kochi.project.templates import is_fact
from snakemake_kochi.project.values import encode_component

_log = logging.getLogger(__name__)

MAXIMUM_POINTS = 1_000_000
# From here on, planning takes minutes and a gigabyte.
_MANY_POINTS = 100_000
_MOST_TOLD = 10**12


def make_points(
    batch: Batch, expansions: Sequence[Expansion], facts: Facts, problems: Problems
) -> tuple[tuple[Point, ...], tuple[Skipped, ...]]:
    """The points of a batch, duplicates innermost, and the combinations that it skips.

    `expansions`: those of its sweeps. If a problem is noted, the points are for further checks
    only: what has no value is missing or empty in them.
    """
    if _are_too_many(batch, expansions, problems):
        return (), ()
    path: KeyPath = ("batches", batch.name)
    all_texts = PointTexts.parse(batch.job_name, batch.queue, batch.artifacts)
    encodings: dict[str, str] = {}
    known: dict[tuple[str, ...], PointTexts] = {}
    points = []
    skipped = []
    for index, parameters, reason in _combinations(expansions, problems):
        if reason:
            skipped.append(Skipped(parameters, reason))
            continue
        for value in (batch.name, *parameters.values()):
            if value not in encodings:
                encodings[value] = encode_component(value)
        encoded = {name: encodings[value] for name, value in parameters.items()}
        encoded["batch_name"] = encodings[batch.name]
        names = tuple(parameters)
        if names not in known:
            known[names] = all_texts.knowing(names, batch.sometimes)
            for at_key, missing in all_texts.missing(names):
                if missing in batch.sometimes:
                    said = without_parameter(missing, parameters, batch.parameters)
                    at = problems.source_map.first((*path, *at_key), (f"default_{at_key[0]}",))
                    problems.add_example(at, said)
        for duplicate in range(batch.duplicates):
            point = known[names].point(parameters, batch.name, duplicate, encoded, index)
            for key, wrong in point_problems(point):
                at = problems.source_map.first((*path, key), (f"default_{key}",), path)
                problems.add_example(at, wrong)
            points.append(point)
    if not (points or skipped or problems):
        excluding = next((sweep for sweep in batch.sweeps if sweep.exclude), None)
        if excluding is not None:
            place = (*excluding.place, "exclude")
            problems.add(place, "nothing is left of the grid; remove an entry")
        else:
            place = (*batch.sweeps[0].place, "params")
            problems.add(place, "there is no point, because a parameter has no values")
    if request_texts(batch.run) or request_texts(batch.build):
        points = list(_with_requests(points, batch, facts, problems))
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
                said = f"is in {expansions[first].called}, too; leave it out of one"
                if first == index:
                    said = "is there twice: two values are the same when they are computed"
                problems.add_example(expansion.path, f"the point ({shown}) {said}")
    for parameters, (index, reason) in skipped.items():
        if parameters not in owners:
            yield index, parameters, reason


def _with_requests(
    points: Iterable[Point], batch: Batch, facts: Facts, problems: Problems
) -> Iterator[Point]:
    """The points with their requests, noting what is wrong in these and in those of builds."""
    requests = {"run": Requests(batch.run), "build": Requests(batch.build)}
    for point in points:
        values = {**facts.values, **point.parameters}
        for phase, each in requests.items():
            told = dict(each.of(values)[1])
            for key, name in each.without_value(values):
                if is_fact(name):
                    told[key] = facts.problem(name)
                elif name in batch.sometimes:
                    told[key] = without_parameter(name, point.parameters, batch.parameters)
            for key, said in told.items():
                own: KeyPath = ("batches", batch.name, phase, *key)
                problems.add_example(problems.source_map.first(own, (phase, *key)), said)
        yield replace(point, request=requests["run"].of(values)[0])
