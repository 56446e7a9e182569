"""Experiments and their batches, as data, and their points, no two of which write one file."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import NamedTuple

from snakemake_kochi.errors import ConfigError, NameNotFoundError, nearest
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.document import MAXIMUM_LINES, KeyPath, Problems, SourceMap
from snakemake_kochi.project.expressions import FACT, Template, is_fact, parse_text, parse_value
from snakemake_kochi.project.grid import (
    MAXIMUM_DUPLICATES,
    Artifact,
    Batch,
    Grid,
    Phase,
    Point,
    PointTexts,
    Recorded,
    Request,
    Settings,
    Skipped,
    request_of,
    varying_parameters,
)
from snakemake_kochi.project.plots import note_plot_problems, stems
from snakemake_kochi.project.recipes import NOTHING_MORE, Recording, Requirement, names_in, override
from snakemake_kochi.project.sweeps import (
    MAXIMUM_POINTS,
    Expansion,
    Given,
    Parameters,
    ParameterValues,
    Sweep,
    names_used,
    without_parameter,
)
from snakemake_kochi.project.values import (
    BATCH_NAME,
    CODE,
    SUBSTITUTED,
    dest_problem,
    name_problem,
    src_problem,
    value_problem,
)

_log = logging.getLogger(__name__)

# From here on, planning takes minutes and a gigabyte.
_MANY_POINTS = 100_000
_MOST_TOLD = 10**12


class Use(NamedTuple):
    """Names of parameters that a text of a section of an experiment uses, at its key.

    `also` are other names that it may use, FACT for those of facts. Each point `needs` a value for
    them, or does without.
    """

    path: KeyPath
    names: Sequence[str]
    also: Collection[str] = ()
    needs: bool = False


def uses_of(experiment: Experiment, batch: Batch | None) -> Iterator[Use]:
    """What the texts of a batch use, or those outside of the batches; except values of
    parameters."""
    owner: Settings = batch or experiment
    path, facts = owner.path, (BATCH_NAME, FACT)
    for key, phase in (("build", owner.build), ("run", owner.run)):
        yield Use((*path, key, "depend_params"), phase.depend_params)
        for at, value in phase.requested.items():
            yield Use((*path, key, *at), value.names, facts, True)
        yield Use((*path, key, "launcher"), parse_value(phase.launcher).names)
    if owner.prepare is not None:
        yield Use((*path, "prepare", "depend_params"), owner.prepare.depend_params)
    yield Use((*path, "queue"), parse_text(owner.queue or "").names, SUBSTITUTED, True)
    for index, artifact in enumerate(owner.artifacts):
        names = parse_text(artifact.src or "").names
        yield Use((*path, "artifacts", index, "src"), names, SUBSTITUTED, True)
    own = {each.dependency for each in owner.requirements if each.machines is None}
    for index, each in enumerate(experiment.requirements if batch else ()):
        if each.dependency not in own:
            yield Use(("depends", index), names_in([each]))
    for index, each in enumerate(owner.requirements):
        yield Use((*path, "depends", index), names_in([each]))
    if owner.has_code:
        yield Use((*path, CODE), (CODE,))
    for sweep in owner.sweeps:
        for condition in sweep.conditions:
            reason = () if condition.reason is None else condition.reason.names
            for name in (*condition.expression.names, *reason):
                at = (*condition.place, name)  # of an entry of `exclude`
                is_there = at in experiment.source_map.lines
                yield Use(at if is_there else condition.place, (name,), facts)
    yield Use((*path, "name"), parse_text(owner.job_name).names, SUBSTITUTED, True)
    for index, artifact in enumerate(owner.artifacts):
        yield Use((*path, "artifacts", index, "dest"), parse_text(artifact.dest).names, SUBSTITUTED)


@dataclass(frozen=True, kw_only=True)
class Experiment(Settings):
    """A benchmark: how to build and run it and with which parameters; what the file says outside of
    its batches is for all of them.

    `file` is its path relative to the project, `name` the file's stem as an identifier. `sources`
    are globs of its code, None for the default. `given`: what else determines the points, where it
    is known.
    """

    name: str
    file: str
    default_parameters: Parameters
    batches: Mapping[str, Batch]
    sources: tuple[str, ...] | None
    source_map: SourceMap = field(repr=False, compare=False)
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
        """All points of a batch on a machine.

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
        facts = self.facts_of(machine)
        if batch.recorded is None:
            points, skipped = self._combined(batch, self.default_parameters, facts, problems)
            note_plot_problems(batch.plots, points, problems)
        else:
            points, skipped = [*self._recorded(batch, facts)], []
        destinations.add(self, batch, points, problems)
        return tuple(points), tuple(skipped)

    def _combined(
        self, batch: Batch, defaults: Parameters, facts: Given, problems: Problems
    ) -> tuple[list[Point], list[Skipped]]:
        """The points of the sweeps of a batch, duplicates innermost, and what these skip. If a
        problem is noted, what has no value is missing or empty in them."""
        every = (defaults, facts, problems, batch.name, batch.sometimes)
        expansions = [Expansion(each, *every) for each in batch.sweeps]
        count = batch.duplicates * sum(each.count for each in expansions)
        if batch.duplicates > MAXIMUM_DUPLICATES:
            said = f"{batch.duplicates} duplicates; at most {MAXIMUM_DUPLICATES} are possible"
            problems.add((*batch.path, "duplicates"), said)
        elif count > MAXIMUM_POINTS:
            told = count if count <= _MOST_TOLD else f"more than {_MOST_TOLD}"
            said = f"{told} points; at most {MAXIMUM_POINTS} are possible"
            problems.add(batch.path, f"{said}; give the parameters fewer values")
        if batch.duplicates > MAXIMUM_DUPLICATES or count > MAXIMUM_POINTS:
            return [], []
        if count >= _MANY_POINTS:
            _log.warning("batch %s has %d points; planning them takes minutes", batch.name, count)
        texts = PointTexts(batch.job_name, batch.queue, batch.artifacts)
        uses = [(use.path, name) for use in uses_of(self, batch) if use.needs for name in use.names]
        # Other names have a value everywhere.
        uncertain = [each for each in uses if each[1] in batch.sometimes or is_fact(each[1])]
        points, skipped = list[Point](), list[Skipped]()
        for index, parameters, reason in _combinations(expansions, problems):
            if reason:
                skipped.append(Skipped(parameters, reason))
                continue
            values = {**facts.values, **parameters}
            for path, name in uncertain:
                if name not in values:
                    own = without_parameter(name, parameters, batch.parameters)
                    problems.add_example(path, facts.problem(name) if is_fact(name) else own)
            request, wrong = request_of(batch.run.requested, values, "run")
            wrong |= request_of(batch.build.requested, values, "build")[1]
            for duplicate in range(batch.duplicates):
                point = texts.point(parameters, batch.name, duplicate, index, batch.sometimes)
                for at, said in (wrong | point.problems).items():
                    problems.add_example((*batch.path, *at), said)
                points.append(replace(point, request=request))
        if not (points or skipped or problems):
            said = "nothing is left of the grid; remove an entry"
            problems.add((*batch.sweeps[0].place, "exclude"), said)
        return points, skipped

    def _recorded(self, batch: Batch, facts: Given) -> Iterator[Point]:
        """The points of a batch that were recorded. Raises ConfigError for a point with other
        parameters than those of the batch, or with values that no such point has."""
        texts = PointTexts(batch.job_name, batch.queue, batch.artifacts)
        names = self.parameters_of(batch)
        for each in batch.recorded or ():
            where = f"{self.file}: batch '{batch.name}', record {each.identity}"
            if differing := sorted(({*each.parameters} ^ {*names}) - batch.sometimes):
                raise ConfigError(
                    f"{where}: it does not have the parameters of the batch, but differs in "
                    f"{', '.join(differing)}",
                    "Was the record edited? A record describes the code that it names.",
                )
            # In the order of the file, as in the grid.
            parameters = FrozenDict((n, each.parameters[n]) for n in names if n in each.parameters)
            point = texts.point(parameters, batch.name, each.duplicate)
            request, wrong = request_of(batch.run.requested, {**facts.values, **parameters}, "run")
            for at, said in (point.problems | wrong).items():
                raise ConfigError(f"{where}: {'.'.join(map(str, at))}: {said}")
            yield replace(point, request=request, rerun_of=each.identity)

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
        for name in (*self.used(None), *chain.from_iterable(names_used(parameters).values())):
            if name not in parameters and name not in SUBSTITUTED and not is_fact(name):
                raise ConfigError(
                    f"{self.file}: the parameter '{name}' has no value outside of the batches",
                    f"Give it one: {name}=VALUE, or add it to default_params.",
                )
        if not (self.run.script.strip() or self.build.script.strip()):
            raise self.source_map.error(("run",), "a key 'script' was expected")
        sweeps = (Sweep(parameters, ()),)
        batch = Batch(
            name="", job_name=self.job_name, queue=self.queue, run=self.run, sweeps=sweeps
        )
        points, _ = self._combined(batch, {}, facts, problems)
        problems.raise_all()
        return points[0]

    def build_request(self, build: Phase, parameters: Mapping[str, str]) -> Request:
        """What a build requests. `parameters`: those on which it depends."""
        facts = self.facts_of(self.given.machine).values if self.given else {}
        return request_of(build.requested, {**facts, **parameters})[0]

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
        used = chain.from_iterable(names_used(defaults).values())
        known = dict.fromkeys((*defaults, *self.used(None), *used))
        for name in overrides:
            if name not in known:
                yield f"{self.file}: nothing uses the parameter '{name}', {nearest(name, known)}"

    def used(self, batch: Batch | None) -> Iterator[str]:
        """The parameters that scripts and texts use: those of a batch, or those outside of the
        batches."""
        return (name for use in uses_of(self, batch) for name in use.names)

    def only_recorded(
        self,
        recorded: Mapping[str, Sequence[Recorded]],
        below: str,
        requirements: Sequence[Requirement] = (),
    ) -> Experiment:
        """The experiment with these batches and points only, with all artifacts in the directory
        `below`, a template. If `below` has the code, so has each point, also where the batch has
        none. `requirements` replace recipes of the same dependency.

        Raises NameNotFoundError for a batch that the experiment does not have.
        """
        batches = {}
        for name, points in recorded.items():
            batch = self.batch(name)
            if not batch.has_code and CODE in Template.parse(below).names:
                parameters = FrozenDict({**batch.parameters, CODE: ()})
                batch = replace(batch, has_code=True, parameters=parameters)
            artifacts = tuple(Artifact(a.type, f"{below}/{a.dest}", a.src) for a in batch.artifacts)
            batches[name] = replace(
                batch,
                artifacts=artifacts,
                recorded=tuple(points),
                below=below,
                repeat=None,
                requirements=(*batch.requirements, *requirements),
            )
        return replace(self, batches=FrozenDict(batches))


def _combinations(
    expansions: Sequence[Expansion], problems: Problems
) -> Iterator[tuple[int, FrozenDict[str, str], str]]:
    """The index of the sweep of each combination, its parameters, and why it is skipped, or "".

    A point that one sweep skips and another one has is not skipped.
    """
    owners: dict[FrozenDict[str, str], int] = {}
    skipped: dict[FrozenDict[str, str], tuple[int, str]] = {}
    for index, expansion in enumerate(expansions):
        for parameters, reason in expansion:
            if reason:
                skipped.setdefault(parameters, (index, reason))
            elif (first := owners.get(parameters)) is None:
                owners[parameters] = index
                yield index, parameters, ""
            elif first != index or not problems:
                shown = ", ".join(f"{name}={value}" for name, value in parameters.items())
                said = f"in {expansions[first].sweep.called}, too; leave it out of one"
                if first == index:
                    said = "there twice, as two values are the same; to repeat runs, use "
                    said += "'duplicates'"
                problems.add_example(expansion.sweep.place, f"the point ({shown}) is {said}")
    for parameters, (index, reason) in skipped.items():
        if parameters not in owners:
            yield index, parameters, reason


# ---- destinations of artifacts


class _Writer(NamedTuple):
    """What writes a file: an artifact of a point; or, without a point, the batch itself."""

    experiment: Experiment
    batch: Batch
    problems: Problems
    point: Point | None = None
    number: int = -1  # of the artifact

    def called_by(self, other: _Writer) -> str:
        """What it is in messages about another one."""
        what = "the table, plot or check of " if self.point is None else ""
        is_here = other.experiment.file == self.experiment.file
        of = "" if is_here else f" of {self.experiment.file}"
        return f"{what}batch '{self.batch.name}'{of}"

    def note(self, message: str, key: str = "dest") -> None:
        """Note a problem of an artifact: one of thousands is enough."""
        self.problems.add_first((*self.batch.path, "artifacts", self.number, key), message)


class Destinations:
    """The files that points of one batch, or of many, would write."""

    def __init__(self) -> None:
        self._batches: list[tuple[_Writer, Sequence[Point]]] = []

    def add(
        self, experiment: Experiment, batch: Batch, points: Sequence[Point], problems: Problems
    ) -> None:
        self._batches.append((_Writer(experiment, batch, problems), points))

    def finish(self) -> None:
        """When all are added: note every path that is impossible, or belongs to another artifact or
        to a batch's own table, or would be a directory, too."""
        writers: dict[str, _Writer] = {}
        for each, _ in self._batches:
            figures = stems(each.batch.name, each.batch.plots)
            names = [f"{figure}.{kind}" for figure in figures for kind in ("png", "svg")]
            names += [f"{each.batch.name}.csv", f"{each.batch.name}.md"]
            names += [f"{each.batch.name}_check.xml"] if each.batch.references else []
            for name in names:
                writers[f"{each.experiment.name}/{name}"] = each
        every = ((owner, point) for owner, points in self._batches for point in points)
        for owner, point in every:
            for index, artifact in enumerate(point.artifacts):
                here, dest = owner._replace(point=point, number=index), artifact.dest
                if artifact.src is not None and (wrong := src_problem(artifact.src)):
                    here.note(f"{artifact.src!r}: {wrong}", "src")
                if not dest:
                    continue  # a parameter in it has no value, which was noted
                if wrong := dest_problem(dest):
                    here.note(f"{dest!r}: {wrong}")
                if (other := writers.setdefault(dest, here)) is not here:
                    here.note(_collision(dest, other, here))
        for path, below in writers.items():
            for end in (index for index, character in enumerate(path) if character == "/"):
                if (above := writers.get(path[:end])) is not None:
                    here, other = (below, above) if below.point else (above, below)
                    is_own = here.batch is other.batch and other.point
                    whose = "" if is_own else f" ({other.called_by(here)})"
                    said = f"'{path[:end]}'{whose if other is above else ''} would be both a file "
                    said += f"and the directory of '{path}'{whose if other is below else ''}"
                    here.note(f"{said}; rename one")


def _collision(dest: str, one: _Writer, other: _Writer) -> str:
    """What is wrong with two writers of one file."""
    template = other.batch.artifacts[other.number].dest
    if one.point is None or other.point is None:
        return f"'{dest}' is {one.called_by(other)}; rename the artifact"
    if one.batch is not other.batch:
        advice = "rename one, or add ${batch_name}"
        return f"'{dest}' is also written by {one.called_by(other)}; {advice}"
    both = [{**e.parameters, "duplicate": str(e.duplicate)} for e in (one.point, other.point)]
    differing = [n for n in {**both[1], **both[0]} if both[0].get(n) != both[1].get(n)]
    if not differing:
        return f"'{dest}' is also the dest of artifacts[{one.number}]; rename one"
    labels = " and ".join(
        f"({', '.join(f'{n}={p[n]}' for n in differing if n in p)})" for p in both
    )
    missing = [f"${{{name}}}" for name in differing if name not in parse_text(template).names]
    advice = (
        f"add {' and '.join(missing)}"
        if missing
        else "put different texts around and between the ${...}"
    )
    return f"two points would write '{dest}': {labels}; {advice}"
