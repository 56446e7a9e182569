"""Destinations of artifacts, and the checks that no two of them are one file."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from snakemake_kochi.project.document import Problems
from snakemake_kochi.project.expressions import parse_text
from snakemake_kochi.project.grid import Batch, Point, varying_parameters
from snakemake_kochi.project.plots import stems
from snakemake_kochi.project.values import dest_problem, src_problem

if TYPE_CHECKING:
    from snakemake_kochi.project.experiment import Experiment

_FIGURES = ("png", "svg")


@dataclass(frozen=True, eq=False)
class _Owner:
    """A batch whose points write files."""

    experiment: Experiment
    batch: Batch
    points: tuple[Point, ...]
    problems: Problems

    def called_by(self, other: _Owner) -> str:
        """The name of this batch in messages about another batch."""
        is_here = other.experiment.file == self.experiment.file
        return f"batch '{self.batch.name}'{'' if is_here else f' of {self.experiment.file}'}"

    def note(self, index: int, message: str | Callable[[], str], key: str = "dest") -> None:
        """Note a problem of an artifact: one of thousands is enough."""
        self.problems.add_first((*self.batch.path, "artifacts", index, key), message)


_Artifact = tuple[_Owner, Point, int]


class Destinations:
    """The files that points of one batch, or of many, would write."""

    def __init__(self) -> None:
        self._artifacts: dict[str, _Artifact] = {}
        self._tables: dict[str, _Owner] = {}

    def add(
        self, experiment: Experiment, batch: Batch, points: tuple[Point, ...], problems: Problems
    ) -> None:
        """Note in `problems` every path that is impossible or belongs to another artifact.

        An empty dest, because a parameter in it has no value, is left out.
        """
        owner = _Owner(experiment, batch, points, problems)
        # The table and the figures of a batch are beside its artifacts.
        own = [f"{batch.name}.csv", f"{batch.name}.md"]
        own += [f"{stem}.{kind}" for stem in stems(batch.name, batch.plots) for kind in _FIGURES]
        self._tables |= dict.fromkeys((f"{experiment.name}/{name}" for name in own), owner)
        for point in points:
            for index, artifact in enumerate(point.artifacts):
                dest, src = artifact.dest, artifact.src
                if src is not None and (wrong := src_problem(src)):
                    owner.note(index, f"{src!r}: {wrong}", "src")
                if dest and (wrong := dest_problem(dest)):
                    owner.note(index, f"{dest!r}: {wrong}")
                here = (owner, point, index)
                if dest and (other := self._artifacts.setdefault(dest, here)) is not here:
                    owner.note(index, functools.partial(_collision, dest, other, here))

    def finish(self) -> None:
        """When all are added: note every file that would also be a directory, and every one that
        would be a batch's own table."""
        for dest, (owner, _, index) in self._artifacts.items():
            for parent in _parents(dest):
                if parent in self._artifacts:
                    other = self._artifacts[parent][0]
                    of = "" if other is owner else f" of {other.called_by(owner)}"
                    said = f"'{parent}'{of} would be both a file and the directory of '{dest}'"
                    owner.note(index, f"{said}; rename one")
                self._note_table(parent, dest)
        for table in self._tables:
            for path in (table, *_parents(table)):
                self._note_table(table, path)

    def _note_table(self, table: str, dest: str) -> None:
        if table in self._tables and dest in self._artifacts:
            owner, _, index = self._artifacts[dest]
            whose = f"the table or plot of {self._tables[table].called_by(owner)}"
            said = f"is {whose}" if dest == table else f"conflicts with '{table}', {whose}"
            owner.note(index, f"'{dest}' {said}; rename the artifact")


def _parents(dest: str) -> Iterator[str]:
    return (dest[:length] for length, character in enumerate(dest) if character == "/")


def _collision(dest: str, first: _Artifact, second: _Artifact) -> str:
    (one, a, i), (other, b, j) = first, second
    used = parse_text(other.batch.artifacts[j].dest).names
    if one is not other:
        alike = one.experiment.file == other.experiment.file and "batch_name" not in used
        advice = "add ${batch_name}" if alike else "rename one"
        return f"'{dest}' is also written by {one.called_by(other)}; {advice}"
    if i != j and a.parameters == b.parameters and a.duplicate == b.duplicate:
        return f"'{dest}' is also the dest of artifacts[{i}]; rename one"
    varying = varying_parameters(one.points)
    differing = [n for n in varying if a.parameters.get(n) != b.parameters.get(n)]
    if a.duplicate != b.duplicate:
        differing.append("duplicate")
    missing = [f"${{{name}}}" for name in differing if name not in used]
    advice = "put different texts around and between the ${...}"
    if missing and i == j:
        advice = f"add {' and '.join(missing)}"

    def label(point: Point) -> str:
        parts = [f"{n}={point.parameters[n]}" for n in varying if n in point.parameters]
        text = f"({', '.join([*parts, f'duplicate {point.duplicate}'])})"
        sweeps = one.batch.sweeps
        return f"{text} of {sweeps[point.sweep].called}" if len(sweeps) > 1 else text

    return f"two points would write '{dest}': {label(a)} and {label(b)}; {advice}"
