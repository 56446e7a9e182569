"""Making the points of a batch: every combination of its parameters, resolved."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from snakemake_kochi.files import is_name
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.expressions import TemplateError
from snakemake_kochi.project.grid import Batch, Point, PointTexts
from snakemake_kochi.project.problems import KeyPath, Problems
from snakemake_kochi.project.templates import Value, dependency_order, parse_value
from snakemake_kochi.project.values import (
    BATCH_NAME,
    encode_component,
    has_control_character,
    value_problem,
)

_log = logging.getLogger(__name__)

MAXIMUM_POINTS = 1_000_000
# Nobody repeats one point so often; an extra zero is noticed before anything is made.
MAXIMUM_DUPLICATES = 10_000
# From here on, planning takes minutes and a gigabyte.
_MANY_POINTS = 100_000
_MOST_TOLD = 10**12


def job_name_problem(name: str) -> str | None:
    """Why a text cannot be a job's name, or None."""
    if has_control_character(name):
        return "a control character (as a line break) is not possible in a job's name"
    return None


def queue_problem(queue: str) -> str | None:
    """Why a text cannot be a queue's name, or None."""
    if not is_name(queue):
        return (
            "the queue's name cannot be used in paths; 1 to 128 letters, digits and any of "
            "._+@=- were expected, not starting with a dot or dash"
        )
    return None


def point_problems(point: Point) -> Iterator[tuple[str, str]]:
    """The keys ("name", "queue") that are wrong in a resolved point, and the problems."""
    wrong = job_name_problem(point.name)
    if wrong:
        yield "name", f"{point.name!r}: {wrong}"
    wrong = None if point.queue is None else queue_problem(point.queue)
    if wrong:
        yield "queue", f"{point.queue!r}: {wrong}"


def cores_of(value: Value, parameters: Mapping[str, str]) -> int:
    """How many cores a run requests with its parameters. Raises TemplateError."""
    text = value.render(parameters)
    if not re.fullmatch(r"0*[1-9][0-9]{0,8}", text, re.ASCII):
        given = ", ".join(f"{name}={parameters[name]!r}" for name in dict.fromkeys(value.names))
        where = f" with {given}" if given else ""
        raise TemplateError(
            f"a whole number of cores, 1 or more, was expected, not {text!r}{where}"
        )
    return int(text)


def resolve_all(
    columns: Mapping[str, tuple[Value, ...]],
    place: Mapping[str, KeyPath],
    problems: Problems,
    batch: str = "",
) -> Iterator[FrozenDict[str, str]]:
    """Every combination of the values, resolved; the last parameter varies fastest.

    `batch` is the value of `${batch_name}`. A parameter whose value cannot be computed is noted and
    left out of its combination, together with those that use it. Raises ConfigError for a cycle.
    """
    try:
        order = dependency_order(columns)
    except TemplateError as error:
        raise problems.source_map.error((), str(error)) from error
    names = list(columns)
    for combination in itertools.product(*columns.values()):
        templates = dict(zip(names, combination, strict=True))
        values = {BATCH_NAME: batch}
        for name in order:
            try:
                text = templates[name].render(values)
            except KeyError:  # of a parameter without a value, which was noted
                continue
            except TemplateError as error:
                problems.add_example(place[name], str(error))
                continue
            wrong = value_problem(text)
            if wrong:
                problems.add_example(place[name], wrong)
            else:
                values[name] = text
        yield FrozenDict((name, values[name]) for name in names if name in values)


def make_points(
    batch: Batch,
    columns: Mapping[str, tuple[Value, ...]],
    place: Mapping[str, KeyPath],
    problems: Problems,
) -> tuple[Point, ...]:
    """The points of a batch, duplicates innermost.

    If a problem is noted, the points are for further checks only: what has no value is missing or
    empty in them.
    """
    path: KeyPath = ("batches", batch.name)
    if batch.duplicates > MAXIMUM_DUPLICATES:
        told = f"{batch.duplicates} duplicates; at most {MAXIMUM_DUPLICATES} are possible"
        problems.add((*path, "duplicates"), told)
        return ()
    count = batch.duplicates
    for values in columns.values():
        count *= len(values)
    if count > MAXIMUM_POINTS:
        told = str(count) if count <= _MOST_TOLD else f"more than {_MOST_TOLD}"
        problems.add(path, f"{told} points; at most {MAXIMUM_POINTS} are possible")
        return ()
    if count >= _MANY_POINTS:
        _log.warning("batch %s has %d points: to plan them takes minutes", batch.name, count)
    all_texts = PointTexts.parse(batch.job_name, batch.queue, batch.artifacts)
    encodings: dict[str, str] = {}
    known: dict[tuple[str, ...], PointTexts] = {}
    points = []
    for parameters in resolve_all(columns, place, problems, batch.name):
        for value in (batch.name, *parameters.values()):
            if value not in encodings:
                encodings[value] = encode_component(value)
        encoded = {name: encodings[value] for name, value in parameters.items()}
        encoded["batch_name"] = encodings[batch.name]
        names = tuple(parameters)
        if names not in known:
            known[names] = all_texts.knowing(names)
        for duplicate in range(batch.duplicates):
            point = known[names].point(parameters, batch.name, duplicate, encoded)
            for key, wrong in point_problems(point):
                at = problems.source_map.first((*path, key), (f"default_{key}",), path)
                problems.add_example(at, wrong)
            points.append(point)
    if not batch.run.cores:
        return tuple(points)
    return tuple(_with_cores(points, parse_value(batch.run.cores), batch, problems))


def _with_cores(
    points: Iterable[Point], value: Value, batch: Batch, problems: Problems
) -> Iterator[Point]:
    for point in points:
        try:
            yield replace(point, cores=cores_of(value, point.parameters))
        except KeyError:  # of a parameter without a value, which was noted
            yield point
        except TemplateError as error:
            place = problems.source_map.first(
                ("batches", batch.name, "run", "cores"), ("run", "cores")
            )
            problems.add(place, str(error))
            yield point


def varying_parameters(points: Iterable[Point]) -> tuple[str, ...]:
    """The parameters that have more than one value over the points."""
    seen: dict[str, set[str]] = {}
    for point in points:
        for name, value in point.parameters.items():
            seen.setdefault(name, set()).add(value)
    return tuple(name for name, values in seen.items() if len(values) > 1)
