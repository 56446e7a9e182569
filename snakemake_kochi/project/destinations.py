"""Destinations of artifacts, and the checks that no two of them are one file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from snakemake_kochi.project.grid import Batch, Point, varying_parameters
from snakemake_kochi.project.plots import default_plots, stems
from snakemake_kochi.project.problems import KeyPath, Problems
from snakemake_kochi.project.templates import Template
from snakemake_kochi.project.values import has_control_character, path_problem

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

    experiment: str
    file: str
    batch: Batch
    points: tuple[Point, ...]
    problems: Problems
    unused: Mapping[str, str]

    @property
    def varying(self) -> tuple[str, ...]:
        return varying_parameters(self.points)

    def path(self, index: int, key: str = "dest") -> KeyPath:
        return ("batches", self.batch.name, "artifacts", index, key)

    @property
    def named(self) -> str:
        return f"batch '{self.batch.name}' of {self.file}"

    def called_by(self, other: _Owner) -> str:
        """The name of this batch in messages about another batch."""
        elsewhere = "" if other.file == self.file else f" of {self.file}"
        return f"batch '{self.batch.name}'{elsewhere}"


_Artifact = tuple[_Owner, Point, int]


class Destinations:
    """The files that points of one batch, or of many, would write."""

    def __init__(self) -> None:
        self._artifacts: dict[str, _Artifact] = {}
        self._tables: dict[str, _Owner] = {}
        self._told: set[tuple[object, ...]] = set()

    def add(
        self,
        experiment: str,
        file: str,
        batch: Batch,
        points: tuple[Point, ...],
        problems: Problems,
        unused: Mapping[str, str],
    ) -> None:
        """Note in `problems` every path that is impossible or belongs to another artifact.

        `experiment` is the experiment's name, `file` its path in messages. `unused` describes
        parameters that nothing uses. An empty dest, because a parameter in it has no value, is left
        out.
        """
        owner = _Owner(experiment, file, batch, points, problems, unused)
        figures = stems(batch.name, batch.plots or default_plots(batch.metrics))
        own = [f"{batch.name}{suffix}" for suffix in _TABLE_SUFFIXES]
        own += [f"{stem}{suffix}" for stem in figures for suffix in _FIGURE_SUFFIXES]
        for name in own:
            self._tables[f"{experiment}/{name}"] = owner
        for point in points:
            for index, artifact in enumerate(point.artifacts):
                wrong = None if artifact.src is None else src_problem(artifact.src)
                if wrong and self._first("src", owner, index):
                    problems.add(owner.path(index, "src"), f"{artifact.src!r}: {wrong}")
                if not artifact.dest:
                    continue
                wrong = dest_problem(artifact.dest)
                if wrong and self._first("path", owner, index):
                    problems.add(owner.path(index), f"{artifact.dest!r}: {wrong}")
                here = (owner, point, index)
                other = self._artifacts.setdefault(artifact.dest, here)
                if other is not here and self._first("same", owner, index, other[0], other[2]):
                    problems.add(owner.path(index), _collision(artifact.dest, other, here))

    def finish(self) -> None:
        """When all are added: note every file that would also be a directory, and every one that
        would be a batch's own table."""
        for dest, (owner, _, index) in self._artifacts.items():
            for parent in _parents(dest):
                if parent in self._artifacts:
                    other, _, other_index = self._artifacts[parent]
                    if self._first("inside", owner, index, other, other_index):
                        of = "" if other is owner else f" of {other.called_by(owner)}"
                        said = f"'{parent}'{of} would be both a file and the directory of '{dest}'"
                        owner.problems.add(owner.path(index), f"{said}; rename one")
            for taken in (dest, *_parents(dest)):
                if taken in self._tables:
                    self._table(taken, dest, owner, index)
        for table in self._tables:
            for parent in _parents(table):
                if parent in self._artifacts:
                    owner, _, index = self._artifacts[parent]
                    self._table(table, parent, owner, index)

    def owner_of(self, path: str) -> str | None:
        """Which batch would write a path, or one above or below it, for people; None if none."""
        for place in (path, *_parents(path)):
            if place in self._artifacts:
                return self._artifacts[place][0].named
            if place in self._tables:
                return f"the table or plot of {self._tables[place].named}"
        below = f"{path}/"
        for dest, (owner, _, _) in self._artifacts.items():
            if dest.startswith(below):
                return owner.named
        return next((o.named for table, o in self._tables.items() if table.startswith(below)), None)

    def _table(self, table: str, dest: str, owner: _Owner, index: int) -> None:
        other = self._tables[table]
        if self._first("table", owner, index):
            whose = f"the table or plot of {other.called_by(owner)}"
            said = f"is {whose}" if dest == table else f"conflicts with '{table}', {whose}"
            owner.problems.add(owner.path(index), f"'{dest}' {said}; rename the artifact")

    def _first(self, *kind: object) -> bool:
        """Whether this is the first problem of its kind: one example of thousands is enough."""
        if kind in self._told:
            return False
        self._told.add(kind)
        return True


def _parents(dest: str) -> Iterator[str]:
    return (dest[:length] for length, character in enumerate(dest) if character == "/")


def _collision(dest: str, first: _Artifact, second: _Artifact) -> str:
    (one, a, i), (other, b, j) = first, second
    used = Template.parse(other.batch.artifacts[j].dest).names
    if one is not other:
        alike = one.file == other.file and "batch_name" not in used
        advice = "add ${batch_name}" if alike else "rename one"
        return f"'{dest}' is also written by {one.called_by(other)}; {advice}"
    if i != j and a.parameters == b.parameters and a.duplicate == b.duplicate:
        return f"'{dest}' is also the dest of artifacts[{i}]; rename one"
    varying = one.varying
    differing = [n for n in varying if a.parameters.get(n) != b.parameters.get(n)]
    if a.duplicate != b.duplicate:
        differing.append("duplicate")
    missing = [f"${{{name}}}" for name in differing if name not in used]
    without_effect = [one.unused[name] for name in differing if name in one.unused]
    if without_effect:  # a dest for each would keep the same result twice
        advice = without_effect[0]
    elif missing and i == j:
        advice = f"add {' and '.join(missing)}"
    else:
        advice = "put different texts around and between the ${...}"
    labels = f"{_label(a, one)} and {_label(b, one)}"
    return f"two points would write '{dest}': {labels}; {advice}"


def _label(point: Point, owner: _Owner) -> str:
    known = [name for name in owner.varying if name in point.parameters]
    parts = [f"{name}={point.parameters[name]}" for name in known]
    label = f"({', '.join([*parts, f'duplicate {point.duplicate}'])})"
    sweeps = owner.batch.sweeps
    return f"{label} of {sweeps[point.sweep].called}" if len(sweeps) > 1 else label
