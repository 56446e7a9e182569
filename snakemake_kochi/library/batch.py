"""The rules of one batch: build, run, collect and its target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from snakemake_kochi.errors import NameNotFoundError, for_snakemake
from snakemake_kochi.library.names import (
    Directories,
    RuleNames,
    Verbatim,
    identifier,
    short_component,
    verbatim,
)
from snakemake_kochi.library.patterns import wildcard_name
from snakemake_kochi.library.run_group import RunGroup, files_of, run_groups
from snakemake_kochi.phases.build import source_files
from snakemake_kochi.phases.digest import digest_of
from snakemake_kochi.phases.freeze import Freeze
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.grid import Grid, Phase, Point

_MOST_SOURCE_PARAMS = 100


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
    determined_by: Mapping[str, Verbatim]
    values: Mapping[tuple[str, ...], tuple[str, ...]]

    def file(self, point: Point) -> str:
        """The output for the build that a point needs."""
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
        """This rule for the points of another batch that shares it, too."""
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
        """Of an experiment by name."""
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
        """The files that hold the runs' standard output, in the order of `records`, or none."""
        for index, artifact in enumerate(self.grid.artifacts):
            if artifact.type == "stdout":
                return files_of(self.groups, index)
        return []


@dataclass(frozen=True)
class BatchRules:
    """What the rules of one batch are made of."""

    name: str
    experiment: Experiment
    grid: Grid
    files: BatchFiles
    build: BuildRule
    installs: tuple[str, ...]
    determined_by: Mapping[str, Verbatim]

    @classmethod
    def of(
        cls,
        freeze: Freeze,
        directories: Directories,
        names: RuleNames,
        experiment: Experiment,
        batch: str,
    ) -> BatchRules:
        grid = experiment.grid(batch, freeze.machine_name)
        recipes = freeze.recipes(grid.requirements, f"{experiment.file}: batch {batch}")
        installs = tuple(directories.manifest(r.dependency, r.name) for r in recipes)
        label = f"{identifier(experiment.name)}_{identifier(batch)}"
        files = BatchFiles.of(experiment.name, grid)
        rules = cls(
            name=names.take(label, f"batch {batch} of {experiment.file}"),
            experiment=experiment,
            grid=grid,
            files=files,
            build=_build_rule(freeze, directories, names, experiment, grid, installs),
            installs=installs,
            determined_by={
                "script": verbatim(grid.run.script),
                "strict": verbatim(grid.run.strict),
                "artifacts": verbatim([artifact.type for artifact in grid.artifacts]),
                "load_environment": verbatim(freeze.machine.load_env_on_machine),
            },
        )
        for name in (f"collect_{label}", *map(rules.run_name, range(len(files.groups)))):
            names.take(name, f"batch {batch} of {experiment.file}")
        return rules

    def run_name(self, index: int) -> str:
        """The name of the rule for one of the groups."""
        return f"run_{self.name}" if index == 0 else f"run_{self.name}_{index + 1}"

    def assignments(self, point: Point) -> list[str]:
        """All parameters of a point as `name=value`."""
        return [f"{name}={value}" for name, value in point.parameters.items()]

    def seen_by_run(self, point: Point) -> list[str]:
        """What a run sees of its parameters: a change makes it stale."""
        variables = [f"{name}={value}" for name, value in point.environment(self.grid.run).items()]
        return variables + [artifact.src for artifact in point.artifacts if artifact.src]

    @property
    def names_queue(self) -> bool:
        """Whether any of the points goes to a queue of its own."""
        return any(point.queue for point in self.grid.points)


def _build_rule(
    freeze: Freeze,
    directories: Directories,
    names: RuleNames,
    experiment: Experiment,
    grid: Grid,
    installs: Sequence[str],
) -> BuildRule:
    shared = grid.build == experiment.build and grid.requirements == experiment.requirements_on(
        freeze.machine_name
    )
    label = identifier(experiment.name)
    name = f"build_{label}" if shared else f"build_{label}_{identifier(grid.batch)}"
    parameters = grid.build.depend_params
    parts = [f"{p}~{{{wildcard_name(p)}}}" for p in parameters]
    owner = experiment.file if shared else f"batch {grid.batch} of {experiment.file}"
    return BuildRule(
        name=names.take(name, f"the build of {owner}"),
        experiment=experiment,
        batch="" if shared else grid.batch,
        phase=grid.build,
        output="/".join([directories.builds(name), *parts, "build.json"]),
        # Batches share a build rule, each with values of its own: any value will do that does not
        # run into the next directory.
        constraints={wildcard_name(p): "[^/]+" for p in parameters},
        installs=tuple(installs),
        determined_by={
            **_source_params(freeze, experiment),
            "script": verbatim(grid.build.script),
            "strict": verbatim(grid.build.strict),
            "load_environment": verbatim(freeze.machine.load_env_on_machine),
        },
        values={
            tuple(short_component(value) for value in values): values
            for point in grid.points
            for values in (tuple(point.parameters[name] for name in parameters),)
        },
    )


def _source_params(freeze: Freeze, experiment: Experiment) -> dict[str, Verbatim]:
    """The files of an experiment's code, one param for each: when they changed, Snakemake shows
    the params that differ, and so the names of the files. Of many files, one digest."""
    files = source_files(freeze, experiment)
    texts = [f"{entry.path} ({entry.object[:12]}, {entry.mode})" for entry in files]
    if len(texts) > _MOST_SOURCE_PARAMS:
        texts = [f"{len(texts)} source files ({digest_of(texts)})"]
    return {f"source_{index}": verbatim(text) for index, text in enumerate(texts)}
