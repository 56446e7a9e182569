"""The rules of one batch: build, run, collect and its target."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from snakemake_kochi.artifacts.record import read_record
from snakemake_kochi.errors import DamagedFileError, NameNotFoundError, for_snakemake
from snakemake_kochi.files import is_there
from snakemake_kochi.library.outputs import (
    Directories,
    Kept,
    Outputs,
    batch_rule,
    identifier,
)
from snakemake_kochi.library.run_group import (
    RunGroup,
    files_of,
    run_groups,
    short_component,
    wildcard_name,
)
from snakemake_kochi.phases.build import source_files
from snakemake_kochi.phases.freeze import Freeze
from snakemake_kochi.phases.products import digest_of
from snakemake_kochi.phases.run import run_identity
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.grid import Grid, Phase, Point
from snakemake_kochi.project.recipes import Recipe

_MOST_SOURCE_PARAMS = 20
_MOST_NAMED_SOURCES = 100
# a value of `params:`, or a function of the wildcards that ignores them
Verbatim = Any


@dataclass(frozen=True)
class BuildRule:
    """One rule per build script: the parameters it depends on are its wildcards."""

    name: str
    experiment: Experiment
    batch: str
    phase: Phase
    output: str
    constraints: Mapping[str, str]
    installs: tuple[str, ...]
    values: Mapping[tuple[str, ...], tuple[str, ...]]

    def file(self, point: Point) -> str:
        """The output for the build of a point."""
        return self.output.format(
            **{
                wildcard_name(name): short_component(point.parameters[name])
                for name in self.phase.depend_params
            }
        )

    @for_snakemake
    def assignments(self, wildcards: Mapping[str, str]) -> list[str]:
        """The parameters of a build as `name=value`."""
        key = tuple(wildcards[wildcard_name(name)] for name in self.phase.depend_params)
        if key not in self.values:
            raise NameNotFoundError(f"no batch needs the build with {', '.join(key)}")
        return [
            f"{name}={value}"
            for name, value in zip(self.phase.depend_params, self.values[key], strict=True)
        ]

    def serving(self, other: BuildRule) -> BuildRule:
        """This rule, also for the points of another batch that shares it."""
        return replace(self, values={**self.values, **other.values})


@dataclass(frozen=True)
class BatchFiles:
    """The files of a batch, relative to the working directory."""

    grid: Grid
    groups: tuple[RunGroup, ...]
    table: str
    markdown: str
    plot: str

    @classmethod
    def of(cls, experiment: str, grid: Grid) -> BatchFiles:
        """The files of a batch of an experiment, by name."""
        directories = Directories(grid.machine)
        stem = directories.collected(experiment, grid.batch)
        return cls(
            grid=grid,
            groups=run_groups(
                grid, directories.results, directories.records(experiment, grid.batch)
            ),
            table=f"{stem}.csv",
            markdown=f"{stem}.md",
            plot=f"{stem}.png",
        )

    @property
    def points(self) -> list[Point]:
        """In the order of `records`."""
        return [point for group in self.groups for point in group.points.values()]

    @property
    def records(self) -> list[str]:
        return files_of(self.groups, None)

    @property
    def artifacts(self) -> list[str]:
        return [
            file
            for index in range(len(self.grid.artifacts))
            for file in files_of(self.groups, index)
        ]

    @property
    def captured(self) -> list[str]:
        """The files with the standard output of the runs, in the order of `records`, or none."""
        for index, artifact in enumerate(self.grid.artifacts):
            if artifact.type == "stdout":
                return files_of(self.groups, index)
        return []


@dataclass(frozen=True)
class BatchRules:
    """The parts of the rules of one batch."""

    name: str
    experiment: Experiment
    grid: Grid
    files: BatchFiles
    build: BuildRule
    installs: tuple[str, ...]
    load_environment: str
    without_source: str | None
    determined_by: Mapping[str, Verbatim]

    @classmethod
    def of(cls, outputs: Outputs, experiment: Experiment, batch: str) -> BatchRules:
        freeze = outputs.freeze
        grid = experiment.grid(batch, freeze.machine_name)
        recipes = freeze.recipes(grid.requirements, f"{experiment.file}: batch {batch}")
        label = batch_rule(experiment.name, batch)
        files = BatchFiles.of(experiment.name, grid)
        rules = cls(
            name=outputs.take(label, f"batch {batch} of {experiment.file}"),
            experiment=experiment,
            grid=grid,
            files=files,
            build=_build_rule(outputs, experiment, grid, recipes),
            installs=tuple(map(outputs.manifest, recipes)),
            load_environment=freeze.machine.load_env_on_machine,
            without_source=next(
                filter(None, (freeze.without_source.get(str(recipe)) for recipe in recipes)), None
            ),
            determined_by={
                "script": verbatim(grid.run.script),
                "strict": verbatim(grid.run.strict),
                "artifacts": verbatim([artifact.type for artifact in grid.artifacts]),
                "load_environment": verbatim(freeze.machine.load_env_on_machine),
                # For people only: the name of a build contains it.
                **_source_params(freeze, experiment),
            },
        )
        for name in (f"collect_{label}", *map(rules.run_name, range(len(files.groups)))):
            outputs.take(name, f"batch {batch} of {experiment.file}")
        return rules

    def run_name(self, index: int) -> str:
        """The name of the rule for one of the groups."""
        return f"run_{self.name}" if index == 0 else f"run_{self.name}_{index + 1}"

    def assignments(self, point: Point) -> list[str]:
        """All parameters of a point as `name=value`, and in a rerun the record that it repeats."""
        words = [f"{name}={value}" for name, value in point.parameters.items()]
        # Not a word of its own in the rule: a changed rule would make all finished work stale.
        return [*words, f"--rerun-of={point.rerun_of}"] if point.rerun_of else words

    def seen_by_run(self, point: Point) -> list[str]:
        """The parameters that a run sees: a change makes it stale."""
        variables = [f"{name}={value}" for name, value in point.environment(self.grid.run).items()]
        variables.append(self.build.file(point))
        return variables + [artifact.src for artifact in point.artifacts if artifact.src]

    def is_finished(self, kept: Kept, group: RunGroup, wildcards: Mapping[str, str]) -> bool:
        """Whether the results of a point exist and are those that would be made now."""
        try:
            record = read_record(Path(group.record.format(**wildcards)))
        except (FileNotFoundError, DamagedFileError):
            return False
        point = group.point(wildcards)
        build = self.build.file(point)
        made_of = {each["dependency"]: each["digest"] for each in record["recipes"]}
        files = (pattern.format(**wildcards) for pattern in group.artifacts)
        return (
            record.get("run") == run_identity(self.grid.run, self.load_environment, point, build)
            # The names of builds do not contain a newer commit of a recipe's branch.
            and made_of | {"": record["build"]} == kept.made(build, self.installs)
            and all(map(is_there, files))
        )

    @property
    def names_queue(self) -> bool:
        """Whether any of the points goes to a queue of its own."""
        return any(point.queue for point in self.grid.points)


def _build_rule(
    outputs: Outputs, experiment: Experiment, grid: Grid, recipes: Sequence[Recipe]
) -> BuildRule:
    freeze = outputs.freeze
    shared = grid.build == experiment.build and grid.requirements == experiment.requirements_on(
        freeze.machine_name
    )
    label = identifier(experiment.name)
    name = f"build_{label}" if shared else f"build_{label}_{identifier(grid.batch)}"
    parameters = grid.build.depend_params
    parts = [f"{p}~{{{wildcard_name(p)}}}" for p in parameters]
    sources = [(entry.path, entry.object, entry.mode) for entry in source_files(freeze, experiment)]
    key = digest_of(
        {
            "sources": sources,
            "script": grid.build.script,
            "strict": grid.build.strict,
            "installs": list(map(outputs.key, recipes)),
            "load_environment": freeze.machine.load_env_on_machine,
        }
    )
    owner = experiment.file if shared else f"batch {grid.batch} of {experiment.file}"
    return BuildRule(
        name=outputs.take(name, f"the build of {owner}"),
        experiment=experiment,
        batch="" if shared else grid.batch,
        phase=grid.build,
        output="/".join([outputs.directories.builds(name, key), *parts, "build.json"]),
        # Batches share a build rule, each with values of its own: any value is allowed that does
        # not contain a directory separator.
        constraints={wildcard_name(p): "[^/]+" for p in parameters},
        installs=tuple(map(outputs.manifest, recipes)),
        values={
            tuple(short_component(value) for value in values): values
            for point in grid.points
            for values in (tuple(point.parameters[name] for name in parameters),)
        },
    )


def _source_params(freeze: Freeze, experiment: Experiment) -> dict[str, Verbatim]:
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
    return {f"source_{index}": verbatim(", ".join(texts[index])) for index in sorted(texts)}


def verbatim(value: Any) -> Verbatim:
    """A value for a rule's `params:` that Snakemake uses as it is: in plain text it would look for
    wildcards, and find the `${HOME}` of a script."""
    texts = value if isinstance(value, list) else [value]
    if all(isinstance(t, bool | int) or (isinstance(t, str) and "{" not in t) for t in texts):
        # Snakemake inspects the signature of a function again and again for each job: with the ten
        # functions of a run that took a fifth of the time of a large batch's DAG.
        return value
    return lambda wildcards: value
