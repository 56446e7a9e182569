"""Batches, their grids and points: every combination of the parameters, resolved.

Every run of a batch loads this module to make its own point, so it imports neither YAML nor
recipes.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from snakemake_kochi.files import is_name
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.templates import (
    Template,
    TemplateError,
    Value,
    parse_value,
)
from snakemake_kochi.project.values import (
    BATCH_NAME,
    SUBSTITUTED,
    encode_component,
    environment_name,
    has_control_character,
    value_problem,
)

if TYPE_CHECKING:
    from snakemake_kochi.project.problems import KeyPath, Problems
    from snakemake_kochi.project.recipes import Requirement


_log = logging.getLogger(__name__)

MAXIMUM_POINTS = 1_000_000
# No benchmark repeats a point so often; the limit finds an extra zero before any point is made.
MAXIMUM_DUPLICATES = 10_000
# From here on, planning takes minutes and a gigabyte.
_MANY_POINTS = 100_000
_MOST_TOLD = 10**12
_NOTHING = Template(("",), ())


@dataclass(frozen=True)
class Phase:
    """A script and the parameters that it sees. `cores`, an unresolved value, is empty if not
    given."""

    depend_params: tuple[str, ...]
    script: str
    strict: bool = True
    exclusive: bool = True
    cores: str = ""

    def environment(self, parameters: Mapping[str, str]) -> dict[str, str]:
        """KOCHI_PARAM_<NAME> for the parameters on which the phase depends."""
        return {
            f"KOCHI_PARAM_{environment_name(name)}": parameters[name] for name in self.depend_params
        }


@dataclass(frozen=True)
class Artifact:
    """A result file: `type` is stdout, stats or file (`src`: its path in the workspace)."""

    type: str
    dest: str
    src: str | None


@dataclass(frozen=True)
class Point:
    """One combination of parameters, all resolved; `duplicate` counts repetitions from 0, `cores`
    is what the run requests, if anything. `rerun_of` is the record that a rerun repeats."""

    parameters: Mapping[str, str]
    duplicate: int
    name: str
    queue: str | None
    artifacts: tuple[Artifact, ...]
    cores: int | None = None
    rerun_of: str = ""

    def environment(self, phase: Phase) -> dict[str, str]:
        """KOCHI_PARAM_<NAME> for the parameters on which the phase depends, and no others."""
        return phase.environment(self.parameters)


@dataclass(frozen=True)
class ParameterValues:
    """Values of a parameter, on all machines (None) or some."""

    values: tuple[str, ...]
    machines: tuple[str, ...] | None = None

    def on(self, machine: str) -> bool:
        return self.machines is None or machine in self.machines


def select(choices: Iterable[ParameterValues], machine: str) -> ParameterValues | None:
    """The entry that counts on a machine: the last one that matches."""
    matching = [choice for choice in choices if choice.on(machine)]
    return matching[-1] if matching else None


def machines_named(parameters: Mapping[str, Iterable[ParameterValues]]) -> set[str]:
    """The machines for which a parameter has values of its own."""
    return {
        machine
        for choices in parameters.values()
        for choice in choices
        for machine in choice.machines or ()
    }


@dataclass(frozen=True)
class Recorded:
    """A point as its record has it: all its parameters, resolved, and the record's identity."""

    parameters: Mapping[str, str]
    duplicate: int
    identity: str


@dataclass(frozen=True)
class Batch:
    """A named grid.

    `parameters` holds the batch's own; of a parameter's entries the last one that matches a machine
    counts. `job_name`, `queue` and `artifacts` are templates. `metrics` is empty when no artifact
    keeps the standard output from which they are read. `recorded`: in a rerun, the points that it
    repeats, instead of the grid; `below`: the directory of its results.
    """

    name: str
    job_name: str
    queue: str | None
    duplicates: int
    parameters: Mapping[str, tuple[ParameterValues, ...]]
    artifacts: tuple[Artifact, ...]
    requirements: tuple[Requirement, ...]
    build: Phase
    run: Phase
    metrics: Mapping[str, str]
    recorded: tuple[Recorded, ...] | None = None
    below: str = ""


@dataclass(frozen=True)
class Grid:
    """All points of a batch on a machine. `artifacts` are templates; `varying` are the parameters
    with more than one value over the points, in the order of the file. `below`: see
    `Batch`."""

    experiment: str
    batch: str
    machine: str
    points: tuple[Point, ...]
    artifacts: tuple[Artifact, ...]
    requirements: tuple[Requirement, ...]
    build: Phase
    run: Phase
    varying: tuple[str, ...]
    metrics: Mapping[str, str] = FrozenDict()
    below: str = ""


@dataclass(frozen=True)
class PointTexts:
    """The templates of a point: its job's name, queue and artifacts."""

    name: Template
    queue: Template | None
    artifacts: tuple[tuple[str, Template, Template | None], ...]  # type, dest, src

    @classmethod
    def parse(cls, name: str, queue: str | None, artifacts: Iterable[Artifact]) -> PointTexts:
        return cls(
            Template.parse(name),
            None if queue is None else Template.parse(queue),
            tuple(
                (a.type, Template.parse(a.dest), None if a.src is None else Template.parse(a.src))
                for a in artifacts
            ),
        )

    def knowing(self, parameters: Collection[str]) -> PointTexts:
        """With only the templates that need no other parameters; the others are left empty."""

        def known(template: Template | None) -> bool:
            names = template.names if template else ()
            return all(name in parameters or name in SUBSTITUTED for name in names)

        return PointTexts(
            self.name if known(self.name) else _NOTHING,
            self.queue if known(self.queue) else None,
            tuple(
                (type_, dest if known(dest) else _NOTHING, src if known(src) else None)
                for type_, dest, src in self.artifacts
            ),
        )

    def point(
        self, parameters: FrozenDict[str, str], batch: str, duplicate: int, encoded: dict[str, str]
    ) -> Point:
        """`encoded` holds the texts of all values for paths, including the batch's name."""
        number = {"duplicate": str(duplicate)}
        raw = {**parameters, "batch_name": batch, **number}
        safe = encoded | number
        return Point(
            parameters=parameters,
            duplicate=duplicate,
            name=self.name.render(raw),
            queue=None if self.queue is None else self.queue.render(raw),
            artifacts=tuple(
                Artifact(type_, dest.render(safe), None if src is None else src.render(raw))
                for type_, dest, src in self.artifacts
            ),
        )


def job_name_problem(name: str) -> str | None:
    """Why a text cannot be a job's name, or None."""
    if has_control_character(name):
        return "a job's name cannot contain control characters such as line breaks"
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


def dependency_order(values: Mapping[str, tuple[Value, ...]]) -> list[str]:
    """The names in an order in which each comes after the names that its values use.

    Raises TemplateError for a cycle, naming it. Names that are not in `values` are left out.
    """
    # Imported here: a run, which makes its own point only, needs neither.
    from graphlib import CycleError, TopologicalSorter

    from snakemake_kochi.project.problems import chain

    used = {
        name: [other for value in own for other in value.names if other in values]
        for name, own in values.items()
    }
    try:
        return list(TopologicalSorter(used).static_order())
    except CycleError as error:
        names = chain(error.args[1][::-1])
        raise TemplateError(f"parameters refer to each other in a circle: {names}") from None


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
        _log.warning("batch %s has %d points; planning them takes minutes", batch.name, count)
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
