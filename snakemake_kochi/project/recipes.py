"""Projects, their dependencies and recipes: which of them something needs, and in which order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snakemake_kochi.errors import ConfigError, NameNotFoundError, nearest
from snakemake_kochi.files import is_name
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.document import KeyPath, Problems
from snakemake_kochi.project.expressions import TemplateError, parse_value
from snakemake_kochi.project.grid import NO_REQUEST, Batch, Point, Request
from snakemake_kochi.project.machines import Machine
from snakemake_kochi.project.sent import local_path
from snakemake_kochi.project.sweeps import flattened

if TYPE_CHECKING:
    from snakemake_kochi.project.experiment import Experiment

DEFAULT_FACTS: Mapping[str, str] = FrozenDict(
    {
        # sed reads all lines, so cc is not ended by SIGPIPE.
        "cc": "cc --version | sed -n 1p",
        "modules": 'if [ -n "${LOADEDMODULES-}" ]; then echo "$LOADEDMODULES"; '
        "elif type module > /dev/null 2>&1; then module -t list 2>&1; fi",
    }
)


# ---- data


@dataclass(frozen=True)
class Recording:
    """What records say beyond what Kochi knows itself, which determines nothing.

    `facts` maps names to commands for bash; "" turns a fact off. `variables` are names of
    environment variables, or the beginnings of names with a `*` after them.
    """

    facts: Mapping[str, str] = FrozenDict()
    variables: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Recording:
        """The keys of one document, whose shape was read."""
        facts = ((name, command or "") for name, command in (data.get("facts") or {}).items())
        return cls(FrozenDict(facts), data.get("recorded_variables", ()))

    def and_those_of(self, other: Recording) -> Recording:
        """With the keys of another file, whose facts replace those of the same name."""
        variables = dict.fromkeys((*self.variables, *other.variables))
        return Recording(FrozenDict({**self.facts, **other.facts}), tuple(variables))


NOTHING_MORE = Recording()


@dataclass(frozen=True)
class Requirement:
    """A recipe that something depends on, on all machines (None) or some. In an experiment `recipe`
    may be a value with references to parameters: then each point has requirements of its own."""

    dependency: str
    recipe: str
    machines: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return f"{self.dependency}:{self.recipe}"

    def on(self, machine: str) -> bool:
        return self.machines is None or machine in self.machines

    @classmethod
    def parse(cls, text: str) -> Requirement:
        """From `dependency:recipe`, as given to -d. Raises ConfigError for anything else."""
        dependency, _, recipe = text.partition(":")
        if not (is_name(dependency) and is_name(recipe)):
            raise ConfigError(f"'{text}' names no recipe: DEPENDENCY:RECIPE was expected")
        return cls(dependency, recipe)


def override(requirements: Iterable[Requirement], machine: str) -> tuple[Requirement, ...]:
    """The requirements for a machine, where a later one replaces an earlier one of the same
    dependency."""
    return tuple({each.dependency: each for each in requirements if each.on(machine)}.values())


@dataclass(frozen=True)
class Recipe:
    """One way to install a dependency.

    The source is `mirror_dir` if `mirror`, else `branch` of `git`, else `commit_hash` of `git`,
    else the default branch of `git`, else none. Only the one that counts is set. `source_at` has
    the position of each of these keys, for messages. `request` is what its installation requests.
    """

    dependency: str
    name: str
    git: str | None = None
    branch: str | None = None
    commit_hash: str | None = None
    mirror: bool = False
    mirror_dir: str | None = None
    envs: Mapping[str, str] = FrozenDict()
    before_script: str = ""
    script: str = ""
    after_script: str = ""
    activate_script: str = ""
    depends: tuple[Requirement, ...] = ()
    on_machine: bool = False
    strict: bool = True
    request: Request = field(default=NO_REQUEST, compare=False)
    source_at: Mapping[str, str] = field(default=FrozenDict(), compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.dependency}:{self.name}"

    @property
    def is_remote(self) -> bool:
        """Whether `git` is the address of another computer, and not a directory."""
        return re.match(r"(?!file://)[^/]*:", self.git or "") is not None

    @property
    def install_script(self) -> str:
        """`before_script`, `script` and `after_script`, run in one bash."""
        parts = (self.before_script, self.script, self.after_script)
        return "\n".join(part for part in parts if part.strip())


@dataclass(frozen=True)
class Project:
    """A project: `directory` is the top of its repository, `file` its kochi.yaml if it was read
    from a file. `common_files`: those with machines that count in every project. `large_files`: the
    size in bytes above which an artifact is kept beside the repository; None for the default.
    `recording` includes the facts that each project has."""

    directory: Path
    file: Path | None
    machines: Mapping[str, Machine]
    dependencies: Mapping[str, Mapping[str, Recipe]]
    common_files: tuple[str, ...] = ()
    large_files: int | None = None
    quiet: Mapping[str, float | str] = FrozenDict()
    recording: Recording = NOTHING_MORE

    def machine(self, name: str) -> Machine:
        """Raises NameNotFoundError."""
        if name in self.machines:
            return self.machines[name]
        raise NameNotFoundError(
            f"there is no machine '{name}' in {' or '.join([self._source, *self.common_files])}, "
            f"{nearest(name, self.machines)}",
            f"To add it, describe it under the key 'machines' of {self._source}.",
        )

    def requirement(self, text: str) -> Requirement:
        """From `dependency:recipe`. Raises ConfigError, with the recipes of the dependency, for
        anything else."""
        try:
            return Requirement.parse(text)
        except ConfigError as error:
            name = text.partition(":")[0]
            known = ", ".join(map(str, self.dependencies.get(name, {}).values()))
            problem = self.recipe_problem(Requirement(name, "")) or ""
            hint = f"The recipes of '{name}' are: {known}"
            hint = hint if known else f"{problem[:1].upper()}{problem[1:]}"
            raise ConfigError(error.message, hint) from None

    def recipe(self, requirement: Requirement) -> Recipe:
        """Raises NameNotFoundError."""
        if (problem := self.recipe_problem(requirement)) is not None:
            hint = "To list all recipes, type: kochi show installs"
            raise NameNotFoundError(f"{requirement}: {problem}", hint)
        return self.dependencies[requirement.dependency][requirement.recipe]

    def recipe_problem(self, requirement: Requirement) -> str | None:
        """Why there is no such recipe, or None if there is."""
        dependency, recipe = requirement.dependency, requirement.recipe
        recipes = self.dependencies.get(dependency)
        if recipes is None:
            said = nearest(dependency, self.dependencies)
            return f"there is no dependency '{dependency}' in {self._source}, {said}"
        if recipe not in recipes:
            return f"'{dependency}' has no recipe '{recipe}', {nearest(recipe, recipes)}"
        return None

    def resolve(
        self, requirements: Iterable[Requirement], machine: str, origin: str = "the command line"
    ) -> tuple[Recipe, ...]:
        """All recipes needed on a machine, each after its dependencies.

        `origin` says in messages who requires them. Raises NameNotFoundError for an unknown recipe,
        ConfigError when they need two recipes of one dependency. There are no cycles: a kochi.yaml
        with a cycle is refused.
        """
        ways: dict[str, list[str]] = {}  # to the recipe of each dependency, from who requires it
        found: list[Recipe] = []

        def add(some: Iterable[Requirement], way: list[str]) -> None:
            for each in some:
                own = [*way, str(each)]
                known = ways.setdefault(each.dependency, own) if each.on(machine) else None
                if known is own:
                    add((recipe := self.recipe(each)).depends, own)
                    found.append(recipe)
                elif known and known[-1] != own[-1]:
                    said = f"two recipes of '{each.dependency}' on machine '{machine}':"
                    raise ConfigError(
                        f"{said}\n  {' -> '.join(known)}\n  {' -> '.join(own)}",
                        "Make both require the same recipe.",
                    )

        add(requirements, [origin])
        return tuple(found)

    def with_commits(self, commits: Mapping[str, Iterable[str]]) -> Project:
        """With a recipe for each of some commits of recipes, named by the commit. `commits`: by
        `dependency:recipe`."""
        dependencies = {name: dict(known) for name, known in self.dependencies.items()}
        for name, ids in commits.items():
            recipe = self.recipe(Requirement.parse(name))
            dependencies[recipe.dependency] |= {
                commit: replace(recipe, name=commit, branch=None, commit_hash=commit)
                for commit in ids
            }
        return replace(self, dependencies=dependencies)

    def mirror_directory(self, recipe: Recipe) -> Path | None:
        """The directory that a recipe mirrors, absolute; None if it does not mirror."""
        if not recipe.mirror or not recipe.mirror_dir:
            return None
        what = f"mirror_dir of {recipe}"
        return local_path(self.directory, "mirror_dir", recipe.mirror_dir, what)

    def remote(self, recipe: Recipe) -> str | None:
        """The argument of `git clone`: a URL as written, or a local path made absolute."""
        if recipe.git is None or "://" in recipe.git or re.match(r"[^/]*:", recipe.git):
            return recipe.git
        return str(local_path(self.directory, "git", recipe.git, f"git of {recipe}"))

    @property
    def _source(self) -> str:
        return "kochi.yaml" if self.file is None else str(self.file)


# ---- reading


def requirements(
    data: Mapping[str, Any], path: KeyPath, problems: Problems
) -> tuple[Requirement, ...]:
    """The entries of `depends`.

    Two recipes of one dependency for the same machines are a problem; a later entry for other
    machines replaces an earlier one there.
    """
    required: list[Requirement] = []
    for index, entry in enumerate(data.get("depends") or ()):
        own = Requirement(entry["name"], entry["recipe"], entry.get("machines"))
        for other in required:
            alike = (other.dependency, other.machines) == (own.dependency, own.machines)
            if alike and other != own:
                said = f"two recipes of one dependency: {other} and {own}; remove one"
                problems.add((*path, "depends", index), said)
        required.append(own)
    return tuple(required)


def check_time_limit(data: Mapping[str, Any], path: KeyPath, problems: Problems) -> None:
    """Note two time limits in the section at a key path."""
    if "runtime" in (data.get("resources") or {}) and data.get("timeout"):
        said = "there is a 'runtime' in 'resources', too; leave out one of the two: a timeout is "
        problems.add((*path, "timeout"), f"{said}exact, and gives a runtime")


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


# ---- recipes by parameters


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
    try:
        return tuple(
            replace(each, recipe=parse_value(each.recipe).render(parameters))
            for each in requirements
        )
    except KeyError as error:
        raise ConfigError(f"'depends': there is no parameter {error}") from error
    except TemplateError as error:
        raise ConfigError(f"{error}") from error


def note_recipe_problems(
    project: Project,
    experiment: Experiment,
    batch: Batch,
    points: Sequence[Point],
    machine: str,
    problems: Problems,
) -> None:
    """Note every value of a parameter that names no recipe, and points that need two recipes of
    one dependency."""
    wanted = experiment.requirements_on(machine, batch.requirements)
    used = names_in(wanted)
    own = {tuple(map(p.parameters.get, used)): p.parameters for p in points if used}
    for parameters in own.values():
        shown = ", ".join(f"{name}={parameters[name]}" for name in used if name in parameters)
        place: KeyPath | None = None
        try:
            for each in wanted:
                names = [name for name in names_in([each]) if name in parameters]
                if len(names) == 1:  # the value is to be corrected
                    place = place_of_value(experiment, batch, names[0], parameters[names[0]])
                project.recipe(*requirements_at([each], parameters))
                place = None
            some = requirements_at(wanted, parameters)
            project.resolve(some, machine, f"batch {batch.name} with {shown}")
        except (ConfigError, NameNotFoundError) as error:
            told = " and ".join(map(str.strip, error.message.split("\n")))
            told = told.partition(": ")[2] if isinstance(error, NameNotFoundError) else told
            problems.add(place or batch.path, f"{told} (in 'depends' with {shown})")


def distinct(points: Iterable[Point], parameters: Sequence[str]) -> list[Point]:
    """The first point of each combination of values of some parameters. Points without one of
    them, which was noted, are left out."""
    first: dict[tuple[str, ...], Point] = {}
    for point in points:
        if all(name in point.parameters for name in parameters):
            first.setdefault(tuple(point.parameters[name] for name in parameters), point)
    return list(first.values())


def place_of_value(experiment: Experiment, batch: Batch, name: str, text: str) -> KeyPath | None:
    """The line of a value of a parameter; None if it is not written as it is."""
    for sweep in batch.sweeps:
        for choice in flattened(sweep.parameters).get(name, ()):
            if not choice.series and text in choice.values:
                path = (*choice.place, choice.values.index(text))
                return path if path in experiment.source_map.lines else choice.place
    return None
