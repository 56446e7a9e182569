"""Rules of installations, builds and `prepare` scripts: names, the files that stand for them, and
what their jobs request.

What determines an installation or a build is in the name of its file, as far as it is known while
a Snakefile is parsed (the commit of a remote repository is looked up at the first installation).
So the age of the file says nothing, and a change that is undone leads to the same names, whatever
was tried in between.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import ConfigError, DamagedFileError, NameNotFoundError, for_snakemake
from snakemake_kochi.library.files import component_of, identifier, wildcard_name
from snakemake_kochi.paths import WorkingPaths
from snakemake_kochi.phases.freeze import Freeze
from snakemake_kochi.phases.make import code_digest, describe_script, recipe_description
from snakemake_kochi.phases.products import digest_of, read_manifest
from snakemake_kochi.phases.sources import determining
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.grid import Grid, Phase, Point, Request, Step
from snakemake_kochi.project.recipes import Recipe, fixed, names_in, requirements_at
from snakemake_kochi.project.values import CODE, WORKING_TREE

# A value of a rule, or a function of the wildcards. What all jobs of a rule share is a constant:
# Snakemake inspects the signature of a function again and again for each job.
Value = Any


def verbatim(value: Any) -> Value:
    """A value for a rule's `params:` that Snakemake uses as it is: in plain text it would look for
    wildcards, and find the `${HOME}` of a script."""
    texts = value if isinstance(value, list) else [value]
    if all(isinstance(t, bool | int) or (isinstance(t, str) and "{" not in t) for t in texts):
        return value
    return lambda wildcards: value


def shared(values: Iterable[Any], value_of: Callable[[Mapping[str, str]], Any]) -> Value:
    """The value of all jobs of a rule if it is one, else the function."""
    distinct = set(values)
    return verbatim(distinct.pop()) if len(distinct) == 1 else value_of


def rule_resources(
    requests: Iterable[Request], request_of: Callable[[Mapping[str, str]], Request]
) -> dict[str, Value]:
    """The resources of a rule whose jobs have these requests; `request_of` finds that of a job."""
    # Points with the same values share one, and there may be a million points.
    distinct = list({id(request): request for request in requests}.values())

    def resource(name: str) -> Value:
        values = (request.of_rule.get(name) for request in distinct)
        return shared(values, lambda wildcards: request_of(wildcards).of_rule.get(name))

    names = dict.fromkeys(name for request in distinct for name in request.of_rule)
    return {name: resource(name) for name in names}


@dataclass(frozen=True)
class BuildRule:
    """One rule per script `build` or `prepare`, and per code and recipes that it is used with: the
    parameters it depends on are its wildcards. Batches may share it.

    `installs` are manifests, `code` is empty for that of the working tree. `values` and `requests`
    are those of the points of all batches, by the texts of the wildcards.
    """

    name: str
    experiment: Experiment
    batch: str
    kind: str
    phase: Phase | Step
    output: str
    installs: tuple[str, ...]
    code: str = ""
    values: dict[tuple[str, ...], Mapping[str, str]] = field(default_factory=dict)
    requests: dict[tuple[str, ...], Request] = field(default_factory=dict)

    @property
    def constraints(self) -> dict[str, str]:
        # Any value without a directory separator: each batch has values of its own.
        return {wildcard_name(name): "[^/]+" for name in self.phase.depend_params}

    def key(self, parameters: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(component_of(parameters, name) for name in self.phase.depend_params)

    def file(self, point: Point) -> str:
        """The output for the build of a point."""
        key = self.key(point.parameters)
        return self.output.format(**dict(zip(self.constraints, key, strict=True)))

    @for_snakemake
    def assignments(self, wildcards: Mapping[str, str], output: object) -> list[str]:
        """The parameters of a build as `name=value`, its code if that is not checked out, and its
        limit of time.

        The parameters are in the output's path, and so is a digest of the code, whichever branch it
        was taken from: Snakemake does not compare what depends on the output.
        """
        known = self._known(wildcards)
        words = [f"{name}={value}" for name, value in self.values[known].items()]
        # Not words of their own in the rule: a changed rule would make all finished work stale.
        words += [f"--code={self.code}"] if self.code else []
        timeout = self.requests[known].timeout if known in self.requests else None
        return words if timeout is None else [*words, f"--timeout={timeout}"]

    def _known(self, wildcards: Mapping[str, str]) -> tuple[str, ...]:
        key = tuple(wildcards[name] for name in self.constraints)
        if key not in self.values:
            raise NameNotFoundError(f"no batch needs the build with {', '.join(key)}")
        return key

    @property
    def resources(self) -> dict[str, Value]:
        request_of = for_snakemake(lambda wildcards: self.requests[self._known(wildcards)])
        return rule_resources(self.requests.values(), request_of)


@dataclass(frozen=True)
class Variant:
    """What points with the same recipes and the same code share. `freeze` has that code, `installs`
    are manifests. `missing`: what is not on this computer, a line each."""

    freeze: Freeze
    recipes: tuple[Recipe, ...]
    installs: tuple[str, ...]
    build: BuildRule
    missing: tuple[str, ...]


class Variants:
    """All variants of a batch, by the values of the parameters that choose them. Raises ConfigError
    if points need recipes that do not fit together."""

    def __init__(self, products: Products, experiment: Experiment, grid: Grid) -> None:
        self._names = (*names_in(grid.requirements), *([CODE] if grid.has_code else []))
        members: dict[tuple[str, ...], list[Point]] = defaultdict(list)
        for point in grid.points:
            members[self._key(point)].append(point)
        self._own = {
            key: products.variant(experiment, grid, points) for key, points in members.items()
        }

    def _key(self, point: Point) -> tuple[str, ...]:
        return tuple(point.parameters[name] for name in self._names)

    def at(self, point: Point) -> Variant:
        return self._own[self._key(point)]

    def __iter__(self) -> Iterator[Variant]:
        return iter(self._own.values())

    @property
    def missing(self) -> str:
        """What is not on this computer, a line each."""
        return "\n".join(dict.fromkeys(line for each in self for line in each.missing))


class Products:
    """The rules of one library: each name once, and the files of installations and builds."""

    def __init__(self, freeze: Freeze) -> None:
        self.freeze = freeze
        self.builds: dict[str, BuildRule] = {}  # by output
        self._state = WorkingPaths(Path(), freeze.machine_name).state
        self._owners: dict[str, str] = {}  # of names
        self._keys: dict[str, str] = {}  # of recipes

    def take(self, name: str, owner: str) -> str:
        """Reserve a rule's name; ConfigError when another owner has it."""
        other = self._owners.setdefault(name, owner)
        if other != owner:
            raise ConfigError(
                f"{owner} and {other} would both become the rule '{name}'", "Rename one of them."
            )
        return name

    # ---- installations

    def manifest(self, recipe: Recipe) -> str:
        """The file that stands for an installation of a recipe."""
        return self._install(recipe, self._key(recipe), "manifest.json")

    def activation(self, recipe: Recipe) -> str:
        """The bash file that brings a recipe into a shell."""
        return self._install(recipe, self._key(recipe), "activate.sh")

    def _install(self, recipe: Recipe, key: str, name: str) -> str:
        return f"{self._state}/installs/{recipe.dependency}/{recipe.name}/{key}/{name}"

    def _key(self, recipe: Recipe) -> str:
        """A digest of what determines an installation, and of what its dependants see of it."""
        name = str(recipe)
        if name not in self._keys:
            source = determining(self.freeze.sources.get(name, {}))
            self._keys[name] = self._key_with(recipe, source)
            if recipe.is_remote and source:
                # What was installed before the lock file named this commit stays what it is.
                before = self._key_with(recipe, {})
                with suppress(OSError, DamagedFileError):
                    file = self._install(recipe, before, "manifest.json")
                    if read_manifest(Path(file))[-1].source == source:
                        self._keys[name] = before
        return self._keys[name]

    def _key_with(self, recipe: Recipe, source: Mapping[str, str]) -> str:
        return digest_of(
            {
                "name": str(recipe),
                "recipe": recipe_description(self.freeze.machine, recipe),
                "activate_script": recipe.activate_script,
                "source": source,
                "depends": [self._key(each) for each in self.depends(recipe)],
            }
        )

    def depends(self, recipe: Recipe) -> list[Recipe]:
        """The recipes on which a recipe itself depends."""
        project, machine = self.freeze.project, self.freeze.machine_name
        return [project.recipe(each) for each in recipe.depends if each.on(machine)]

    # ---- builds

    def variant(self, experiment: Experiment, grid: Grid, points: Sequence[Point]) -> Variant:
        code = points[0].parameters[CODE] if grid.has_code else WORKING_TREE
        freeze = self.freeze.at(code)
        required = requirements_at(grid.requirements, points[0].parameters)
        recipes = freeze.recipes(required, f"{experiment.file}: batch {grid.batch}")
        pairs = zip(grid.requirements, required, strict=True)
        chosen = [at.recipe for each, at in pairs if at.recipe != each.recipe]
        is_here = code == WORKING_TREE
        rule = self._build(
            *(experiment, grid, points, recipes, grid.build),
            words=chosen if is_here else [code, *chosen],
            # What a build requests does not make it another build.
            is_own=grid.build.determining != experiment.build.determining,
            sources=code_digest(freeze, experiment, grid.build),
            code="" if is_here else code,
        )
        for key, values in rule.values.items():
            if key not in rule.requests:
                # Of batches that share a build, the first one says what it requests.
                rule.requests[key] = experiment.build_request(grid.build, values)
        without = (freeze.without_source.get(str(recipe)) for recipe in recipes)
        missing = tuple(filter(None, (freeze.without_code.get(code), *without)))
        return Variant(freeze, recipes, rule.installs, rule, missing)

    def preparation(self, experiment: Experiment, grid: Grid, step: Step) -> BuildRule:
        """The rule of a `prepare` script. It has the recipes that all points share, and the code of
        the working tree."""
        common = requirements_at(fixed(grid.requirements), {})
        recipes = self.freeze.recipes(common, f"{experiment.file}: batch {grid.batch}")
        return self._build(
            *(experiment, grid, grid.points, recipes, step),
            is_own=step != experiment.prepare,
            sources=code_digest(self.freeze, experiment, step),
        )

    def _build(
        self,
        experiment: Experiment,
        grid: Grid,
        points: Sequence[Point],
        recipes: Sequence[Recipe],
        phase: Phase | Step,
        *,
        is_own: bool,
        sources: str,
        words: Sequence[str] = (),
        code: str = "",
    ) -> BuildRule:
        """The rule of a script, shared with other batches unless the script or recipes `is_own`.

        `sources`: the digest of its code. `words`: recipes and code that parameters choose, for its
        name.
        """
        kind = "prepare" if isinstance(phase, Step) else "build"
        is_own |= grid.requirements != experiment.requirements_on(self.freeze.machine_name)
        label = f"{kind}_{identifier(experiment.name)}"
        label += f"_{identifier(grid.batch)}" if is_own else ""
        of = f"batch {grid.batch} of {experiment.file}" if is_own else experiment.file
        key = digest_of(
            {
                **describe_script(phase, sources),
                "installs": list(map(self._key, recipes)),
                "load_environment": self.freeze.machine.load_env_on_machine,
            }
        )
        parts = [f"{name}~{{{wildcard_name(name)}}}" for name in phase.depend_params]
        below, file = ("builds", kind) if kind == "build" else ("prepared", "prepared")
        output = "/".join((str(self._state), below, label, key, *parts, f"{file}.json"))
        if output not in self.builds:
            name = "_".join((label, *map(identifier, words)))
            if any(rule.name == name for rule in self.builds.values()):
                name = f"{name}_{key[:8]}"
            self.builds[output] = BuildRule(
                self.take(name, f"the {kind} script of {of}"),
                *(experiment, grid.batch if is_own else "", kind, phase, output),
                tuple(map(self.manifest, recipes)),
                code,
            )
        rule = self.builds[output]
        for point in points:
            seen = {n: point.parameters[n] for n in phase.depend_params if n in point.parameters}
            rule.values[rule.key(point.parameters)] = seen
        return rule
