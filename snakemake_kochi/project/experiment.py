"""Experiments and their batches, as data, and the grids and points made from them."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields

from snakemake_kochi.errors import ConfigError, NameNotFoundError, nearest
from snakemake_kochi.project.destinations import Destinations
from snakemake_kochi.project.document import MAXIMUM_LINES, KeyPath, Problems, SourceMap
from snakemake_kochi.project.expansion import Expansion, make_points, recorded_points
from snakemake_kochi.project.expressions import is_fact, parse_text, parse_value
from snakemake_kochi.project.grid import (
    Batch,
    Grid,
    Phase,
    Point,
    Request,
    Settings,
    Skipped,
    request_of,
    varying_parameters,
)
from snakemake_kochi.project.plots import note_plot_problems
from snakemake_kochi.project.recipes import NOTHING_MORE, Recording, Requirement, names_in, override
from snakemake_kochi.project.sweeps import Given, Parameters, ParameterValues, Sweep, names_used
from snakemake_kochi.project.values import (
    BATCH_NAME,
    CODE,
    SUBSTITUTED,
    name_problem,
    value_problem,
)


@dataclass(frozen=True)
class Use:
    """Names of parameters that a text of a section of an experiment uses, at its key.

    `also` are other names that it may use, and so are facts of the machine if it `has_facts`. If it
    is `telling`, runs differ by these parameters: a destination and the name of a job have some,
    too, but change no result. Each point `needs` a value for them, or does without.
    """

    path: KeyPath
    names: tuple[str, ...]
    also: Collection[str] = ()
    has_facts: bool = False
    telling: bool = True
    needs: bool = False


def uses_of(experiment: Experiment, batch: Batch | None) -> Iterator[Use]:
    """What the texts of a batch use, or those outside of the batches; except values of
    parameters."""
    owner: Settings = batch or experiment
    path = owner.path

    def text(key: KeyPath, written: str | None, telling: bool = True, needs: bool = True) -> Use:
        names = parse_text(written or "").names
        return Use((*path, *key), names, SUBSTITUTED, telling=telling, needs=needs)

    yield text(("name",), owner.job_name, telling=False)
    yield text(("queue",), owner.queue)
    for index, artifact in enumerate(owner.artifacts):
        key: KeyPath = ("artifacts", index)
        yield text((*key, "dest"), artifact.dest, telling=False, needs=False)
        yield text((*key, "src"), artifact.src)
    for name, phase in (("build", owner.build), ("run", owner.run)):
        yield Use((*path, name, "depend_params"), phase.depend_params)
        for at, value in phase.requested.items():
            own = (*path, name, *at)
            yield Use(own, value.names, (BATCH_NAME,), has_facts=True, needs=True)
        yield Use((*path, name, "launcher"), parse_value(phase.launcher).names)
    if owner.prepare is not None:
        yield Use((*path, "prepare", "depend_params"), owner.prepare.depend_params)
    replaced = {each.dependency for each in owner.requirements if each.machines is None}
    for index, each in enumerate(experiment.requirements if batch else ()):
        if each.dependency not in replaced:
            yield Use(("depends", index), names_in([each]))
    for index, each in enumerate(owner.requirements):
        yield Use((*path, "depends", index), names_in([each]))
    if owner.has_code:
        yield Use((*path, CODE), (CODE,))
    for sweep in owner.sweeps:
        for place, entry in sweep.exclude:
            for name, texts in entry.items():
                used = (used for written in texts for used in parse_value(written).names)
                names = (name, *used)
                yield Use((*place, name), names, (BATCH_NAME,), has_facts=True, telling=False)
        for condition in sweep.conditions:
            names = (*condition.expression.names, *parse_value(condition.reason).names)
            yield Use(condition.place, names, (BATCH_NAME,), has_facts=True, telling=False)


@dataclass(frozen=True, kw_only=True)
class Experiment(Settings):
    """A benchmark: how to build and run it and with which parameters; what the file says outside of
    its batches is for all of them.

    `file` is its path relative to the project, `name` the file's stem as an identifier. `sources`
    are globs of its code, None for the default. Default parameters are unresolved; of their values,
    one per entry, the last entry that matches a machine counts. `remarks` are lines about what is
    probably not intended. `given`: what else determines the points, where it is known.
    """

    name: str
    file: str
    default_parameters: Parameters
    batches: Mapping[str, Batch]
    sources: tuple[str, ...] | None
    source_map: SourceMap = field(repr=False, compare=False)
    remarks: tuple[str, ...] = field(default=(), compare=False)
    recording: Recording = NOTHING_MORE
    given: Given | None = field(default=None, repr=False)

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
        problems.raise_all(MAXIMUM_LINES, batch.path)
        own = {each.name: getattr(batch, each.name) for each in fields(batch)}
        own["requirements"] = self.requirements_on(machine, batch.requirements)
        return Grid(
            **own,
            experiment=self.name,
            machine=machine,
            points=points,
            skipped=skipped,
            varying=varying_parameters(points),
        )

    def points(
        self, batch: Batch, machine: str, destinations: Destinations, problems: Problems
    ) -> tuple[tuple[Point, ...], tuple[Skipped, ...]]:
        """The points of a batch on a machine, and the combinations that it skips; notes their
        problems and their files. They are incomplete if something is wrong."""
        facts, skipped = self.facts_of(machine), tuple[Skipped, ...]()
        if batch.recorded is None:
            every = (self.default_parameters, facts, problems, batch.name, batch.sometimes)
            expansions = [Expansion(each, *every) for each in batch.sweeps]
            needed = [each for each in uses_of(self, batch) if each.needs]
            points, skipped = make_points(batch, expansions, needed, facts, problems)
            note_plot_problems(batch.plots, points, problems)
        else:
            names = self.parameters_of(batch)
            points = tuple(recorded_points(self.file, batch, names, facts))
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
            if wrong := name_problem(name) or value_problem(text):
                raise ConfigError(f"parameter '{name}': {wrong}")
        problems, facts = Problems(self.source_map), self.facts_of(machine)
        given = {name: (ParameterValues((t,), literal=True),) for name, t in overrides.items()}
        parameters = {**self.default_parameters, **given}  # in the order of the file
        sweep = Sweep(parameters, ())
        expansion = Expansion(sweep, {}, facts, problems)
        problems.raise_all()
        for name in (*self.used(None), *_all(names_used(parameters))):
            if name not in parameters and name not in SUBSTITUTED and not is_fact(name):
                raise ConfigError(
                    f"{self.file}: the parameter '{name}' has no value outside of the batches",
                    f"Give it one: {name}=VALUE, or add it to default_params.",
                )
        if not (self.run.script.strip() or self.build.script.strip()):
            raise self.source_map.error(("run",), "a key 'script' was expected")
        batch = Batch(name="", job_name=self.job_name, queue=self.queue, run=self.run)
        needed = [each for each in uses_of(self, None) if each.needs]
        points, _ = make_points(batch, [expansion], needed, facts, problems)
        problems.raise_all()
        return points[0]

    def build_request(self, batch: str, parameters: Mapping[str, str]) -> Request:
        """What a build requests. `parameters`: those on which it depends.

        `batch`: the batch that has a build of its own, else "": batches that only request something
        else for it share one build, which gets the most of each.
        """
        every = [each.build for each in self.batches.values()]
        shared = [each for each in every if each.determining == self.build.determining]
        phases: list[Phase] = [self.batch(batch).build] if batch else shared or [self.build]
        facts = self.facts_of(self.given.machine).values if self.given else {}
        values = {**facts, **parameters}
        found = [request_of(phase.requested, values)[0] for phase in dict.fromkeys(phases)]
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
        defaults = self.default_parameters
        known = dict.fromkeys((*defaults, *self.used(None), *_all(names_used(defaults))))
        for name in overrides:
            if name not in known:
                said = f"{self.file}: nothing uses the parameter '{name}', {nearest(name, known)}"
                yield said

    def used(self, batch: Batch | None) -> Iterator[str]:
        """The parameters that scripts and texts use: those of a batch, or those outside of the
        batches."""
        for use in uses_of(self, batch):
            # To leave out values of a parameter is no use of it.
            excluded = use.path[-1] if "exclude" in use.path else None
            yield from (name for name in use.names if name != excluded)


def _all(used: Mapping[str, Iterable[str]]) -> Iterator[str]:
    return (name for names in used.values() for name in names)
