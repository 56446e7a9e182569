"""Experiments and their batches, as data, and the grids and points made from them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from snakemake_kochi.errors import ConfigError, NameNotFoundError, nearest
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.destinations import Destinations
from snakemake_kochi.project.expansion import Expansion, values_on
from snakemake_kochi.project.grid import (
    Batch,
    Grid,
    Phase,
    Point,
    Step,
    varying_parameters,
)
from snakemake_kochi.project.parameters import (
    Given,
    ParameterValues,
    Skipped,
    Sweep,
)
from snakemake_kochi.project.plots import Metric, Plot, Quantity, note_plot_problems
from snakemake_kochi.project.points import make_points, recorded_points
from snakemake_kochi.project.problems import MAXIMUM_LINES, Problems, SourceMap
from snakemake_kochi.project.recipes import NOTHING_MORE, Recording, Requirement, override
from snakemake_kochi.project.requests import Request, request_of, request_texts
from snakemake_kochi.project.requirements import names_in
from snakemake_kochi.project.templates import Template, Value, is_fact, parse_value
from snakemake_kochi.project.values import CODE, SUBSTITUTED, name_problem, value_problem


@dataclass(frozen=True)
class Experiment:
    """A benchmark: how to build and run it and with which parameters.

    `file` is its path relative to the project, `name` the file's stem as an identifier. `sources`
    are globs of its code, None for the default. Default parameters are unresolved; of their values,
    one per entry, the last entry that matches a machine counts. `remarks` are lines about what is
    probably not intended. `given`: what else determines the points, where it is known.
    """

    name: str
    file: str
    default_parameters: Mapping[str, tuple[ParameterValues, ...]]
    default_name: str
    default_queue: str | None
    default_duplicates: int
    build: Phase
    run: Phase
    batches: Mapping[str, Batch]
    sources: tuple[str, ...] | None
    metrics: Mapping[str, Metric]
    requirements: tuple[Requirement, ...]
    source_map: SourceMap = field(repr=False, compare=False)
    remarks: tuple[str, ...] = field(default=(), compare=False)
    recording: Recording = NOTHING_MORE
    given: Given | None = field(default=None, repr=False)
    quantities: Mapping[str, Quantity] = FrozenDict()
    plots: tuple[Plot, ...] = ()
    prepare: Step | None = None

    def parameters_of(self, batch: Batch) -> tuple[str, ...]:
        """The names of all parameters of a batch's points."""
        own = batch.parameters
        return (*(name for name in self.default_parameters if name not in own), *own)

    def batch(self, name: str) -> Batch:
        """Raises NameNotFoundError."""
        if name not in self.batches:
            raise NameNotFoundError(
                f"{self.file}: there is no batch '{name}', {nearest(name, self.batches)}"
            )
        return self.batches[name]

    def grid(self, batch_name: str, machine: str) -> Grid:
        """All points of a batch on a machine; a parameter's last entry for the machine counts.

        Raises NameNotFoundError for an unknown batch; ConfigError when a parameter has no value on
        the machine or none that can be computed, or when artifacts would overwrite each other: a
        line per problem, the first ones of many.
        """
        batch = self.batch(batch_name)
        problems = Problems(self.source_map)
        destinations = Destinations()
        points, skipped = self.points(batch, machine, destinations, problems)
        destinations.finish()
        problems.raise_all(MAXIMUM_LINES, ("batches", batch.name))
        return Grid(
            experiment=self.name,
            batch=batch.name,
            machine=machine,
            points=points,
            artifacts=batch.artifacts,
            requirements=override((*self.requirements, *batch.requirements), machine),
            build=batch.build,
            run=batch.run,
            varying=varying_parameters(points),
            metrics=batch.metrics,
            quantities=batch.quantities,
            plots=batch.plots,
            below=batch.below,
            skipped=skipped,
            prepare=batch.prepare,
            has_code=batch.has_code,
        )

    def points(
        self, batch: Batch, machine: str, destinations: Destinations, problems: Problems
    ) -> tuple[tuple[Point, ...], tuple[Skipped, ...]]:
        """The points of a batch on a machine, and the combinations that it skips; notes their
        problems and their files. They are incomplete if something is wrong."""
        skipped: tuple[Skipped, ...] = ()
        if batch.recorded is None:
            facts = self.facts_of(machine)
            every = (self.default_parameters, facts, problems, batch.name, batch.sometimes)
            expansions = [Expansion(each, *every) for each in batch.sweeps]
            points, skipped = make_points(batch, expansions, facts, problems)
            note_plot_problems(batch.plots, points, problems)
        else:
            names = self.parameters_of(batch)
            points = tuple(recorded_points(self.file, batch, names, self.facts_of(machine)))
        destinations.add(self, batch, points, problems)
        return points, skipped

    def facts_of(self, machine: str) -> Given:
        """What is given, with the facts if they are of that machine."""
        given = self.given or Given(machine)
        return given if given.machine == machine else Given(machine, tables=given.tables)

    def point(self, machine: str, overrides: Mapping[str, str]) -> Point:
        """The default parameters with some overridden or added, by texts in which nothing is
        substituted.

        No artifacts and no batch: `${batch_name}` in the default name is empty. Raises ConfigError
        when a used parameter has no value, or when a value is impossible.
        """
        for name, text in overrides.items():
            wrong = name_problem(name) or value_problem(text)
            if wrong:
                raise ConfigError(f"parameter '{name}': {wrong}")
        problems, facts = Problems(self.source_map), self.facts_of(machine)
        given = {name: (ParameterValues((t,), literal=True),) for name, t in overrides.items()}
        # in the order of the file
        parameters = {**self.default_parameters, **given}
        sweep = Sweep(parameters, (), {name: ("default_params", name) for name in parameters})
        expansion = Expansion(sweep, {}, facts, problems)
        problems.raise_all()
        self._check_complete(values_on(parameters, machine))
        if not (self.run.script.strip() or self.build.script.strip()):
            raise self.source_map.error(("run",), "a key 'script' was expected")
        batch = Batch(
            *("", self.default_name, self.default_queue, 1, {}, (), (), Phase((), ""), self.run, {})
        )
        points, _ = make_points(batch, [expansion], facts, problems)
        problems.raise_all()
        return points[0]

    def build_request(self, batch: str, parameters: Mapping[str, str]) -> Request:
        """What a build requests. `parameters`: those on which it depends.

        `batch`: the batch that has a build of its own, else "": batches that only request something
        else for it share one build, which gets the most of each.
        """
        phases = [each.build for each in self.batches.values()]
        shared = [each for each in phases if each.determining == self.build.determining]
        phases = [self.batch(batch).build] if batch else shared or [self.build]
        values = (
            {**self.facts_of(self.given.machine).values, **parameters} if self.given else parameters
        )
        found = [request_of(phase, values)[0] for phase in dict.fromkeys(phases)]
        return functools.reduce(Request.or_more, found)

    def requirements_on(
        self, machine: str, extra: Iterable[Requirement] = ()
    ) -> tuple[Requirement, ...]:
        """The requirements of the experiment on a machine; `extra` ones replace recipes of the same
        dependency."""
        return override((*self.requirements, *extra), machine)

    def without_effect(self, overrides: Iterable[str]) -> Iterator[str]:
        """A message about each of the names that `point` accepts although nothing in the file,
        except its batches, uses it."""
        known = dict.fromkeys((*self.default_parameters, *self._used(None)))
        for name in overrides:
            if name not in known:
                said = f"{self.file}: nothing uses the parameter '{name}', {nearest(name, known)}"
                yield said

    def unused(self, batch: Batch | None) -> dict[str, str]:
        """A message about each of a batch's own parameters, or of the defaults, that nothing
        uses."""
        if batch is None:
            own = self.default_parameters
            used = {name for each in (None, *self.batches.values()) for name in self._used(each)}
        else:
            own, used = batch.parameters, set(self._used(batch))
        others = {name for name in used if name not in SUBSTITUTED}
        told = {}
        for name in own:
            if name not in used:
                said = nearest(name, others)
                if not said.startswith("did you mean"):
                    said = "name it in the depend_params of run or build, or remove it"
                told[name] = f"nothing uses the parameter '{name}'; {said}"
        return told

    def _used(self, batch: Batch | None) -> Iterator[str]:
        """The parameters that scripts, texts and values use: those of a batch, or those outside of
        the batches."""
        yield from self._named(batch)
        parameters = {**self.default_parameters, **(batch.parameters if batch else {})}
        for choices in parameters.values():
            for choice in choices:
                yield from (name for value in choice.parsed() for name in value.names)

    def _named(self, batch: Batch | None) -> Iterator[str]:
        """The parameters among these that no value uses for another one."""
        yield from self.told(batch)
        texts = [batch.job_name if batch else self.default_name]
        texts += [artifact.dest for artifact in batch.artifacts] if batch else []
        for text in texts:
            yield from Template.parse(text).names
        for sweep in batch.sweeps if batch else ():
            for condition in sweep.conditions:
                yield from condition.expression.names
                yield from parse_value(condition.reason).names
            for _, entry in sweep.exclude:
                values = (parse_value(text) for own in entry.values() for text in own)
                yield from (name for value in values for name in value.names)

    def told(self, batch: Batch | None) -> Iterator[str]:
        """The parameters by which runs of a batch differ, or those outside of the batches, as the
        file says itself. A destination and the name of a job have some, too, but change no
        result."""
        owner = batch or self
        for phase in (owner.build, owner.run):
            yield from phase.depend_params
            for requested in (*request_texts(phase).values(), phase.launcher):
                yield from parse_value(requested).names
        yield from owner.prepare.depend_params if owner.prepare else ()
        yield from names_in((*self.requirements, *(batch.requirements if batch else ())))
        texts = [batch.queue if batch else self.default_queue]
        texts += [artifact.src for artifact in batch.artifacts] if batch else []
        for text in texts:
            yield from Template.parse(text or "").names
        if batch and batch.has_code:
            yield CODE

    def _check_complete(self, parameters: Mapping[str, Iterable[Value]]) -> None:
        referred = (name for values in parameters.values() for v in values for name in v.names)
        for name in (*self._named(None), *referred):
            if name not in parameters and name not in SUBSTITUTED and not is_fact(name):
                raise ConfigError(
                    f"{self.file}: the parameter '{name}' has no value outside of the batches",
                    f"Give it one: {name}=VALUE, or add it to default_params.",
                )
