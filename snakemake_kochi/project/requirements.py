"""The entries of `depends`: how they are read, and which recipes the points of a batch need.

In an experiment the recipe of an entry, its branch and its commit may depend on parameters. Then
each point has requirements of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.project.document import names, optional_text
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
    for index, entry in _entries(data):
        requirement = _requirement(entry)
        for key, text in _texts(requirement).items():
            try:
                parse_value(text)
            except TemplateError as error:
                problems.add((*path, "depends", index, key), str(error))
                requirement = Requirement(requirement.dependency, "", requirement.machines)
        if requirement.branch and requirement.commit_hash:
            said = "either 'branch' or 'commit_hash' was expected, not both"
            problems.add((*path, "depends", index), said)
        for other in found:
            same = (other.dependency, other.machines) == (
                requirement.dependency,
                requirement.machines,
            )
            if same and other != requirement:
                problems.add(
                    (*path, "depends", index),
                    f"two recipes of one dependency: {other} and {requirement}; remove one",
                )
        found.append(requirement)
    return tuple(found)


def _entries(data: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    value = data.get("depends")
    for index, entry in enumerate(value if isinstance(value, list) else []):
        if entry is not None:  # its shape was wrong
            yield index, entry


def _requirement(entry: Mapping[str, Any]) -> Requirement:
    return Requirement(
        str(entry["name"]),
        str(entry["recipe"]),
        names(entry.get("machines")),
        optional_text(entry.get("branch")) or "",
        optional_text(entry.get("commit_hash")) or "",
    )


def _texts(requirement: Requirement) -> dict[str, str]:
    """The values of an entry, by their keys."""
    return {key: text for key in _KEYS if (text := getattr(requirement, key))}


def _is_open(text: str) -> bool:
    """Whether a value is known at a point only. No name of a recipe has these characters."""
    return "$" in text or "`" in text


def check_recipes(
    project: Project, data: Mapping[str, Any], path: KeyPath, problems: Problems
) -> None:
    """Note every entry of `depends` that names no recipe of the project, as far as that is known
    without parameters."""

    def is_known(dependency: str) -> bool:
        path = ("dependencies", dependency)
        return not (problems.is_unknown(path) or problems.is_unknown((*path, "recipes")))

    for index, entry in _entries(data):
        requirement = _requirement(entry)
        if is_known(requirement.dependency):
            is_of_recipe = path[:1] == ("dependencies",)
            wrong = (_fixed_problem if is_of_recipe else _known_problem)(project, requirement)
            if wrong:
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
    used = names_in(wanted)
    if not used:
        return
    told: set[object] = set()
    points = list(points)
    for point in points:
        for name in (name for name in used if name not in point.parameters):
            if name not in told:
                told.add(name)
                said = without_parameter(name, point.parameters, batch.parameters)
                problems.add(("batches", batch.name), f"{said} (in 'depends')")
    for point in distinct(points, used):
        fine = True
        for each in wanted:
            own = {name: point.parameters[name] for name in names_in([each])}
            try:
                revision = _revision_at(each, point.parameters)
                found = replace(each, recipe=revision.recipe, branch=revision.branch)
                wrong = _problem(project, replace(found, commit_hash=revision.commit_hash))
            except TemplateError as error:
                wrong = str(error)
            if wrong is None:
                continue
            fine = False
            if (each, *own.items()) not in told:
                told.add((each, *own.items()))
                path = place_of(experiment, batch, each, own)
                problems.add(path, f"{wrong} (in 'depends'{_with(own)})")
        if fine:
            _note_conflict(project, wanted, point, machine, batch, problems)


def _note_conflict(
    project: Project,
    wanted: Sequence[Requirement],
    point: Point,
    machine: str,
    batch: Batch,
    problems: Problems,
) -> None:
    own = {name: point.parameters[name] for name in names_in(wanted)}
    try:
        project.resolve(
            requirements_at(wanted, point.parameters),
            machine,
            f"batch {batch.name}{_with(own)}",
        )
    except ConfigError as error:
        # Its lines are the ways to the two recipes.
        told, *ways = error.message.split("\n")
        said = f"{told} {' and '.join(map(str.strip, ways))}"
        problems.add(("batches", batch.name), said)


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
