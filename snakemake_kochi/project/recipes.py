"""Projects, their dependencies and recipes: which of them something needs, and in which order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import ConfigError, NameNotFoundError, nearest
from snakemake_kochi.files import is_name
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.machines import Machine
from snakemake_kochi.project.problems import chain
from snakemake_kochi.project.requests import NO_REQUEST, Request
from snakemake_kochi.project.sent import local_path

DEFAULT_FACTS: Mapping[str, str] = FrozenDict(
    {
        # sed reads all lines, so cc is not ended by SIGPIPE.
        "cc": "cc --version | sed -n 1p",
        "modules": 'if [ -n "${LOADEDMODULES-}" ]; then echo "$LOADEDMODULES"; '
        "elif type module > /dev/null 2>&1; then module -t list 2>&1; fi",
    }
)


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
    """A recipe that something depends on, on all machines (None) or some.

    In an experiment `recipe` may be a value with references to parameters.
    """

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
    chosen: dict[str, Requirement] = {}
    for requirement in requirements:
        if requirement.on(machine):
            chosen[requirement.dependency] = requirement
    return tuple(chosen.values())


@dataclass(frozen=True)
class Recipe:
    """One way to install a dependency.

    The source is `mirror_dir` if `mirror`, else `branch` of `git`, else `commit_hash` of `git`,
    else the default branch of `git`, else none. Only the one that counts is set. `source_at` has
    the position of each of these keys, for messages. `request` is what its installation requests.
    """

    dependency: str
    name: str
    git: str | None
    branch: str | None
    commit_hash: str | None
    mirror: bool
    mirror_dir: str | None
    envs: Mapping[str, str]
    before_script: str
    script: str
    after_script: str
    activate_script: str
    depends: tuple[Requirement, ...]
    on_machine: bool
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
            known = [str(recipe) for recipe in self.dependencies.get(name, {}).values()]
            if known:
                hint = f"The recipes of '{name}' are: {', '.join(known)}"
            else:
                problem = self.recipe_problem(Requirement(name, "")) or ""
                hint = f"{problem[:1].upper()}{problem[1:]}"
            raise ConfigError(error.message, hint) from None

    def recipe(self, requirement: Requirement) -> Recipe:
        """Raises NameNotFoundError."""
        problem = self.recipe_problem(requirement)
        if problem is not None:
            raise NameNotFoundError(
                f"{requirement}: {problem}", "To list all recipes, type: kochi show installs"
            )
        return self.dependencies[requirement.dependency][requirement.recipe]

    def recipe_problem(self, requirement: Requirement) -> str | None:
        """Why there is no such recipe, or None if there is."""
        recipes = self.dependencies.get(requirement.dependency)
        if recipes is None:
            said = nearest(requirement.dependency, self.dependencies)
            return f"there is no dependency '{requirement.dependency}' in {self._source}, {said}"
        if requirement.recipe in recipes:
            return None
        said = nearest(requirement.recipe, recipes)
        return f"'{requirement.dependency}' has no recipe '{requirement.recipe}', {said}"

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

        def add(requirement: Requirement, way: list[str]) -> None:
            if not requirement.on(machine):
                return
            own = [*way, str(requirement)]
            known = ways.setdefault(requirement.dependency, own)
            if known[-1] != own[-1]:
                raise ConfigError(
                    f"two recipes of '{requirement.dependency}' on machine '{machine}':\n"
                    f"  {chain(known)}\n  {chain(own)}",
                    "Make both require the same recipe.",
                )
            if known is own:
                recipe = self.recipe(requirement)
                for each in recipe.depends:
                    add(each, own)
                found.append(recipe)

        for requirement in requirements:
            add(requirement, [origin])
        return tuple(found)

    def circles(self) -> Iterator[tuple[Recipe, ...]]:
        """Each cycle of recipes once, on whatever machine."""
        from graphlib import CycleError, TopologicalSorter

        order = {name: index for index, name in enumerate(self._recipes)}
        seen: set[frozenset[str]] = set()
        for graph in self._graphs():
            while True:
                try:
                    TopologicalSorter(graph).prepare()
                    break
                except CycleError as error:
                    circle = error.args[1][:0:-1]  # each needs the next one
                start = min(range(len(circle)), key=lambda at: order[circle[at]])
                circle = circle[start:] + circle[:start]
                graph[circle[0]].remove(circle[1 % len(circle)])
                if frozenset(circle) not in seen:
                    seen.add(frozenset(circle))
                    yield tuple(map(self._recipes.__getitem__, circle))

    def longest_chain(self) -> int:
        """How many recipes depend on each other in a row, on whatever machine. There must be no
        cycles."""
        from graphlib import TopologicalSorter

        longest = 0
        for graph in self._graphs():
            lengths: dict[str, int] = {}
            for name in TopologicalSorter(graph).static_order():
                lengths[name] = 1 + max((lengths[other] for other in graph[name]), default=0)
                longest = max(longest, lengths[name])
        return longest

    def _graphs(self) -> Iterator[dict[str, list[str]]]:
        """What each recipe needs, on each machine: a cycle may exist on some only."""
        recipes = self._recipes
        requirements = [each for recipe in recipes.values() for each in recipe.depends]
        mentioned = {machine for each in requirements for machine in each.machines or ()}
        for machine in sorted({*self.machines, *mentioned}):
            yield {
                name: [str(e) for e in recipe.depends if e.on(machine) and str(e) in recipes]
                for name, recipe in recipes.items()
            }

    @cached_property
    def _recipes(self) -> dict[str, Recipe]:
        """All recipes, by `dependency:recipe`."""
        every = (each for known in self.dependencies.values() for each in known.values())
        return {str(recipe): recipe for recipe in every}

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
