"""Destinations of artifacts, and the checks that no two of them are one file."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from snakemake_kochi.project.grid import Batch, Point, varying_parameters
from snakemake_kochi.project.plots import default_plots, stems
from snakemake_kochi.project.problems import Problems
from snakemake_kochi.project.templates import Template
from snakemake_kochi.project.values import has_control_character, path_problem

if TYPE_CHECKING:
    from snakemake_kochi.project.experiment import Experiment

# The table and the figures of a batch, `<experiment>/<batch>.csv` and so on, are beside its
# artifacts.
_TABLE_SUFFIXES = (".csv", ".md")
_FIGURE_SUFFIXES = (".png", ".svg")
# Git refuses to record these, including the spellings of other systems.
_GIT_DIRECTORY = re.compile(r"(\.git|git~1)[ .]*(:.*)?", re.IGNORECASE)


def dest_problem(dest: str) -> str | None:
    """Why a text cannot be a path in the artifact branch, or None."""
    components = dest.split("/")
    if dest.startswith("/") or ".." in components or dest in ("", "."):
        return "a relative path without '..' was expected"
    if has_control_character(dest):
        return "a path cannot contain control characters such as line breaks"
    if dest.startswith(".kochi"):
        return "paths that start with '.kochi' are reserved for Kochi"
    if components[-1].lower() == ".gitattributes":
        return "a file of this name is for Kochi: it tells git which files are large"
    for component in components:
        if _GIT_DIRECTORY.fullmatch(component):
            return f"git cannot store a file named '{component}'"
    return path_problem(dest)


def src_problem(src: str) -> str | None:
    """Why a text cannot be the path of a file in a workspace, or None."""
    # Anything else would put another file of the computer, perhaps a secret one, into git.
    if not src or src.startswith("/") or ".." in src.split("/"):
        return "a path relative to the workspace, without '..', was expected"
    if has_control_character(src):
        return "a path cannot contain control characters such as line breaks"
    return path_problem(src)


def normalise_dest(dest: str) -> str:
    """One spelling for one path: `./a//b` is `a/b`."""
    return PurePosixPath(dest).as_posix() if dest else dest


@dataclass(frozen=True, eq=False)
class _Owner:
    """A batch whose points write files."""

    experiment: Experiment
    batch: Batch
    points: tuple[Point, ...]
    problems: Problems

    @property
    def varying(self) -> tuple[str, ...]:
        return varying_parameters(self.points)

    @property
    def named(self) -> str:
        return f"batch '{self.batch.name}' of {self.experiment.file}"

    def called_by(self, other: _Owner) -> str:
        """The name of this batch in messages about another batch."""
        is_here = other.experiment.file == self.experiment.file
        return f"batch '{self.batch.name}'" if is_here else self.named

    def note(self, index: int, message: str | Callable[[], str], key: str = "dest") -> None:
        """Note a problem of an artifact: one of thousands is enough."""
        self.problems.add_first(("batches", self.batch.name, "artifacts", index, key), message)


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
        figures = stems(batch.name, batch.plots or default_plots(batch.metrics))
        own = [f"{batch.name}{suffix}" for suffix in _TABLE_SUFFIXES]
        own += [f"{stem}{suffix}" for stem in figures for suffix in _FIGURE_SUFFIXES]
        self._tables |= dict.fromkeys((f"{experiment.name}/{name}" for name in own), owner)
        for point in points:
            for index, artifact in enumerate(point.artifacts):
                if artifact.src is not None and (wrong := src_problem(artifact.src)):
                    owner.note(index, f"{artifact.src!r}: {wrong}", "src")
                if not artifact.dest:
                    continue
                if wrong := dest_problem(artifact.dest):
                    owner.note(index, f"{artifact.dest!r}: {wrong}")
                here = (owner, point, index)
                other = self._artifacts.setdefault(artifact.dest, here)
                if other is not here:
                    owner.note(index, functools.partial(_collision, artifact.dest, other, here))

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
            for taken in (dest, *_parents(dest)):
                if taken in self._tables:
                    self._table(taken, dest)
        for table in self._tables:
            for parent in _parents(table):
                if parent in self._artifacts:
                    self._table(table, parent)

    def owner_of(self, path: str) -> str | None:
        """Which batch would write a path, or one above or below it, for people; None if none."""
        owners = {dest: each[0].named for dest, each in self._artifacts.items()}
        tables = {each: f"the table or plot of {own.named}" for each, own in self._tables.items()}
        for known in (owners, tables):
            for place, named in known.items():
                if f"{path}/".startswith(f"{place}/") or place.startswith(f"{path}/"):
                    return named
        return None

    def _table(self, table: str, dest: str) -> None:
        owner, _, index = self._artifacts[dest]
        whose = f"the table or plot of {self._tables[table].called_by(owner)}"
        said = f"is {whose}" if dest == table else f"conflicts with '{table}', {whose}"
        owner.note(index, f"'{dest}' {said}; rename the artifact")


def _parents(dest: str) -> Iterator[str]:
    return (dest[:length] for length, character in enumerate(dest) if character == "/")


def _collision(dest: str, first: _Artifact, second: _Artifact) -> str:
    (one, a, i), (other, b, j) = first, second
    used = Template.parse(other.batch.artifacts[j].dest).names
    if one is not other:
        alike = one.experiment.file == other.experiment.file and "batch_name" not in used
        advice = "add ${batch_name}" if alike else "rename one"
        return f"'{dest}' is also written by {one.called_by(other)}; {advice}"
    if i != j and a.parameters == b.parameters and a.duplicate == b.duplicate:
        return f"'{dest}' is also the dest of artifacts[{i}]; rename one"
    varying, unused = one.varying, one.experiment.unused(one.batch)
    differing = [n for n in varying if a.parameters.get(n) != b.parameters.get(n)]
    if a.duplicate != b.duplicate:
        differing.append("duplicate")
    missing = [f"${{{name}}}" for name in differing if name not in used]
    if without_effect := [unused[name] for name in differing if name in unused]:
        advice = without_effect[0]  # a dest for each would keep the same result twice
    elif missing and i == j:
        advice = f"add {' and '.join(missing)}"
    else:
        advice = "put different texts around and between the ${...}"

    def label(point: Point) -> str:
        parts = [f"{n}={point.parameters[n]}" for n in varying if n in point.parameters]
        text = f"({', '.join([*parts, f'duplicate {point.duplicate}'])})"
        sweeps = one.batch.sweeps
        return f"{text} of {sweeps[point.sweep].called}" if len(sweeps) > 1 else text

    return f"two points would write '{dest}': {label(a)} and {label(b)}; {advice}"
