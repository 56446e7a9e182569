"""Runs of a batch with any commits of the project, or of the source of a recipe, beside its
results: for a search among commits.

They are in results/MACHINE/bisect/<digest>/<commit>/<number>/. The digest has what else determines
them, so those that are there are those that are wanted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from snakemake_kochi.files import is_there
from snakemake_kochi.library.files import BatchFiles, Place
from snakemake_kochi.phases.freeze import Code, Freeze, changed, code_at, own_outputs
from snakemake_kochi.phases.products import digest_of, read_failure
from snakemake_kochi.project.grid import Grid, Recorded
from snakemake_kochi.project.values import CODE

DIRECTORY = "bisect"
Run = tuple[str, int]  # the id of a commit, and which one of its runs


@dataclass(frozen=True)
class CommitRuns:
    """The runs of some points, given by their parameters, of a batch. `ends`: of what search they
    are, as runs of one session only can be compared. `recipe`: whose commits these are,
    `dependency:recipe`; empty for the project's."""

    frozen: Freeze
    file: str
    batch: str
    points: Sequence[Mapping[str, str]]
    ends: tuple[str, str]
    recipe: str = ""
    _codes: dict[str, Any] = field(default_factory=dict)

    @property
    def below(self) -> str:
        frozen, points = self.frozen, [*map(dict, self.points)]
        # The runs have commits instead of the recipe, whose source follows a branch.
        dependency = self.recipe.partition(":")[0]
        every = frozen.sources.items()
        sources = {name: own for name, own in every if name.partition(":")[0] != dependency}
        own = [frozen.config, frozen.experiments[self.file], sources, frozen.tables]
        own += [self.recipe, frozen.snapshot.tree] if self.recipe else []
        found = digest_of([*own, frozen.facts, self.file, self.batch, points, self.ends])
        return f"{DIRECTORY}/{found[:12]}"

    def freeze(self, wanted: Iterable[Run]) -> Freeze:
        """The freeze of the wanted runs: those of one number start in random order. Raises
        GitError if the files of a commit are not here."""
        runs = list(wanted)
        excluded = own_outputs(Path.cwd(), self.frozen.directory, self.frozen.root)
        for commit in {commit for commit, _ in runs} - self._codes.keys():
            self._codes[commit] = asdict(
                Code(self.frozen.snapshot, self.frozen.git_directory)
                if self.recipe
                else code_at(self.frozen, commit, excluded)
            )
        recorded = [
            asdict(Recorded({**point, CODE: commit}, number, self.below))
            for commit, number in runs
            for point in self.points
        ]
        return changed(
            self.frozen,
            codes={commit: self._codes[commit] for commit, _ in runs},
            commits={self.recipe: sorted({commit for commit, _ in runs})} if self.recipe else {},
            rerun={
                "below": f"{self.below}/${{code}}/${{duplicate}}",
                "recorded": {self.file: {self.batch: recorded}},
            },
        )

    def grid(self, freeze: Freeze) -> Grid:
        return freeze.experiment(self.file).grid(self.batch, freeze.machine_name)

    def missing(self, freeze: Freeze) -> list[Place]:
        """The runs without a result."""
        places = BatchFiles.of(freeze.experiment(self.file).name, self.grid(freeze)).places
        return [each for each in places if not is_there(freeze.directory / each.record)]


def why_failed(freeze: Freeze, place: Place) -> str:
    """Why a run has no result, with its last lines; empty if that is not known."""
    failure = read_failure(freeze.directory / place.record)
    if failure is None or failure.stopped:
        return ""
    return "\n".join([failure.reason, *failure.output[-4:]])
