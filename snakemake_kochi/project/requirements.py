"""The entries of `depends`: how they are read, and which recipes the points of a batch need.

In an experiment the recipe of an entry may depend on parameters. Then each point has requirements
of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.project.parameters import flattened, without_parameter
from snakemake_kochi.project.problems import KeyPath, Problems
from snakemake_kochi.project.recipes import Project, Requirement, override
from snakemake_kochi.project.templates import TemplateError, parse_value

if TYPE_CHECKING:
    from snakemake_kochi.project.experiment import Experiment
    from snakemake_kochi.project.grid import Batch, Point


def requirements(
    data: Mapping[str, Any], path: KeyPath, problems: Problems
) -> tuple[Requirement, ...]:
    """The entries of `depends`.

    Two recipes of one dependency for the same machines are a problem; a later entry for other
    machines replaces an earlier one there.
    """
    found: list[Requirement] = []
    for index, entry in enumerate(data.get("depends") or ()):
        place = (*path, "depends", index)
        recipe = entry["recipe"]
        try:
            parse_value(recipe)
        except TemplateError as error:
            problems.add((*place, "recipe"), str(error))
            recipe = ""
        own = Requirement(entry["name"], recipe, entry.get("machines"))
        for other in found:
            alike = (other.dependency, other.machines) == (own.dependency, own.machines)
            if alike and other != own:
                said = f"two recipes of one dependency: {other} and {own}; remove one"
                problems.add(place, said)
        found.append(own)
    return tuple(found)


def check_recipes(
    project: Project, required: Iterable[Requirement], path: KeyPath, problems: Problems
) -> None:
    """Note every entry of `depends` that names no recipe of the project, as far as that is known
    without parameters: no name of a recipe has a $ or a backtick."""
    for index, each in enumerate(required):
        is_open = path[:1] != ("dependencies",) and re.search("[$`]", each.recipe)
        if is_open and each.dependency in project.dependencies:
            continue
        if wrong := project.recipe_problem(each):
            problems.add((*path, "depends", index), wrong)


def names_in(requirements: Iterable[Requirement]) -> tuple[str, ...]:
    """The parameters on which entries depend."""
    every = (name for each in requirements for name in parse_value(each.recipe).names)
    return tuple(dict.fromkeys(every))


def fixed(requirements: Iterable[Requirement]) -> tuple[Requirement, ...]:
    """The entries that are the same for all points."""
    return tuple(each for each in requirements if not names_in([each]))


def requirements_at(
    requirements: Iterable[Requirement], parameters: Mapping[str, str]
) -> tuple[Requirement, ...]:
    """The entries with the parameters of a point.

    Raises ConfigError for a value that a checked experiment does not have.
    """
    found = []
    for each in requirements:
        try:
            found.append(replace(each, recipe=parse_value(each.recipe).render(parameters)))
        except KeyError as error:
            raise ConfigError(f"{each}: there is no parameter {error}") from error
        except TemplateError as error:
            raise ConfigError(f"{each}: {error}") from error
    return tuple(found)


def note_recipe_problems(
    project: Project,
    experiment: Experiment,
    batch: Batch,
    points: Iterable[Point],
    machine: str,
    problems: Problems,
) -> None:
    """Note every value of a parameter that names no recipe, and points that need two recipes of
    one dependency."""
    wanted = override((*experiment.requirements, *batch.requirements), machine)
    used, points, at = names_in(wanted), list(points), ("batches", batch.name)
    if not used:
        return
    for name in used:
        for point in points:
            if name not in point.parameters:
                said = without_parameter(name, point.parameters, batch.parameters)
                problems.add(at, f"{said} (in 'depends')")
                break
    for point in distinct(points, used):
        found = True
        for each in wanted:
            own = {name: point.parameters[name] for name in names_in([each])}
            try:
                recipe = parse_value(each.recipe).render(own)
                wrong = project.recipe_problem(replace(each, recipe=recipe))
            except TemplateError as error:
                wrong = str(error)
            if wrong is not None:
                found = False
                path = place_of(experiment, batch, each, own)
                problems.add(path, f"{wrong} (in 'depends'{_with(own)})")
        if not found:
            continue
        own = {name: point.parameters[name] for name in used}
        try:
            recipes = requirements_at(wanted, point.parameters)
            project.resolve(recipes, machine, f"batch {batch.name}{_with(own)}")
        except ConfigError as error:
            # Its lines are the ways to the two recipes.
            told, *ways = error.message.split("\n")
            problems.add(at, f"{told} {' and '.join(map(str.strip, ways))}")


def distinct(points: Iterable[Point], parameters: Sequence[str]) -> list[Point]:
    """The first point of each combination of values of some parameters. Points without one of
    them, which was noted, are left out."""
    found: dict[tuple[str, ...], Point] = {}
    for point in points:
        if all(name in point.parameters for name in parameters):
            found.setdefault(tuple(point.parameters[name] for name in parameters), point)
    return list(found.values())


def place_of(
    experiment: Experiment, batch: Batch, requirement: Requirement, parameters: Mapping[str, str]
) -> KeyPath:
    """Where a person corrects an entry of a batch: the value in a list, if the entry depends on
    that alone, else the entry."""
    names = names_in([requirement])
    if len(names) == 1:
        path = place_of_value(experiment, batch, names[0], parameters[names[0]])
        if path is not None:
            return path
    if requirement in batch.requirements:
        own = batch.requirements.index(requirement)
        return ("batches", batch.name, "depends", own)
    return ("depends", experiment.requirements.index(requirement))


def place_of_value(experiment: Experiment, batch: Batch, name: str, text: str) -> KeyPath | None:
    """The line of a value of a parameter; None if it is not written as it is."""
    for sweep in batch.sweeps:
        path = sweep.all_places.get(name)
        for choice in flattened(sweep.parameters).get(name, ()):
            if path is not None and not choice.series and text in choice.values:
                return experiment.source_map.first((*path, choice.values.index(text)), path)
    return None


def _with(own: Mapping[str, str]) -> str:
    return f" with {', '.join(f'{name}={value}' for name, value in own.items())}" if own else ""
