"""The rules of one batch: its runs, its table and its target."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError

from snakemake_kochi.errors import ConfigError, for_snakemake
from snakemake_kochi.library.files import BatchFiles, RunGroup, batch_rule, run_rule
from snakemake_kochi.library.looks import Look, key_of
from snakemake_kochi.library.products import (
    BuildRule,
    Products,
    Value,
    Variants,
    rule_resources,
    shared,
    verbatim,
)
from snakemake_kochi.phases.freeze import Freeze
from snakemake_kochi.phases.launcher import NO_PLACEMENT, Placement, placement_of
from snakemake_kochi.phases.products import digest_of
from snakemake_kochi.phases.run import run_identity
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.expressions import parse_value
from snakemake_kochi.project.grid import TASKS_AND_CORES, Grid, Point, Request
from snakemake_kochi.schedulers.names import NUMBERS


@dataclass(frozen=True)
class BatchRules:
    """The parts of the rules of one batch. `seed`: see `Freeze.seed`."""

    name: str
    freeze: Freeze
    experiment: Experiment
    grid: Grid
    files: BatchFiles
    variants: Variants
    prepare: BuildRule | None
    seed: int | None

    @classmethod
    def of(cls, products: Products, experiment: Experiment, batch: str) -> BatchRules:
        freeze = products.freeze
        grid = experiment.grid(batch, freeze.machine_name)
        owner = f"batch {batch} of {experiment.file}"
        step = grid.prepare
        rules = cls(
            name=products.take(batch_rule(experiment.name, batch), owner),
            freeze=freeze,
            experiment=experiment,
            grid=grid,
            files=BatchFiles.of(experiment.name, grid),
            variants=Variants(products, experiment, grid),
            prepare=products.preparation(experiment, grid, step) if step else None,
            seed=freeze.seed(experiment.batch(batch)),
        )
        for point in grid.points if grid.run.launcher else ():
            rules.placement(point)
        others = [rules.look_name] if grid.repeat is not None else []
        others += [rules.check_name] if grid.references else []
        for name in (f"collect_{rules.name}", *others, *(run.name for run in rules.runs)):
            products.take(name, owner)
        return rules

    @cached_property
    def runs(self) -> tuple[RunRule, ...]:
        groups = enumerate(self.files.groups)
        return tuple(RunRule(run_rule(self.name, index), self, group) for index, group in groups)

    # ---- what determines a run

    def build_file(self, point: Point) -> str:
        """The file that says which build a point uses."""
        return self.variants.at(point).build.file(point)

    def prepared_for(self, point: Point) -> str | None:
        """The file that says what was prepared for a run, if something was."""
        return self.prepare.file(point) if self.prepare else None

    def placement(self, point: Point) -> Placement:
        """How a point starts its tasks. Raises ConfigError, naming the experiment."""
        if not self.is_placed:
            return NO_PLACEMENT
        launchers, requested = self.freeze.machine.launchers, point.request.of_rule
        try:
            return placement_of(self.launcher(point), launchers, self.grid.machine, requested)
        except ConfigError as error:
            raise ConfigError(f"{self.experiment.file}: {error.message}", error.hint) from None

    @cached_property
    def is_placed(self) -> bool:
        """Whether the runs have a launcher."""
        return bool(self.grid.run.launcher or self.freeze.machine.launchers.default)

    def launcher(self, point: Point) -> str:
        facts = self.experiment.facts_of(self.grid.machine).values
        return parse_value(self.grid.run.launcher).render({**facts, **point.parameters})

    def identity(self, point: Point) -> str:
        """A digest of what determines the run of a point, as its record has it."""
        return run_identity(
            *(self.grid.run, self.freeze.machine.load_env_on_machine, point),
            *(self.build_file(point), self.prepared_for(point), self.placement(point).determines),
        )

    # ---- how often each point runs, with `repeat`

    @property
    def look_name(self) -> str:
        """The name of the checkpoint of a batch with `repeat`."""
        return f"look_{self.name}"

    @property
    def check_name(self) -> str:
        """The name of the target that checks the results of a batch with `references`."""
        return f"{self.name}_check"

    @cached_property
    def identities(self) -> Mapping[object, str]:
        """That of the first run of each point, by `key_of`."""
        first = (point for point in self.grid.points if not point.duplicate)
        return {key_of(point): self.identity(point) for point in first}

    def files_now(self, directory: Path = Path()) -> BatchFiles:
        """The files after the looks that a working directory has, as far as these are of what would
        run now."""
        files = self.files.now(directory)
        if not files.looks:
            return files
        known = self.identities
        kept = (
            replace(look, points=[p for p in look.points if known.get(key_of(p)) == p.identity])
            for look in files.looks
        )
        return files.after(look for look in kept if look.points)

    def files_after(self, checkpoints: Any, number: int | None = None) -> BatchFiles:
        """The files after so many looks, or after the last one: for an input function. Snakemake
        calls it again when the look that is missing has been made."""
        looks: list[Look] = []
        look = getattr(checkpoints, self.look_name)
        while len(looks) != number and not (looks and looks[-1].is_last):
            looks.append(Look.read(Path(look.get(look=str(len(looks))).output[0])))
        return self.files.after(looks)

    @cached_property
    def started(self) -> frozenset[Path]:
        """Snakemake's notes of jobs that have started and not ended, by their names."""
        notes = Path(".snakemake/incomplete")
        return frozenset(note.relative_to(notes) for note in notes.rglob("*"))

    # ---- for people, and the rules of the table

    def describe(self, point: Point) -> str:
        """A point for people, without its duplicates, which are alike."""
        shown = self.grid.named(point.parameters)
        return f"{self.experiment.file}: batch {self.grid.batch}{', ' if shown else ''}{shown}"

    def input(self, checkpoints: Any, kind: str) -> list[str] | Callable[..., list[str]]:
        """What the table needs, `records`, `outputs` or `artifacts`, or a function. If all points
        are skipped, it is an error to ask for it, and only then: other batches may have points on
        this machine."""
        if self.grid.points and self.grid.repeat is None:
            found: list[str] = getattr(self.files, kind)
            return found

        @for_snakemake
        def files(wildcards: Any) -> list[str]:
            check_not_empty(self.experiment, self.grid)
            if not self.grid.points:
                return []
            number = int(wildcards.look) if hasattr(wildcards, "look") else None
            found: list[str] = getattr(self.files_after(checkpoints, number), kind)
            return found

        return files

    @property
    def shows(self) -> str:
        """A digest of what the table and the figures show, beside the results."""
        grid, names = self.grid, ("varying", "metrics", "quantities", "plots", "repeat")
        return digest_of([grid.skipped_by_reason, *(repr(getattr(grid, name)) for name in names)])


@dataclass(frozen=True)
class RunRule:
    """The rule of one group of runs. Its wildcards are those of the group."""

    name: str
    batch: BatchRules
    group: RunGroup

    @for_snakemake
    def build(self, wildcards: Mapping[str, str]) -> Any:
        """The file that says which build a run uses."""
        if missing := self.batch.variants.missing:
            # Not left to the install rule alone: Snakemake ignores an error of an input function
            # further down when a result exists, and then starts the run without input and deletes
            # the result.
            raise ConfigError(missing)
        return self._ancient(self.batch.build_file(self.group.point(wildcards)), wildcards)

    @property
    def prepared(self) -> Value:
        """The file that says what was prepared for a run, if something was."""
        if self.batch.prepare is None:
            return []
        file = self.batch.prepare.file
        return for_snakemake(lambda w: self._ancient([file(self.group.point(w))], w))

    @property
    def installs(self) -> Value:
        """The manifests of the installations that a run uses."""
        at, variants = self.batch.variants.at, list(self.batch.variants)
        if len(variants) == 1 and not self.batch.started:
            return _ancient(variants[0].installs)
        return for_snakemake(lambda w: self._ancient(at(self.group.point(w)).installs, w))

    def _ancient(self, files: str | Sequence[str], wildcards: Mapping[str, str]) -> Any:
        """A job that was killed has started in Snakemake's notes, and is repeated. If its file is
        there, and is ancient for the jobs after it, Snakemake forgets them, even if they have no
        output. For a run without a result it is not ancient then."""
        names = [files] if isinstance(files, str) else files
        if any(_note_of_start(name) in self.batch.started for name in names):
            values = {name: wildcards[name] for name in self.group.keys}
            if not Path(self.group.record.format(**values)).exists():
                return files
        return _ancient(files)

    def _shared(self, value_of: Callable[[Point], Any]) -> Value:
        """A value of each point, for a rule."""
        values = map(value_of, self.group.points.values())
        return shared(values, lambda wildcards: value_of(self.group.point(wildcards)))

    def threads(self, workflow: Any) -> Value:
        """The cores that a run requests, one by default.

        All cores for an exclusive run where Snakemake itself shares out cores (`--executor local
        --cores N`); a worker uses the resource `kochi_exclusive`.
        """
        least = 1
        # Without --cores, workers share out cores.
        with suppress(WorkflowError):
            if self.batch.grid.run.exclusive and isinstance(workflow.cores, int):
                least = workflow.cores
        return self._shared(lambda point: max(least, point.request.threads or least))

    @property
    def resources(self) -> dict[str, Value]:
        """What runs request. By default, a run has its worker to itself: another job beside it
        would disturb the measurement."""
        group, run, batch = self.group, self.batch.grid.run, self.batch
        requests = (point.request for point in group.points.values())
        requested = rule_resources(requests, lambda wildcards: group.point(wildcards).request)
        if run.spread == "nodes":
            of = [batch.experiment.file, batch.grid.batch]  # and what duplicates share
            requested["kochi_spread"] = lambda wildcards: digest_of(
                [*of, dict(group.point(wildcards).parameters)]
            )
        says_cores = bool(run.cores) or not run.resources.keys().isdisjoint(TASKS_AND_CORES)
        return {
            **requested,
            "kochi_exclusive": int(run.exclusive),
            # Without that, only the script knows how many threads it starts.
            "kochi_pinned": int(says_cores),
            "kochi_queue": self._shared(lambda point: point.queue or ""),
            "kochi_name": lambda wildcards: group.point(wildcards).name,
        }

    @property
    def params(self) -> dict[str, Value]:
        """What determines a run: one digest, as in its record; and the words of its command."""
        batch, group = self.batch, self.group
        return {
            "identity": lambda wildcards: batch.identity(group.point(wildcards)),
            "experiment": verbatim(batch.experiment.file),
            "batch": verbatim(batch.grid.batch),
            "duplicate": self._shared(lambda point: point.duplicate),
            "parameters": self._words(),
        }

    def _words(self) -> Callable[..., list[str]]:
        """A function for `params:`: all parameters of a point as `name=value`, and options of the
        phase: in a rerun the record that is repeated, the file that says what was prepared, and
        what the job may use.

        Not words of their own in the rule: a changed rule would make all finished work stale. And
        what the run does not see makes nothing stale: Snakemake does not compare params whose
        function has the argument `output`.
        """
        batch, group = self.batch, self.group
        names = frozenset(n for each in group.points.values() for n in each.request.of_rule)

        def words(
            wildcards: Mapping[str, str], input: Any, output: Any, resources: Any
        ) -> list[str]:
            point = group.point(wildcards)
            assigned = [f"{name}={value}" for name, value in point.parameters.items()]
            assigned += [f"--rerun-of={point.rerun_of}"] if point.rerun_of else []
            assigned += [f"--prepared={file}" for file in input.prepared]
            if batch.is_placed:
                launcher, cores = batch.launcher(point), point.request.cores
                assigned += [f"--launcher={launcher}"] if launcher else []
                if cores is not None and "cpus_per_task" not in point.request.of_rule:
                    assigned.append(f"--resource=cpus_per_task={cores}")
            return [*assigned, *(_limits(point.request, resources) if names else [])]

        # For the executor (`executor/internals.py`): what the function reads, how to name a point
        # to people, and a key that points with the same request share (they share a request).
        function: Any = words
        function.reads_resources = names
        function.describe = lambda wildcards: batch.describe(group.point(wildcards))
        function.kind = lambda w: (id(group.point(w).request), group.point(w).queue)
        function.run = self  # for `run_order.py`
        return words


def _limits(request: Request, resources: Any) -> list[str]:
    """What a job may use, as options of its phase.

    `resources`: those that Snakemake gives the job, which a profile or an option may have changed;
    a dry run has the text "<TBD>" for what is not known. A changed `runtime` replaces the timeout.
    """
    given = {name: resources.get(name) for name in request.of_rule if name in NUMBERS}
    given = {n: v for n, v in given.items() if isinstance(v, int) and not isinstance(v, bool)}
    words = [f"--resource={name}={value}" for name, value in given.items()]
    if request.timeout is not None:
        runtime = given.get("runtime", request.of_rule["runtime"])
        is_changed = runtime != request.of_rule["runtime"]
        words.append(f"--timeout={60 * runtime if is_changed else request.timeout}")
    return words


def check_not_empty(experiment: Experiment, grid: Grid) -> None:
    """Raise ConfigError if all points of a batch are skipped."""
    if grid.skipped and not grid.points:
        raise experiment.source_map.error(
            ("batches", grid.batch),
            f"all {len(grid.skipped)} points are skipped on machine '{grid.machine}', the first "
            f"because {grid.skipped[0].reason}; change 'when', 'skip_if' or the values",
        )


def _ancient(files: str | Sequence[str]) -> Any:
    """Names contain what determines builds and installations: only they count, and no age."""
    # Imported here: commands need names of files and no Snakemake.
    from snakemake.io import ancient

    return ancient(files if isinstance(files, str) else list(files))


def _note_of_start(file: str) -> Path:
    """The name of Snakemake's note that the job that writes a file has started. If a version has
    other names, nothing is found, and a line may have to be typed again: see `RunRule._ancient`."""
    key = urlsafe_b64encode(file.encode()).decode()
    parts = [key[at : at + 254] for at in range(0, len(key), 254)]
    return Path(*("@" + part for part in parts[:-1]), parts[-1])
