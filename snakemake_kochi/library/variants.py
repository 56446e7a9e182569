"""The builds and installations of a batch: of all its points, or of those with the same recipes
and the same code, if these depend on parameters."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from snakemake_kochi.errors import NameNotFoundError, for_snakemake
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.library.outputs import Outputs, identifier
from snakemake_kochi.library.requested import Resource, Verbatim, rule_resources, verbatim
from snakemake_kochi.library.run_group import RunGroup, component_of, wildcard_name
from snakemake_kochi.phases.build import code_digest, source_files
from snakemake_kochi.phases.freeze import Freeze
from snakemake_kochi.phases.products import digest_of
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.grid import Grid, Phase, Point, Step
from snakemake_kochi.project.recipes import Recipe
from snakemake_kochi.project.requests import Request
from snakemake_kochi.project.requirements import fixed, names_in, requirements_at
from snakemake_kochi.project.values import CODE, WORKING_TREE

_MOST_SOURCE_PARAMS = 20
_MOST_NAMED_SOURCES = 100


@dataclass(frozen=True)
class BuildRule:
    """One rule per script `build` or `prepare`, and per code and recipes that it is used with: the
    parameters it depends on are its wildcards. `code` is empty for that of the working tree."""

    name: str
    experiment: Experiment
    batch: str
    phase: Phase | Step
    output: str
    constraints: Mapping[str, str]
    installs: tuple[str, ...]
    values: Mapping[tuple[str, ...], Mapping[str, str]]
    requests: Mapping[tuple[str, ...], Request] = FrozenDict()
    code: str = ""

    @property
    def kind(self) -> str:
        """The phase, `build` or `prepare`."""
        return "prepare" if isinstance(self.phase, Step) else "build"

    def file(self, point: Point) -> str:
        """The output for the build of a point."""
        return self.output.format(
            **{
                wildcard_name(name): component_of(point.parameters, name)
                for name in self.phase.depend_params
            }
        )

    @for_snakemake
    def assignments(self, wildcards: Mapping[str, str]) -> list[str]:
        """The parameters of a build as `name=value`, and its code if that is not checked out."""
        values = self.values[self._key(wildcards)]
        words = [f"{name}={value}" for name, value in values.items()]
        # Not a word of its own in the rule: a changed rule would make all finished work stale.
        return [*words, f"--code={self.code}"] if self.code else words

    def _key(self, wildcards: Mapping[str, str]) -> tuple[str, ...]:
        key = tuple(wildcards[wildcard_name(name)] for name in self.phase.depend_params)
        if key not in self.values:
            raise NameNotFoundError(f"no batch needs the build with {', '.join(key)}")
        return key

    @property
    def resources(self) -> dict[str, Resource]:
        """What builds request, as resources of the rule."""
        return rule_resources(
            self.requests.values(), for_snakemake(lambda w: self.requests[self._key(w)])
        )

    def serving(self, other: BuildRule) -> BuildRule:
        """This rule, also for the points of another batch that shares it."""
        return replace(
            self,
            values={**self.values, **other.values},
            requests={**self.requests, **other.requests},
        )


@dataclass(frozen=True)
class Variant:
    """What points with the same recipes and the same code share.

    `freeze` has that code; `installs` are manifests; `sources` are texts about the files of the
    code, for `params:`. `missing`: what is not on this computer, a line each.
    """

    freeze: Freeze
    recipes: tuple[Recipe, ...]
    installs: tuple[str, ...]
    build: BuildRule
    sources: Mapping[str, str]
    missing: tuple[str, ...]


@dataclass(frozen=True)
class _Chosen:
    """Points with the same values of the parameters that choose recipes or code. `words`: these
    recipes and that code, for the name of a rule."""

    points: tuple[Point, ...]
    code: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Variants:
    """All variants of a batch, by the values of the parameters `names`, which choose them."""

    names: tuple[str, ...]
    by_values: Mapping[tuple[str, ...], Variant]

    @classmethod
    def of(cls, outputs: Outputs, experiment: Experiment, grid: Grid) -> Variants:
        """Raises ConfigError if points need recipes that do not fit together."""
        names = (*names_in(grid.requirements), *([CODE] if grid.has_code else []))
        members: dict[tuple[str, ...], list[Point]] = defaultdict(list)
        for point in grid.points:
            members[tuple(point.parameters[name] for name in names)].append(point)
        return cls(
            names,
            {key: _variant(outputs, experiment, grid, points) for key, points in members.items()},
        )

    def at(self, point: Point) -> Variant:
        return self.by_values[tuple(point.parameters[name] for name in self.names)]

    @property
    def only(self) -> Variant | None:
        """The variant of all points, None if there are several."""
        return next(iter(self)) if len(self.by_values) == 1 else None

    def __iter__(self) -> Iterator[Variant]:
        return iter(self.by_values.values())

    @property
    def missing(self) -> str | None:
        """What is not on this computer, a line each; None if nothing is missing."""
        return "\n".join(dict.fromkeys(line for each in self for line in each.missing)) or None

    def source_params(self, group: RunGroup) -> dict[str, Verbatim]:
        """The files of the code, as params of the rule for a group."""
        found = {}
        for key in dict.fromkeys(key for each in self for key in each.sources):
            texts = {each.sources.get(key, "") for each in self}
            found[key] = verbatim(texts.pop()) if len(texts) == 1 else self._text(group, key)
        return found

    def _text(self, group: RunGroup, key: str) -> Verbatim:
        return lambda wildcards: self.at(group.point(wildcards)).sources.get(key, "")


def _variant(
    outputs: Outputs, experiment: Experiment, grid: Grid, points: Sequence[Point]
) -> Variant:
    code = points[0].parameters[CODE] if grid.has_code else WORKING_TREE
    freeze = outputs.freeze.at(code)
    required = requirements_at(grid.requirements, points[0].parameters)
    recipes = freeze.recipes(required, f"{experiment.file}: batch {grid.batch}")
    words = [
        at.recipe
        for each, at in zip(grid.requirements, required, strict=True)
        if at.recipe != each.recipe
    ]
    is_here = code == WORKING_TREE
    chosen = _Chosen(
        tuple(points), "" if is_here else code, tuple(words if is_here else [code, *words])
    )
    without = [freeze.without_code.get(code), *(freeze.without_source.get(str(r)) for r in recipes)]
    return Variant(
        freeze=freeze,
        recipes=recipes,
        installs=tuple(map(outputs.manifest, recipes)),
        build=_build_rule(outputs, experiment, grid, freeze, recipes, chosen),
        sources=_source_params(freeze, experiment),
        missing=tuple(filter(None, without)),
    )


def _build_rule(
    outputs: Outputs,
    experiment: Experiment,
    grid: Grid,
    freeze: Freeze,
    recipes: Sequence[Recipe],
    chosen: _Chosen,
) -> BuildRule:
    # What a build requests does not make it another build.
    is_own = grid.build.determining != experiment.build.determining
    shared = not is_own and _has_no_more_recipes(freeze, experiment, grid)
    name, owner = _named("build", experiment, grid, shared)
    sources = [(entry.path, entry.object, entry.mode) for entry in source_files(freeze, experiment)]
    key = digest_of(
        {
            "sources": sources,
            "script": grid.build.script,
            "strict": grid.build.strict,
            **{key: json.dumps(value) for key, value in grid.build.isolated.items()},
            "installs": list(map(outputs.key, recipes)),
            "load_environment": freeze.machine.load_env_on_machine,
        }
    )
    own = "" if shared else grid.batch
    values = _values_of(chosen.points, grid.build.depend_params)
    output = _output(outputs.place("builds", name, key), grid.build, "build.json")
    words = "".join(f"_{identifier(word)}" for word in chosen.words)
    return BuildRule(
        name=outputs.take_for(output, f"{name}{words}", f"the build of {owner}", key),
        experiment=experiment,
        batch=own,
        phase=grid.build,
        output=output,
        constraints=_constraints(grid.build),
        installs=tuple(map(outputs.manifest, recipes)),
        values=values,
        requests={key: experiment.build_request(own, given) for key, given in values.items()},
        code=chosen.code,
    )


def prepare_rule(outputs: Outputs, experiment: Experiment, grid: Grid, step: Step) -> BuildRule:
    """The rule of a `prepare` script. It has the recipes that all points share, and the code of the
    working tree."""
    freeze = outputs.freeze
    common = requirements_at(fixed(grid.requirements), {})
    recipes = freeze.recipes(common, f"{experiment.file}: batch {grid.batch}")
    shared = step == experiment.prepare and _has_no_more_recipes(freeze, experiment, grid)
    name, owner = _named("prepare", experiment, grid, shared)
    key = digest_of(
        {
            "prepare": code_digest(freeze, experiment, step),
            "installs": list(map(outputs.key, recipes)),
            "load_environment": freeze.machine.load_env_on_machine,
        }
    )
    return BuildRule(
        name=outputs.take(name, f"the prepare script of {owner}"),
        experiment=experiment,
        batch="" if shared else grid.batch,
        phase=step,
        output=_output(outputs.place("prepared", name, key), step, "prepared.json"),
        constraints=_constraints(step),
        installs=tuple(map(outputs.manifest, recipes)),
        values=_values_of(grid.points, step.depend_params),
    )


def _has_no_more_recipes(freeze: Freeze, experiment: Experiment, grid: Grid) -> bool:
    return grid.requirements == experiment.requirements_on(freeze.machine_name)


def _named(kind: str, experiment: Experiment, grid: Grid, shared: bool) -> tuple[str, str]:
    """The name of a rule that batches may share, and whose it is."""
    label = f"{kind}_{identifier(experiment.name)}"
    if shared:
        return label, experiment.file
    return f"{label}_{identifier(grid.batch)}", f"batch {grid.batch} of {experiment.file}"


def _output(directory: str, phase: Phase | Step, name: str) -> str:
    parts = [f"{p}~{{{wildcard_name(p)}}}" for p in phase.depend_params]
    return "/".join([directory, *parts, name])


def _constraints(phase: Phase | Step) -> dict[str, str]:
    # Batches share a rule, each with values of its own: any value is allowed that does not contain
    # a directory separator.
    return {wildcard_name(p): "[^/]+" for p in phase.depend_params}


def _values_of(
    points: Iterable[Point], parameters: Sequence[str]
) -> dict[tuple[str, ...], Mapping[str, str]]:
    """The values that some parameters have together, by their texts in file names."""
    return {
        tuple(component_of(point.parameters, name) for name in parameters): {
            name: point.parameters[name] for name in parameters if name in point.parameters
        }
        for point in points
    }


def _source_params(freeze: Freeze, experiment: Experiment) -> dict[str, str]:
    """The files of an experiment's code as params: when they change, Snakemake shows the params
    that differ, and so the names of the files.

    Each run has them, and Snakemake compares each: so several files share one where there are many,
    and very many share one digest.
    """
    texts: dict[int, list[str]] = defaultdict(list)
    files = source_files(freeze, experiment)
    for index, entry in enumerate(files):
        if len(files) > _MOST_SOURCE_PARAMS:
            index = int(digest_of(entry.path), 16) % _MOST_SOURCE_PARAMS
        texts[index].append(f"{entry.path} ({entry.object[:12]}, {entry.mode})")
    if len(files) > _MOST_NAMED_SOURCES:
        texts = {0: [f"{len(files)} source files ({digest_of(list(texts.values()))})"]}
    return {f"source_{index}": ", ".join(texts[index]) for index in sorted(texts)}
