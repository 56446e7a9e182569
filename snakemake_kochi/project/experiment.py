"""Experiments and their batches, as data, and their points, no two of which write one file."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
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

    `also` are other names that it may use, FACT for those of facts. If it is `telling`, runs differ
    by these parameters: a destination and the name of a job have some, too, but change no result.
    Each point `needs` a value for them, or does without.
    """

    path: KeyPath
    names: Sequence[str]
    also: Collection[str] = ()
    telling: bool = True
    needs: bool = False


def uses_of(experiment: Experiment, batch: Batch | None) -> Iterator[Use]:
    """What the texts of a batch use, or those outside of the batches; except values of
    parameters."""
    owner: Settings = batch or experiment
    path = owner.path
    texts = [("name", owner.job_name, False, True), ("queue", owner.queue, True, True)]
    for key, text, telling, needs in texts:
        yield Use((*path, key), parse_text(text or "").names, SUBSTITUTED, telling, needs)
    for index, artifact in enumerate(owner.artifacts):
        for key, text in (("dest", artifact.dest), ("src", artifact.src)):
            names, is_src = parse_text(text or "").names, key == "src"
            yield Use((*path, "artifacts", index, key), names, SUBSTITUTED, is_src, is_src)
    for key, phase in (("build", owner.build), ("run", owner.run)):
        yield Use((*path, key, "depend_params"), phase.depend_params)
        for at, value in phase.requested.items():
            yield Use((*path, key, *at), value.names, (BATCH_NAME, FACT), needs=True)
        yield Use((*path, key, "launcher"), parse_value(phase.launcher).names)
    if owner.prepare is not None:
        yield Use((*path, "prepare", "depend_params"), owner.prepare.depend_params)
    replaced = {each.dependency for each in owner.requirements if each.machines is None}
    for at, required in (
        ((), experiment.requirements if batch else ()),
        (path, owner.requirements),
    ):
        for index, each in enumerate(required):
            if at or not batch or each.dependency not in replaced:
                yield Use((*at, "depends", index), names_in([each]))
    if owner.has_code:
        yield Use((*path, CODE), (CODE,))
    for sweep in owner.sweeps:
        for place, entry in sweep.exclude:
            for name in entry:
                yield Use((*place, name), (name,), telling=False)
        for condition in sweep.conditions:
            names = (*condition.expression.names, *parse_value(condition.reason).names)
            yield Use(condition.place, names, (BATCH_NAME, FACT), telling=False)


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
            points, skipped = self._combined(batch, self.default_parameters, facts, problems)
            note_plot_problems(batch.plots, points, problems)
        else:
            points = tuple(self._recorded(batch, facts))
        destinations.add(self, batch, points, problems)
        return points, skipped

    def _combined(
        self, batch: Batch, defaults: Parameters, facts: Given, problems: Problems
    ) -> tuple[tuple[Point, ...], tuple[Skipped, ...]]:
        """The points of the sweeps of a batch, duplicates innermost, and what these skip. If a
        problem is noted, what has no value is missing or empty in them."""
        every = (defaults, facts, problems, batch.name, batch.sometimes)
        expansions = [Expansion(each, *every) for each in batch.sweeps]
        if _are_too_many(batch, expansions, problems):
            return (), ()
        texts = PointTexts(batch.job_name, batch.queue, batch.artifacts)
        uses = [(use.path, name) for use in uses_of(self, batch) if use.needs for name in use.names]
        # Other names have a value everywhere.
        uncertain = [each for each in uses if each[1] in batch.sometimes or is_fact(each[1])]
        points, skipped = [], []
        for index, parameters, reason in _combinations(expansions, problems):
            if reason:
                skipped.append(Skipped(parameters, reason))
                continue
            values = {**facts.values, **parameters}
            for path, name in uncertain:
                if name not in values:
                    own = without_parameter(name, parameters, batch.parameters)
                    problems.add_example(path, facts.problem(name) if is_fact(name) else own)
            requests = {}
            for key, phase in (("run", batch.run), ("build", batch.build)):
                requests[key], wrong = request_of(phase.requested, values)
                for at, said in wrong.items():
                    problems.add_example((*batch.path, key, *at), said)
            for duplicate in range(batch.duplicates):
                point = texts.point(parameters, batch.name, duplicate, index, batch.sometimes)
                for key, said in point.problems.items():
                    problems.add_example((*batch.path, key), said)
                points.append(replace(point, request=requests["run"]))
        if not (points or skipped or problems):
            said = "nothing is left of the grid; remove an entry"
            problems.add((*batch.sweeps[0].place, "exclude"), said)
        return tuple(points), tuple(skipped)

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
            request, wrong = request_of(batch.run.requested, {**facts.values, **parameters})
            problems = list(point.problems.values())
            problems += [f"run.{'.'.join(map(str, key))}: {said}" for key, said in wrong.items()]
            if problems:
                raise ConfigError(f"{where}: {problems[0]}")
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
        for name in (*self.used(None), *_all(names_used(parameters))):
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

    def build_request(self, batch: str, parameters: Mapping[str, str]) -> Request:
        """What a build requests. `parameters`: those on which it depends.

        `batch`: the batch that has a build of its own, else "": batches that only request something
        else for it share one build, which gets the most of each.
        """
        every = [each.build for each in self.batches.values()]
        shared = [each for each in every if each.determining == self.build.determining]
        phases = [self.batch(batch).build] if batch else shared or [self.build]
        facts = self.facts_of(self.given.machine).values if self.given else {}
        values = {**facts, **parameters}
        requests = [request_of(phase.requested, values)[0] for phase in dict.fromkeys(phases)]
        return functools.reduce(Request.or_more, requests)

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
                yield f"{self.file}: nothing uses the parameter '{name}', {nearest(name, known)}"

    def used(self, batch: Batch | None) -> Iterator[str]:
        """The parameters that scripts and texts use: those of a batch, or those outside of the
        batches."""
        # To leave out values of a parameter is no use of it.
        uses = (use for use in uses_of(self, batch) if use.path[-3:-2] != ("exclude",))
        return (name for use in uses for name in use.names)

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
        return replace(self, batches=FrozenDict(batches), remarks=())


def _all(used: Mapping[str, Iterable[str]]) -> Iterator[str]:
    return (name for names in used.values() for name in names)


def _are_too_many(batch: Batch, expansions: Iterable[Expansion], problems: Problems) -> bool:
    count = batch.duplicates * sum(each.count for each in expansions)
    if batch.duplicates > MAXIMUM_DUPLICATES:
        told = f"{batch.duplicates} duplicates; at most {MAXIMUM_DUPLICATES} are possible"
        problems.add((*batch.path, "duplicates"), told)
    elif count > MAXIMUM_POINTS:
        told = str(count) if count <= _MOST_TOLD else f"more than {_MOST_TOLD}"
        said = f"{told} points; at most {MAXIMUM_POINTS} are possible"
        problems.add(batch.path, f"{said}; give the parameters fewer values")
    else:
        if count >= _MANY_POINTS:
            _log.warning("batch %s has %d points; planning them takes minutes", batch.name, count)
        return False
    return True


def _combinations(
    expansions: Sequence[Expansion], problems: Problems
) -> Iterator[tuple[int, FrozenDict[str, str], str]]:
    """The index of the sweep of each combination, its parameters, and why it is skipped.

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
                said = f"is in {expansions[first].sweep.called}, too; leave it out of one"
                if first == index:
                    said = "is there twice, as two values are the same; to repeat runs, use "
                    said += "'duplicates'"
                problems.add_example(expansion.sweep.place, f"the point ({shown}) {said}")
    for parameters, (index, reason) in skipped.items():
        if parameters not in owners:
            yield index, parameters, reason


# ---- destinations of artifacts


class _Owner(NamedTuple):
    """A batch whose points write files."""

    experiment: Experiment
    batch: Batch
    points: tuple[Point, ...]
    problems: Problems

    def called_by(self, other: _Owner) -> str:
        """The name of this batch in messages about another batch."""
        is_here = other.experiment.file == self.experiment.file
        return f"batch '{self.batch.name}'{'' if is_here else f' of {self.experiment.file}'}"

    def note(self, index: int, message: str | Callable[[], str], key: str = "dest") -> None:
        """Note a problem of an artifact: one of thousands is enough."""
        self.problems.add_first((*self.batch.path, "artifacts", index, key), message)


_Artifact = tuple[_Owner, Point, int]


class Destinations:
    """The files that points of one batch, or of many, would write."""

    def __init__(self) -> None:
        self._artifacts: dict[str, _Artifact] = {}
        self._tables: dict[str, _Owner] = {}

    def add(
        self, experiment: Experiment, batch: Batch, points: tuple[Point, ...], problems: Problems
    ) -> None:
        """Note in `problems` every path that is impossible or belongs to another artifact.

        An empty dest, because a parameter in it has no value, is left out.
        """
        owner = _Owner(experiment, batch, points, problems)
        # The table and the figures of a batch are beside its artifacts.
        own = [f"{batch.name}.csv", f"{batch.name}.md"]
        figures = stems(batch.name, batch.plots)
        own += [f"{stem}.{kind}" for stem in figures for kind in ("png", "svg")]
        self._tables |= dict.fromkeys((f"{experiment.name}/{name}" for name in own), owner)
        for point in points:
            for index, artifact in enumerate(point.artifacts):
                dest, src = artifact.dest, artifact.src
                if src is not None and (wrong := src_problem(src)):
                    owner.note(index, f"{src!r}: {wrong}", "src")
                if dest and (wrong := dest_problem(dest)):
                    owner.note(index, f"{dest!r}: {wrong}")
                here = (owner, point, index)
                if dest and (other := self._artifacts.setdefault(dest, here)) is not here:
                    owner.note(index, functools.partial(_collision, dest, other, here))

    def finish(self) -> None:
        """When all are added: note every file that would also be a directory, and every one that
        would be a batch's own table."""
        for dest, (owner, _, index) in self._artifacts.items():
            for parent in _parents(dest):
                if parent in self._artifacts:
                    other = self._artifacts[parent][0]
                    of = "" if other is owner else f" of {other.called_by(owner)}"
                    said = f"'{parent}'{of} would be both a file and the directory of '{dest}'"
                    owner.note(index, f"{said}; rename one")
                self._note_table(parent, dest)
        for table in self._tables:
            for path in (table, *_parents(table)):
                self._note_table(table, path)

    def _note_table(self, table: str, dest: str) -> None:
        if table in self._tables and dest in self._artifacts:
            owner, _, index = self._artifacts[dest]
            whose = f"the table or plot of {self._tables[table].called_by(owner)}"
            said = f"is {whose}" if dest == table else f"conflicts with '{table}', {whose}"
            owner.note(index, f"'{dest}' {said}; rename the artifact")


def _parents(dest: str) -> Iterator[str]:
    return (dest[:length] for length, character in enumerate(dest) if character == "/")


def _collision(dest: str, first: _Artifact, second: _Artifact) -> str:
    (one, a, i), (other, b, j) = first, second
    used = parse_text(other.batch.artifacts[j].dest).names
    if one is not other:
        alike = one.experiment.file == other.experiment.file and "batch_name" not in used
        advice = "add ${batch_name}" if alike else "rename one"
        return f"'{dest}' is also written by {one.called_by(other)}; {advice}"
    varying = varying_parameters(one.points)
    labels, texts = [], []
    for point in (a, b):
        texts.append({n: point.parameters[n] for n in varying if n in point.parameters})
        texts[-1]["duplicate"] = str(point.duplicate)
        *shown, last = (f"{name}={text}" for name, text in texts[-1].items())
        labels.append(f"({', '.join([*shown, last.replace('=', ' ', 1)])})")
        if len(one.batch.sweeps) > 1:
            labels[-1] += f" of {one.batch.sweeps[point.sweep].called}"
    differing = [n for n in (*varying, "duplicate") if texts[0].get(n) != texts[1].get(n)]
    if i != j and not differing:
        return f"'{dest}' is also the dest of artifacts[{i}]; rename one"
    missing = [f"${{{name}}}" for name in differing if name not in used]
    advice = "put different texts around and between the ${...}"
    if missing and i == j:
        advice = f"add {' and '.join(missing)}"
    return f"two points would write '{dest}': {' and '.join(labels)}; {advice}"
