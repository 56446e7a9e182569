"""Batches, their points and grids, as data; and the texts of a point, made from templates."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.templates import Template
from snakemake_kochi.project.values import SUBSTITUTED, environment_name

if TYPE_CHECKING:
    from snakemake_kochi.project.recipes import Requirement


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
    is what the run requests, if anything."""

    parameters: Mapping[str, str]
    duplicate: int
    name: str
    queue: str | None
    artifacts: tuple[Artifact, ...]
    cores: int | None = None

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
class Batch:
    """A named grid.

    `parameters` holds the batch's own; of a parameter's entries the last one that matches a machine
    counts. `job_name`, `queue` and `artifacts` are templates. `metrics` is empty when no artifact
    keeps the standard output from which they are read.
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


_NOTHING = Template(("",), ())


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
