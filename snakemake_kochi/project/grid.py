"""The points of a batch, and the checks that keep two of them from writing one artifact."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.files import is_name
from snakemake_kochi.project.document import KeyPath, Locations
from snakemake_kochi.project.expressions import TemplateError
from snakemake_kochi.project.frozen import FrozenDict
from snakemake_kochi.project.recipes import Requirement
from snakemake_kochi.project.templates import Template, Value, dependency_order
from snakemake_kochi.project.values import (
    encode_component,
    environment_name,
    has_control_character,
    value_problem,
)

MAXIMUM_POINTS = 1_000_000
_COMPONENT_BYTES = 255  # of a file name, on every filesystem in use
# Git refuses to record these, the spellings of other systems included.
_GIT_DIRECTORY = re.compile(r"(\.git|git~1)[ .]*(:.*)?", re.IGNORECASE)


@dataclass(frozen=True)
class Phase:
    """A script and the parameters it sees."""

    depend_params: tuple[str, ...]
    script: str
    strict: bool = True
    exclusive: bool = True

    def environment(self, parameters: Mapping[str, str]) -> dict[str, str]:
        """KOCHI_PARAM_<NAME> for those of the parameters that the phase depends on."""
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
    """One combination of parameters, all resolved; `duplicate` counts repetitions from 0."""

    parameters: Mapping[str, str]
    duplicate: int
    name: str
    queue: str | None
    artifacts: tuple[Artifact, ...]

    def environment(self, phase: Phase) -> dict[str, str]:
        """KOCHI_PARAM_<NAME> for the parameters the phase depends on, and no others."""
        return phase.environment(self.parameters)


@dataclass(frozen=True)
class Choice:
    """Values of a parameter, on all machines (None) or some."""

    values: tuple[str, ...]
    machines: tuple[str, ...] | None = None

    def on(self, machine: str) -> bool:
        return self.machines is None or machine in self.machines


def select(choices: Iterable[Choice], machine: str) -> Choice | None:
    """The choice that counts on a machine: the last that matches."""
    matching = [choice for choice in choices if choice.on(machine)]
    return matching[-1] if matching else None


@dataclass(frozen=True)
class Batch:
    """A named grid. `parameters` holds the batch's own; of a parameter's choices the last that
    matches a machine counts. `job_name`, `queue` and `artifacts` are templates."""

    name: str
    job_name: str
    queue: str | None
    duplicates: int
    parameters: Mapping[str, tuple[Choice, ...]]
    artifacts: tuple[Artifact, ...]
    requirements: tuple[Requirement, ...]
    build: Phase
    run: Phase
    metrics: Mapping[str, str]


@dataclass(frozen=True)
class Grid:
    """All points of a batch on a machine. `artifacts` are templates; `varying` are the parameters
    with more than one value over the points, in the order of the file."""

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


def dest_problem(dest: str) -> str | None:
    """What keeps a text from being a path in the artifact branch, or None."""
    components = dest.split("/")
    if dest.startswith("/") or ".." in components or dest in ("", "."):
        return "a relative path without '..' was expected"
    if has_control_character(dest):
        return "a control character (as a line break) is not possible in a path"
    if dest.startswith(".kochi"):
        return "paths that start with '.kochi' belong to Kochi itself"
    for component in components:
        if _GIT_DIRECTORY.fullmatch(component):
            return f"git does not keep files named '{component}'"
        if len(component.encode("utf-8", "surrogateescape")) > _COMPONENT_BYTES:
            return f"'{component[:40]}...' is longer than {_COMPONENT_BYTES} bytes"
    return None


def normalise_dest(dest: str) -> str:
    """One spelling for one path: `./a//b` is `a/b`."""
    return PurePosixPath(dest).as_posix() if dest else dest


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

    def point(
        self, parameters: FrozenDict[str, str], batch: str, duplicate: int, encoded: dict[str, str]
    ) -> Point:
        """`encoded` holds the texts of all values, the batch's name included, for paths."""
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


def point_problem(point: Point) -> tuple[str, str] | None:
    """The key ("name", "queue") that is wrong in a resolved point, and what is wrong with it."""
    if has_control_character(point.name):
        return "name", f"a control character is not possible in a job's name: {point.name!r}"
    if point.queue is not None and not is_name(point.queue):
        return "queue", (
            f"the queue name {point.queue!r} cannot be used in paths; 1 to 128 letters, digits "
            "and any of ._+@=- were expected, not starting with a dot or dash"
        )
    return None


def resolve_all(
    columns: Mapping[str, tuple[Value, ...]], place: Mapping[str, KeyPath], locations: Locations
) -> Iterator[FrozenDict[str, str]]:
    """Every combination of the values, resolved; the last parameter varies fastest.

    Raises ConfigError for a circle, too many combinations, or a value that cannot be computed.
    """
    try:
        order = dependency_order(columns)
    except TemplateError as error:
        raise locations.error((), str(error)) from error
    names = list(columns)
    for combination in itertools.product(*columns.values()):
        templates = dict(zip(names, combination, strict=True))
        values: dict[str, str] = {}
        for name in order:
            try:
                values[name] = templates[name].render(values)
            except TemplateError as error:
                raise locations.error(place[name], str(error)) from error
            wrong = value_problem(values[name])
            if wrong:
                raise locations.error(place[name], wrong)
        yield FrozenDict((name, values[name]) for name in names)


def make_points(
    batch: Batch,
    columns: Mapping[str, tuple[Value, ...]],
    place: Mapping[str, KeyPath],
    locations: Locations,
) -> tuple[Point, ...]:
    """The points of a batch, duplicates innermost. Raises ConfigError."""
    path: KeyPath = ("batches", batch.name)
    count = batch.duplicates
    for values in columns.values():
        count *= len(values)
    if count > MAXIMUM_POINTS:
        raise locations.error(path, f"{count} points; at most {MAXIMUM_POINTS} are possible")
    texts = PointTexts.parse(batch.job_name, batch.queue, batch.artifacts)
    cache: dict[str, str] = {}
    points = []
    for parameters in resolve_all(columns, place, locations):
        for value in (batch.name, *parameters.values()):
            if value not in cache:
                cache[value] = encode_component(value)
        encoded = {name: cache[value] for name, value in parameters.items()}
        encoded["batch_name"] = cache[batch.name]
        for duplicate in range(batch.duplicates):
            point = texts.point(parameters, batch.name, duplicate, encoded)
            wrong = point_problem(point)
            if wrong:
                key, message = wrong
                place_of_key = locations.first((*path, key), (f"default_{key}",), path)
                raise locations.error(place_of_key, message)
            points.append(point)
    return tuple(points)


def varying_parameters(points: Iterable[Point]) -> tuple[str, ...]:
    """The parameters that have more than one value over the points."""
    seen: dict[str, set[str]] = {}
    for point in points:
        for name, value in point.parameters.items():
            seen.setdefault(name, set()).add(value)
    return tuple(name for name, values in seen.items() if len(values) > 1)


def check_artifacts(
    points: Iterable[Point], batch: Batch, varying: tuple[str, ...], locations: Locations
) -> None:
    """Raise ConfigError if two artifacts would be one file, or one the directory of another."""
    problems: dict[tuple[object, ...], str] = {}
    owners: dict[str, tuple[Point, int]] = {}

    def note(kind: str, first: tuple[Point, int], second: tuple[Point, int], said: str) -> None:
        path: KeyPath = ("batches", batch.name, "artifacts", second[1], "dest")
        problems.setdefault((kind, first[1], second[1]), locations.describe(path, said))

    for point in points:
        for index, artifact in enumerate(point.artifacts):
            wrong = dest_problem(artifact.dest)
            path: KeyPath = ("batches", batch.name, "artifacts", index, "dest")
            if wrong:
                said = locations.describe(path, f"'{artifact.dest}': {wrong}")
                problems.setdefault(("path", index), said)
            if artifact.src is not None and (
                has_control_character(artifact.src) or not artifact.src
            ):
                said = locations.describe((*path[:-1], "src"), "a path was expected")
                problems.setdefault(("src", index), said)
            here = (point, index)
            other = owners.setdefault(artifact.dest, here)
            if other is not here:
                note("same", other, here, _collision(other, here, batch, varying))
    for dest, here in owners.items():
        for length, character in enumerate(dest):
            if character == "/" and dest[:length] in owners:
                said = f"'{dest[:length]}' would be a file and the directory of '{dest}'; rename"
                note("inside", owners[dest[:length]], here, said)
    if problems:
        raise ConfigError("\n".join(problems.values()))


def _collision(
    first: tuple[Point, int], second: tuple[Point, int], batch: Batch, varying: tuple[str, ...]
) -> str:
    (a, i), (b, j) = first, second
    dest = b.artifacts[j].dest
    if i != j and a.parameters == b.parameters and a.duplicate == b.duplicate:
        return f"'{dest}' is also the dest of artifacts[{i}]; rename one"
    differing = [name for name in varying if a.parameters[name] != b.parameters[name]]
    if a.duplicate != b.duplicate:
        differing.append("duplicate")
    used = Template.parse(batch.artifacts[j].dest).names
    missing = [f"${{{name}}}" for name in differing if name not in used]
    advice = (
        f"add {' and '.join(missing)}"
        if missing and i == j
        else "put different texts around and between the ${...}"
    )
    return (
        f"two points would write '{dest}': ({_label(a, varying)}) and ({_label(b, varying)}); "
        f"{advice}"
    )


def _label(point: Point, varying: tuple[str, ...]) -> str:
    parts = [f"{name}={point.parameters[name]}" for name in varying]
    return ", ".join([*parts, f"duplicate {point.duplicate}"])
