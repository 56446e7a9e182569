"""What the points of batches take from git beside the checked-out code: recipes and the project's
own code, at the branches and commits that parameters name.

They are looked up once, when a run begins, and are in its freeze from then on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from snakemake_kochi.errors import ConfigError, GitError
from snakemake_kochi.paths import WorkingPaths
from snakemake_kochi.phases.freeze import Code, Freeze, changed, own_outputs
from snakemake_kochi.phases.install import REVISIONS_VARIABLE
from snakemake_kochi.phases.sources import local_sources, restored_sources
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.grid import Batch
from snakemake_kochi.project.recipes import Project, Recipe, Requirement
from snakemake_kochi.project.requirements import (
    distinct,
    names_in,
    place_of,
    place_of_value,
    requirements_at,
)
from snakemake_kochi.project.values import CODE, WORKING_TREE
from snakemake_kochi.snapshot import find_commit, freeze_commit, keep_repository_at

# One of them is in every experiment that names a branch or a commit.
_WORDS = ("code", "branch", "commit_hash", "@")


def with_variants(frozen: Freeze, start: Path) -> Freeze:
    """The same freeze, with what the points of all batches need of branches and commits.

    `start`: the working directory. A batch that is wrong is left out: the checks of all batches
    tell its problems.
    """
    asked = map(Requirement.parse, os.environ.get(REVISIONS_VARIABLE, "").split())
    recipes = {str(each): frozen.project.recipe(each) for each in asked}
    codes: dict[str, str] = {}
    for experiment, batch in _batches(frozen):
        try:
            for recipe in revisions_of(frozen.project, experiment, batch, frozen.machine_name):
                recipes.setdefault(str(recipe), recipe)
            for value, place in _codes_of(experiment, batch, frozen.machine_name):
                codes.setdefault(value, place)
        except ConfigError:
            continue
    if not (recipes or codes):
        return frozen
    restored = restored_sources(WorkingPaths(start, frozen.machine_name))
    sources, without = local_sources(recipes.values(), frozen.project, frozen.paths, restored)
    found, without_code = {}, {}
    excluded = own_outputs(start, frozen.directory, frozen.root)
    for value, place in codes.items():
        try:
            found[value] = asdict(_code(frozen, value, excluded))
        except GitError as error:
            without_code[value] = f"{place}: {error}"
    return changed(
        frozen,
        revisions=list(recipes),
        sources={**frozen.sources, **sources},
        without_source={**frozen.without_source, **without},
        codes=found,
        without_code=without_code,
    )


def _code(frozen: Freeze, value: str, excluded: Sequence[str]) -> Code:
    directory, paths = frozen.directory, frozen.paths
    commit = find_commit(directory, value)
    snapshot = freeze_commit(directory, commit, paths.store, excluded)
    repository = keep_repository_at(directory, paths.store, paths.repository, commit)
    return Code(snapshot, None if repository is None else str(repository))


def _codes_of(experiment: Experiment, batch: Batch, machine: str) -> Iterator[tuple[str, str]]:
    """The values of `code:` of a batch, and their places in its file."""
    if batch.has_code:
        for point in distinct(experiment.grid(batch.name, machine).points, [CODE]):
            value = point.parameters[CODE]
            if value != WORKING_TREE:
                place = place_of_value(experiment, batch, CODE, value)
                at = place or ("batches", batch.name, CODE)
                yield value, experiment.source_map.position(at)


def _batches(frozen: Freeze) -> Iterator[tuple[Experiment, Batch]]:
    in_tables = any("@" in text for text in frozen.tables.values())
    for file in frozen.files_to_run:
        # Most experiments need nothing; to read one takes longer than to look for these words.
        if not in_tables and not any(word in frozen.experiments[file] for word in _WORDS):
            continue
        try:
            experiment = frozen.experiment(file)
        except ConfigError:
            continue
        for batch in experiment.batches.values():
            yield experiment, batch


def revisions_of(
    project: Project, experiment: Experiment, batch: Batch, machine: str
) -> Iterator[Recipe]:
    """The recipes at a branch or commit that the points of a batch use. Raises ConfigError for a
    batch that is wrong."""
    wanted = experiment.requirements_on(machine, batch.requirements)
    for parameters in _distinct_parameters(experiment, batch, machine):
        for each, found in zip(wanted, requirements_at(wanted, parameters), strict=True):
            if found.recipe not in project.dependencies.get(found.dependency, {}):
                place = place_of(experiment, batch, each, parameters)
                yield _told_at(project.recipe(found), experiment.source_map.position(place))


def recipes_of(
    project: Project, experiment: Experiment, batch: Batch, machine: str
) -> list[Recipe]:
    """All recipes that the points of a batch need. Raises ConfigError and NameNotFoundError."""
    wanted = experiment.requirements_on(machine, batch.requirements)
    origin = f"{experiment.file}: batch {batch.name}"
    told = {str(each): each for each in revisions_of(project, experiment, batch, machine)}
    found: dict[str, Recipe] = {}
    for parameters in _distinct_parameters(experiment, batch, machine):
        for recipe in project.resolve(requirements_at(wanted, parameters), machine, origin):
            found[str(recipe)] = told.get(str(recipe), recipe)
    return list(found.values())


def check_codes(repository: Path, experiment: Experiment, batch: Batch, machine: str) -> None:
    """Raise a ConfigError with a line for each value of `code:` of a batch that is not here."""
    lines = []
    for value, place in _codes_of(experiment, batch, machine):
        try:
            find_commit(repository, value)
        except GitError as error:
            lines.append(f"{place}: {error}")
    if lines:
        raise ConfigError("\n".join(lines))


def _told_at(recipe: Recipe, place: str) -> Recipe:
    return replace(recipe, source_at={**recipe.source_at, "branch": place, "commit_hash": place})


def _distinct_parameters(
    experiment: Experiment, batch: Batch, machine: str
) -> list[Mapping[str, str]]:
    """The parameters of a point for each combination of those that entries of `depends` name. No
    grid is made where there are none."""
    names = names_in(experiment.requirements_on(machine, batch.requirements))
    if not names:
        return [{}]
    points = experiment.grid(batch.name, machine).points
    return [point.parameters for point in distinct(points, names)]
