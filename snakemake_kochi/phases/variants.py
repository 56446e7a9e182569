"""What the points of batches need beside the checked-out code: recipes that parameters name, and
the project's own code at other commits.

Commits are looked up once, when a run begins, and are in its freeze from then on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from snakemake_kochi.errors import ConfigError, GitError
from snakemake_kochi.phases.freeze import Code, Freeze, changed, own_outputs
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.grid import Batch
from snakemake_kochi.project.recipes import (
    Project,
    Recipe,
    distinct,
    names_in,
    place_of_value,
    requirements_at,
)
from snakemake_kochi.project.values import CODE, WORKING_TREE
from snakemake_kochi.snapshot import find_commit, freeze_commit, keep_repository_at


def with_variants(frozen: Freeze, start: Path) -> Freeze:
    """The same freeze, with the code of the commits that the points of all batches need.

    `start`: the working directory. A batch that is wrong is left out: the checks of all batches
    tell its problems.
    """
    codes: dict[str, str] = {}
    for experiment, batch in _batches(frozen):
        try:
            for value, place in _codes_of(experiment, batch, frozen.machine_name):
                codes.setdefault(value, place)
        except ConfigError:
            continue
    if not codes:
        return frozen
    found, without_code = {}, {}
    excluded = own_outputs(start, frozen.directory, frozen.root)
    for value, place in codes.items():
        try:
            found[value] = asdict(code_at(frozen, value, excluded))
        except GitError as error:
            without_code[value] = f"{place}: {error}"
    return changed(frozen, codes=found, without_code=without_code)


def code_at(frozen: Freeze, value: str, excluded: Sequence[str]) -> Code:
    """The code of a branch, a tag or a commit, in the store of a freeze. `excluded`: patterns of
    what is none. Raises GitError."""
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
    for file in frozen.files_to_run:
        # Most experiments need nothing; to read one takes longer than to look for the key.
        if CODE not in frozen.experiments[file]:
            continue
        try:
            experiment = frozen.experiment(file)
        except ConfigError:
            continue
        for batch in experiment.batches.values():
            yield experiment, batch


def recipes_of(
    project: Project, experiment: Experiment, batch: Batch, machine: str
) -> list[Recipe]:
    """All recipes that the points of a batch need. Raises ConfigError and NameNotFoundError."""
    wanted = experiment.requirements_on(machine, batch.requirements)
    origin = f"{experiment.file}: batch {batch.name}"
    found: dict[str, Recipe] = {}
    for parameters in _distinct_parameters(experiment, batch, machine):
        for recipe in project.resolve(requirements_at(wanted, parameters), machine, origin):
            found[str(recipe)] = recipe
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
