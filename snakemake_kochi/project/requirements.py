"""The entries of `depends`: how they are read, and which recipes the points of a batch need.

In an experiment the recipe of an entry, its branch and its commit may depend on parameters. Then
each point has requirements of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.project.parameters import flattened, without_parameter
from snakemake_kochi.project.problems import KeyPath, Problems
from snakemake_kochi.project.recipes import Project, Requirement, override
from snakemake_kochi.project.revisions import Revision
from snakemake_kochi.project.templates import TemplateError, parse_value

if TYPE_CHECKING:
    from snakemake_kochi.project.experiment import Experiment
    from snakemake_kochi.project.grid import Batch, Point

_KEYS = ("recipe", "branch", "commit_hash")


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
        texts = {key: entry.get(key, "") for key in _KEYS}
        for key, text in texts.items():
            try:
                parse_value(text)
            except TemplateError as error:
                problems.add((*place, key), str(error))
                texts[key] = ""
        own = Requirement(entry["name"], machines=entry.get("machines"), **texts)
        if own.branch and own.commit_hash:
            problems.add(place, "either 'branch' or 'commit_hash' was expected, not both")
        for other in found:
            alike = (other.dependency, other.machines) == (own.dependency, own.machines)
            if alike and other != own:
                said = f"two recipes of one dependency: {other} and {own}; remove one"
                problems.add(place, said)
        found.append(own)
    return tuple(found)


def _texts(requirement: Requirement) -> dict[str, str]:
    """The values of an entry, by their keys."""
    return {key: text for key in _KEYS if (text := getattr(requirement, key))}


def _is_open(text: str) -> bool:
    """Whether a value is known at a point only. No name of a recipe has these characters."""
    return "$" in text or "`" in text


def check_recipes(
    project: Project, required: Iterable[Requirement], path: KeyPath, problems: Problems
) -> None:
    """Note every entry of `depends` that names no recipe of the project, as far as that is known
    without parameters."""
    problem = _fixed_problem if path[:1] == ("dependencies",) else _known_problem
    for index, each in enumerate(required):
        if wrong := problem(project, each):
            problems.add((*path, "depends", index), wrong)


def _fixed_problem(project: Project, requirement: Requirement) -> str | None:
    """Why a recipe cannot depend on a requirement, or None."""
    wrong = project.recipe_problem(requirement)
    if wrong or requirement.recipe in project.dependencies[requirement.dependency]:
        return wrong
    return f"{requirement}: only experiments can use a recipe at another branch"


def _known_problem(project: Project, requirement: Requirement) -> str | None:
    """The problem of an entry of an experiment, as far as it is known without parameters."""
    values = _texts(requirement).values()
    if requirement.dependency not in project.dependencies or not any(map(_is_open, values)):
        return _problem(project, requirement)
    if _is_open(requirement.recipe):
        return None
    return project.recipe_problem(replace(requirement, branch="", commit_hash=""))


def _problem(project: Project, requirement: Requirement) -> str | None:
    """Why there is no recipe as a resolved entry names it, or None."""
    plain = replace(requirement, branch="", commit_hash="")
    revision = Revision(requirement.recipe, requirement.branch, requirement.commit_hash)
    if (wrong := project.recipe_problem(plain) or revision.problem) or not revision.is_any:
        return wrong
    at = replace(plain, recipe=revision.name)
    if at.recipe in project.dependencies[at.dependency]:
        return f"{at} is also the name of a recipe of its own; rename that"
    return project.recipe_problem(at)


def names_in(requirements: Iterable[Requirement]) -> tuple[str, ...]:
    """The parameters on which entries depend."""
    values = (text for each in requirements for text in _texts(each).values())
    return tuple(dict.fromkeys(name for text in values for name in parse_value(text).names))


def fixed(requirements: Iterable[Requirement]) -> tuple[Requirement, ...]:
    """The entries that are the same for all points."""
    return tuple(each for each in requirements if not names_in([each]))


def requirements_at(
    requirements: Iterable[Requirement], parameters: Mapping[str, str]
) -> tuple[Requirement, ...]:
    """The entries with the parameters of a point; a branch or a commit is in the name of the
    recipe (see `revisions.py`).

    Raises ConfigError for a value that a checked experiment does not have.
    """
    found = []
    for each in requirements:
        try:
            name = _revision_at(each, parameters).name
        except KeyError as error:
            raise ConfigError(f"{each}: there is no parameter {error}") from error
        except TemplateError as error:
            raise ConfigError(f"{each}: {error}") from error
        found.append(Requirement(each.dependency, name, each.machines))
    return tuple(found)


def _revision_at(requirement: Requirement, parameters: Mapping[str, str]) -> Revision:
    texts = {n: parse_value(t).render(parameters) for n, t in _texts(requirement).items()}
    for key, text in texts.items():
        if not text:
            raise TemplateError(f"'{key}' is empty")
    return Revision(**texts)


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
                revision = _revision_at(each, own)
                wrong = _problem(project, replace(each, **asdict(revision)))
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
