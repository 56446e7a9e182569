"""The rules of one batch: build, run, collect and its target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.library.names import Directories, RuleNames, identifier
from snakemake_kochi.library.patterns import wildcard_name
from snakemake_kochi.library.run_group import RunGroup, files_of, run_groups
from snakemake_kochi.phases import Freeze
from snakemake_kochi.phases.build import sources_digest
from snakemake_kochi.project import (
    Experiment,
    Grid,
    Phase,
    Point,
    decode_component,
    encode_component,
)


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
    determined_by: Mapping[str, str]

    def file(self, point: Point) -> str:
        """The output for the build that a point needs."""
        return self.output.format(
            **{
                wildcard_name(name): encode_component(point.parameters[name])
                for name in self.phase.depend_params
            }
        )

    def assignments(self, wildcards: Mapping[str, str]) -> list[str]:
        """The parameters of a build as `name=value`."""
        return [
            f"{name}={decode_component(wildcards[wildcard_name(name)])}"
            for name in self.phase.depend_params
        ]


@dataclass(frozen=True)
class BatchRules:
    """What the rules of one batch are made of."""

    name: str
    experiment: Experiment
    grid: Grid
    groups: tuple[RunGroup, ...]
    build: BuildRule
    installs: tuple[str, ...]
    table: str
    markdown: str
    plot: str
    determined_by: Mapping[str, str]

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
        groups = run_groups(grid, directories.results, directories.records(experiment.name, batch))
        stem = f"{directories.results}/{experiment.name}/{batch}"
        rules = cls(
            name=names.take(label, f"batch {batch} of {experiment.file}"),
            experiment=experiment,
            grid=grid,
            groups=groups,
            build=_build_rule(freeze, directories, names, experiment, grid, installs),
            installs=installs,
            table=f"{stem}.csv",
            markdown=f"{stem}.md",
            plot=f"{stem}.png",
            determined_by={
                "script": grid.run.script,
                "strict": str(grid.run.strict),
                "artifacts": repr([(a.type, a.src) for a in grid.artifacts]),
                "load_environment": freeze.machine.load_env_on_machine,
            },
        )
        for prefix in ("run", "collect"):
            names.take(f"{prefix}_{label}", f"batch {batch} of {experiment.file}")
        rules.check_collected_files()
        return rules

    def run_name(self, index: int) -> str:
        """The name of the rule for one of the groups."""
        return f"run_{self.name}" if index == 0 else f"run_{self.name}_{index + 1}"

    def assignments(self, point: Point) -> list[str]:
        """All parameters of a point as `name=value`."""
        return [f"{name}={value}" for name, value in point.parameters.items()]

    def seen_by_script(self, point: Point) -> list[str]:
        """What a run's script gets to see of its parameters: a change makes the run stale."""
        return [f"{name}={value}" for name, value in point.environment(self.grid.run).items()]

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

    def check_collected_files(self) -> None:
        taken = {self.table, self.markdown, self.plot} & set(self.artifacts)
        if taken:
            raise ConfigError(
                f"{self.experiment.file}: batches.{self.grid.batch}: the artifact {min(taken)} has "
                "the name of the batch's own table or plot",
                "Give the artifact another dest.",
            )


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
            "sources": sources_digest(freeze, experiment),
            "script": grid.build.script,
            "strict": str(grid.build.strict),
            "load_environment": freeze.machine.load_env_on_machine,
        },
    )
