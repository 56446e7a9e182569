"""Experiments and their batches, as data, and the grids and points made from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from snakemake_kochi.errors import ConfigError, NameNotFoundError, nearest
from snakemake_kochi.project.destinations import Destinations
from snakemake_kochi.project.grid import (
    Batch,
    Grid,
    ParameterValues,
    Phase,
    Point,
    PointTexts,
    cores_of,
    machines_named,
    make_points,
    point_problems,
    resolve_all,
    select,
    varying_parameters,
)
from snakemake_kochi.project.problems import MAXIMUM_LINES, KeyPath, Problems, SourceMap
from snakemake_kochi.project.recipes import Requirement, override
from snakemake_kochi.project.recording import NOTHING_MORE, Recording
from snakemake_kochi.project.repetition import recorded_points
from snakemake_kochi.project.templates import Literal, Template, TemplateError, Value, parse_value
from snakemake_kochi.project.values import SUBSTITUTED, name_problem, value_problem


@dataclass(frozen=True)
class Experiment:
    """A benchmark: how to build and run it and with which parameters.

    `file` is its path relative to the project, `name` the file's stem as an identifier. `sources`
    are globs of its code, None for the default. Default parameters are unresolved; of their values,
    one per entry, the last entry that matches a machine counts. `remarks` are lines about what is
    probably not intended.
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
    metrics: Mapping[str, str]
    requirements: tuple[Requirement, ...]
    source_map: SourceMap = field(repr=False, compare=False)
    remarks: tuple[str, ...] = field(default=(), compare=False)
    recording: Recording = NOTHING_MORE

    def parameters_of(self, batch: Batch) -> tuple[str, ...]:
        """The names of all parameters of a batch's points."""
        own = batch.parameters
        return (*(name for name in self.default_parameters if name not in own), *own)

    @property
    def mentioned_machines(self) -> set[str]:
        """The machines for which a parameter has values of its own."""
        own = (batch.parameters for batch in self.batches.values())
        return set().union(*map(machines_named, (self.default_parameters, *own)))

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
        points = self.points(batch, machine, destinations, problems)
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
            below=batch.below,
        )

    def points(
        self, batch: Batch, machine: str, destinations: Destinations, problems: Problems
    ) -> tuple[Point, ...]:
        """The points of a batch on a machine; notes their problems and their files. They are
        incomplete if something is wrong."""
        if batch.recorded is None:
            columns = self._columns(batch, machine, problems)
            place = {name: self._place(batch, name) for name in columns}
            points = make_points(batch, columns, place, problems)
        else:
            points = recorded_points(self.file, batch, self.parameters_of(batch))
        destinations.add(self.name, self.file, batch, points, problems, self.unused(batch))
        return points

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
        problems = Problems(self.source_map)
        place: dict[str, KeyPath] = {
            name: ("default_params", name) for name in (*self.default_parameters, *overrides)
        }
        defaults = {n: c for n, c in self.default_parameters.items() if n not in overrides}
        columns = _choose(defaults, place, machine, problems)
        problems.raise_all()
        # in the order of the file
        given = {name: (Literal(text),) for name, text in overrides.items()}
        columns = {name: given.get(name) or columns[name] for name in place}
        self._check_complete(columns)
        if not (self.run.script.strip() or self.build.script.strip()):
            raise self.source_map.error(("run",), "a key 'script' was expected")
        (parameters,) = resolve_all(columns, place, problems)
        problems.raise_all()
        texts = PointTexts.parse(self.default_name, self.default_queue, ())
        point = texts.point(parameters, "", 0, {})
        if self.run.cores:
            try:
                cores = cores_of(parse_value(self.run.cores), parameters)
            except TemplateError as error:
                raise self.source_map.error(("run", "cores"), str(error)) from error
            point = replace(point, cores=cores)
        for key, wrong in point_problems(point):
            problems.add((f"default_{key}",), wrong)
        problems.raise_all()
        return point

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
                yield from (name for text in choice.values for name in parse_value(text).names)

    def _named(self, batch: Batch | None) -> Iterator[str]:
        """The parameters among these that no value uses for another one."""
        phases = (batch.build, batch.run) if batch else (self.build, self.run)
        texts = [batch.job_name, batch.queue] if batch else [self.default_name, self.default_queue]
        for artifact in batch.artifacts if batch else ():
            texts += [artifact.dest, artifact.src]
        for phase in phases:
            yield from phase.depend_params
            yield from parse_value(phase.cores).names
        for text in texts:
            yield from Template.parse(text or "").names

    def _check_complete(self, columns: Mapping[str, tuple[Value, ...]]) -> None:
        referred = (name for (value,) in columns.values() for name in value.names)
        for name in (*self._named(None), *referred):
            if name not in columns and name not in SUBSTITUTED:
                raise ConfigError(
                    f"{self.file}: the parameter '{name}' has no value outside of the batches",
                    f"Give it one: {name}=VALUE, or add it to default_params.",
                )

    def _place(self, batch: Batch, name: str) -> KeyPath:
        if name in batch.parameters:
            return ("batches", batch.name, "params", name)
        return ("default_params", name)

    def _columns(
        self, batch: Batch, machine: str, problems: Problems
    ) -> dict[str, tuple[Value, ...]]:
        """The values of every parameter: the defaults that are not overridden, then the batch's. A
        parameter without a value on the machine is noted and left out."""
        own = batch.parameters
        parameters = {n: c for n, c in self.default_parameters.items() if n not in own}
        parameters |= own
        place = {name: self._place(batch, name) for name in parameters}
        return _choose(parameters, place, machine, problems)


def _choose(
    parameters: Mapping[str, Iterable[ParameterValues]],
    place: Mapping[str, KeyPath],
    machine: str,
    problems: Problems,
) -> dict[str, tuple[Value, ...]]:
    """The values of parameters on a machine. A parameter without any is noted and left out."""
    columns: dict[str, tuple[Value, ...]] = {}
    for name, choices in parameters.items():
        choice = select(choices, machine)
        if problems.is_unknown(place[name]):
            continue
        if choice is None:
            problems.add(
                place[name],
                f"'{name}' has no value on machine '{machine}', only on "
                f"{', '.join(sorted(machines_named({name: choices})))}; "
                "add an entry without 'machines'",
            )
            continue
        columns[name] = tuple(map(parse_value, choice.values))
    return columns
