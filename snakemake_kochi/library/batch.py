"""The rules of one batch: build, run, collect and its target."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import ConfigError, for_snakemake
from snakemake_kochi.library.outputs import Made, Outputs, batch_rule, collected, run_rule
from snakemake_kochi.library.requested import (
    Resource,
    Verbatim,
    limits_of_phase,
    rule_resources,
    rule_threads,
    verbatim,
)
from snakemake_kochi.library.run_group import RunGroup, files_of, run_groups
from snakemake_kochi.library.variants import BuildRule, Variants, prepare_rule
from snakemake_kochi.paths import WorkingPaths
from snakemake_kochi.phases.launcher import NO_PLACEMENT, Placement, placement_of
from snakemake_kochi.phases.products import digest_of
from snakemake_kochi.phases.run import run_identity
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.grid import Grid, Point
from snakemake_kochi.project.launchers import Launchers, chosen
from snakemake_kochi.project.plots import stems
from snakemake_kochi.project.requests import TASKS_AND_CORES


@dataclass(frozen=True)
class BatchFiles:
    """The files of a batch, relative to the working directory.

    `figures`: of each plot, the PNG and the SVG.
    """

    grid: Grid
    groups: tuple[RunGroup, ...]
    table: str
    markdown: str
    figures: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, experiment: str, grid: Grid) -> BatchFiles:
        """The files of a batch of an experiment, by name."""
        working = WorkingPaths(Path(), grid.machine)
        results = str(working.results)
        stem = collected(grid.machine, experiment, grid.batch)
        return cls(
            grid=grid,
            groups=run_groups(grid, results, f"{working.records}/{experiment}/{grid.batch}"),
            table=f"{stem}.csv",
            markdown=f"{stem}.md",
            figures=tuple(
                (f"{results}/{experiment}/{each}.png", f"{results}/{experiment}/{each}.svg")
                for each in stems(grid.batch, grid.plots)
            ),
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
    def by_record(self) -> list[tuple[str, ...]]:
        """The artifacts of each run, in the order of `records`."""
        own = [files_of(self.groups, index) for index in range(len(self.grid.artifacts))]
        return list(zip(*own, strict=True)) if own else [()] * len(self.records)

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
    variants: Variants
    load_environment: str
    launchers: Launchers
    _determined_by: Mapping[str, Verbatim]
    prepare: BuildRule | None = None
    seed: int | None = None

    @classmethod
    def of(cls, outputs: Outputs, experiment: Experiment, batch: str) -> BatchRules:
        freeze = outputs.freeze
        grid = experiment.grid(batch, freeze.machine_name)
        label = batch_rule(experiment.name, batch)
        files = BatchFiles.of(experiment.name, grid)
        rules = cls(
            name=outputs.take(label, f"batch {batch} of {experiment.file}"),
            experiment=experiment,
            grid=grid,
            files=files,
            variants=Variants.of(outputs, experiment, grid),
            load_environment=freeze.machine.load_env_on_machine,
            launchers=freeze.machine.launchers,
            _determined_by={
                "script": verbatim(grid.run.script),
                "strict": verbatim(grid.run.strict),
                **{key: verbatim(json.dumps(v)) for key, v in grid.run.isolated.items()},
                "artifacts": verbatim([artifact.type for artifact in grid.artifacts]),
                "load_environment": verbatim(freeze.machine.load_env_on_machine),
            },
            prepare=(
                prepare_rule(outputs, experiment, grid, grid.prepare) if grid.prepare else None
            ),
            seed=freeze.seed(experiment.batch(batch)),
        )
        if grid.run.launcher:
            for point in grid.points:
                rules.placement(point)
        for name in (f"collect_{label}", *map(rules.run_name, range(len(files.groups)))):
            outputs.take(name, f"batch {batch} of {experiment.file}")
        return rules

    def build_file(self, point: Point) -> str:
        """The file that says which build a point uses."""
        return self.variants.at(point).build.file(point)

    def determined_by(self, group: RunGroup) -> dict[str, Verbatim]:
        """What determines the runs of a group, beside their parameters, as params of its rule."""
        # For people only: the name of a build contains it.
        return {**self._determined_by, **self.variants.source_params(group)}

    def run_name(self, index: int) -> str:
        """The name of the rule for one of the groups."""
        return run_rule(self.name, index)

    def words(self, group: RunGroup) -> Callable[..., list[str]]:
        """A function for `params:`: all parameters of a point as `name=value`, and options of the
        phase: in a rerun the record that is repeated, the file that says what was prepared, and
        what the job may use.

        Not words of their own in the rule: a changed rule would make all finished work stale. And
        what the run does not see makes nothing stale: Snakemake does not compare params whose
        function has the argument `output`.
        """
        names = frozenset(n for each in group.points.values() for n in each.request.of_rule)

        def words(
            wildcards: Mapping[str, str], input: Any, output: Any, resources: Any
        ) -> list[str]:
            point = group.point(wildcards)
            limits = limits_of_phase(point.request, resources) if names else []
            return [*self._assignments(point, input.prepared), *limits]

        found: Any = words
        # For the executor (`executor/internals.py`): what the function reads, how to name a point
        # to people, and a key that points with the same request share (they share a request).
        found.reads_resources = names
        found.describe = lambda wildcards: self.describe(group.point(wildcards))
        found.run_of = (self, group)  # for `run_order.py`
        found.kind = lambda w: (id(group.point(w).request), group.point(w).queue)
        return words

    def describe(self, point: Point) -> str:
        """A point for people, without its duplicates, which are alike."""
        grid = self.grid
        names = [name for name in grid.varying if name in point.parameters] or point.parameters
        shown = ", ".join(f"{name}={point.parameters[name]}" for name in names)
        return f"{self.experiment.file}: batch {grid.batch}{', ' if shown else ''}{shown}"

    def _assignments(self, point: Point, prepared: Sequence[str]) -> list[str]:
        words = [f"{name}={value}" for name, value in point.parameters.items()]
        words += [f"--rerun-of={point.rerun_of}"] if point.rerun_of else []
        words += [f"--prepared={file}" for file in prepared]
        if not self._is_placed:
            return words
        if launcher := self._chosen(point):
            words.append(f"--launcher={launcher}")
        if point.request.cores is not None and "cpus_per_task" not in point.request.of_rule:
            words.append(f"--resource=cpus_per_task={point.request.cores}")
        return words

    @property
    def _is_placed(self) -> bool:
        """Whether the runs have a launcher."""
        return bool(self.grid.run.launcher or self.launchers.default)

    def _chosen(self, point: Point) -> str:
        facts = self.experiment.facts_of(self.grid.machine).values
        return chosen(self.grid.run, {**facts, **point.parameters})

    def placement(self, point: Point) -> Placement:
        """How a point starts its tasks. Raises ConfigError, naming the experiment."""
        if not self._is_placed:
            return NO_PLACEMENT
        try:
            return placement_of(
                self._chosen(point), self.launchers, self.grid.machine, point.request.of_rule
            )
        except ConfigError as error:
            raise ConfigError(f"{self.experiment.file}: {error.message}", error.hint) from None

    def seen_by_run(self, point: Point) -> list[str]:
        """The parameters that a run sees: a change makes it stale."""
        variables = [f"{name}={value}" for name, value in point.environment(self.grid.run).items()]
        variables.append(self.build_file(point))
        variables += self.placement(point).determines
        variables += [artifact.src for artifact in point.artifacts if artifact.src]
        if prepared := self.prepared_for(point):
            variables.append(f"prepared={prepared}")
        return variables

    def prepared_for(self, point: Point) -> str | None:
        """The file that says what was prepared for a run, if something was. Its name contains what
        determines that."""
        return self.prepare.file(point) if self.prepare else None

    def identity(self, point: Point) -> str:
        """A digest of what determines the run of a point, as its record has it."""
        return run_identity(
            *(self.grid.run, self.load_environment, point, self.build_file(point)),
            *(self.prepared_for(point), self.placement(point).determines),
        )

    def agrees(self, record: Mapping[str, Any], made: Made, point: Point) -> bool:
        """Whether a run used the build, the installations and the preparation that are in use now.

        The names of builds do not contain a newer commit of a recipe's branch.
        """
        prepared = self.prepared_for(point)
        made_of = {each["dependency"]: each["digest"] for each in record["recipes"]}
        now = made.digests(self.build_file(point), self.variants.at(point).installs)
        is_prepared = prepared is None or made.digests(prepared, ()) == {
            "": recorded_preparation(record)
        }
        return is_prepared and made_of | {"": record["build"]} == now

    def resources(self, group: RunGroup) -> dict[str, Resource]:
        """What runs request, as resources of their rule."""
        requests = (point.request for point in group.points.values())
        found = rule_resources(requests, lambda wildcards: group.point(wildcards).request)
        if self.grid.run.spread == "nodes":
            found["kochi_spread"] = lambda wildcards: self._spread(group.point(wildcards))
        return found

    def _spread(self, point: Point) -> str:
        """What the duplicates of a point share."""
        return digest_of([self.experiment.file, self.grid.batch, dict(point.parameters)])

    def threads(self, group: RunGroup, least: int) -> Resource:
        """The cores that runs request, at least so many, as the threads of their rule."""
        requests = (point.request for point in group.points.values())
        return rule_threads(requests, lambda wildcards: group.point(wildcards).request, least)

    @property
    def requests_cores(self) -> bool:
        """Whether the runs say how many cores they use."""
        run = self.grid.run
        return bool(run.cores) or not run.resources.keys().isdisjoint(TASKS_AND_CORES)

    @property
    def records(self) -> list[str] | Callable[..., list[str]]:
        """What the table needs. If all points are skipped, it is an error to ask for it, and only
        then: other batches may have points on this machine."""
        if self.grid.points:
            return self.files.records

        @for_snakemake
        def nothing_to_run(wildcards: object) -> list[str]:
            check_not_empty(self.experiment, self.grid)
            return []

        return nothing_to_run

    @property
    def skipped(self) -> dict[str, Verbatim]:
        """Params of the table's rule. Without skipped points, they stay as they were."""
        found = self.grid.skipped_by_reason
        return {"skipped": verbatim(repr(found))} if found else {}

    @property
    def names_queue(self) -> bool:
        """Whether any of the points goes to a queue of its own."""
        return any(point.queue for point in self.grid.points)


def check_not_empty(experiment: Experiment, grid: Grid) -> None:
    """Raise ConfigError if all points of a batch are skipped."""
    if grid.skipped and not grid.points:
        raise experiment.source_map.error(
            ("batches", grid.batch),
            f"all {len(grid.skipped)} points are skipped on machine '{grid.machine}', the first "
            f"because {grid.skipped[0].reason}; change 'when', 'skip_if' or the values",
        )


def recorded_preparation(record: Mapping[str, Any]) -> str | None:
    """The digest of what was prepared for the batch of a record, if something was."""
    made = (record.get("preparation") or {}).get("prepare")
    return made["digest"] if made else None
