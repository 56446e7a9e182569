"""From the parameters of a batch to its points: series, combinations, conditions.

The combinations are counted before any is made: a range may have a billion values. A run makes its
own point only, and does not load this module.

`range` is Python's, without its end. The other series have both ends, and `geom` and `igeom` are
those of execo (execo_engine.sweep), which takes the number of values, too.
"""

from __future__ import annotations

import csv
import io
import itertools
import logging
import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from snakemake_kochi.errors import ConfigError, nearest
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.document import KeyPath, Problems, chain
from snakemake_kochi.project.expressions import (
    Template,
    TemplateError,
    Value,
    is_fact,
    parse_expression,
    parse_value,
    plain,
)
from snakemake_kochi.project.grid import (
    MAXIMUM_DUPLICATES,
    Artifact,
    Batch,
    Point,
    PointTexts,
    Recorded,
    Skipped,
    request_of,
)
from snakemake_kochi.project.sweeps import (
    CSV,
    SERIES,
    Condition,
    Given,
    Parameters,
    ParameterValues,
    Sweep,
    flattened,
    names_used,
    select,
    without_parameter,
)
from snakemake_kochi.project.values import BATCH_NAME, CODE, SUBSTITUTED, value_problem

if TYPE_CHECKING:
    from snakemake_kochi.project.experiment import Experiment, Use
    from snakemake_kochi.project.recipes import Requirement

_log = logging.getLogger(__name__)

MAXIMUM_POINTS = 1_000_000
# From here on, planning takes minutes and a gigabyte.
_MANY_POINTS = 100_000
_MOST_TOLD = 10**12
# of a value that is not exact: the last digits of a power are noise, and would be in file names
_DIGITS = 12

# ---- series


def make_series(kind: str, arguments: Sequence[Any]) -> Sequence[Any]:
    """The numbers of a series, one of SERIES without `csv`. Raises TemplateError."""
    for index, each in enumerate(arguments):
        is_number = isinstance(each, int | float) and not isinstance(each, bool)
        if not is_number or (isinstance(each, float) and not math.isfinite(each)):
            raise TemplateError(f"{kind}: a number was expected, not {repr(each)[:200]}")
        is_whole = kind == "range" or (kind == "igeom" and index < 2)
        if is_whole and not isinstance(each, int):
            said = "; for steps such as 0.5, use linspace" if kind == "range" else ""
            raise TemplateError(f"{kind}: a whole number was expected, not {each}{said}")
        if kind != "pow2" and abs(each) > sys.float_info.max:
            raise TemplateError(f"{kind}: the numbers are too large")
    if kind == "range":
        found: Sequence[Any] = _range(*arguments)
    elif kind == "pow2":
        found = _pow2(*(1, *arguments)[-2:])
    else:
        found = _between(kind, *arguments)
    if not found:
        given = ", ".join(map(str, arguments))
        raise TemplateError(f"{kind}: there is no value in [{given}], which is {SERIES[kind][0]}")
    return found


def _range(*bounds: Any) -> Sequence[int]:
    if bounds[2:] == (0,):
        raise TemplateError("range: a STEP other than 0 was expected")
    found = range(*bounds)
    if found and (found[-1] - found[0]) // found.step >= sys.maxsize:  # an index
        raise TemplateError("range: the numbers are too large")
    return found


def _pow2(first: Any, last: Any) -> Sequence[int]:
    if first <= 0:
        raise TemplateError(f"pow2: a FIRST above 0 was expected, not {first}")
    least = max(0, math.ceil(first) - 1).bit_length()
    return [2**n for n in range(least, max(0, math.floor(last)).bit_length())]


def _between(kind: str, first: Any, last: Any, number: Any) -> Sequence[Any]:
    """A number of values from the first to the last, in equal steps or by equal factors."""
    if not isinstance(number, int) or number < 1:
        raise TemplateError(f"{kind}: a NUMBER of values of 1 or more was expected, not {number}")
    if number > MAXIMUM_POINTS:
        said = f"{kind}: a NUMBER of at most {MAXIMUM_POINTS} was expected, not {number}"
        raise TemplateError(said)
    steps = max(1, number - 1)
    if kind == "linspace":
        start = Fraction(str(first))
        width = Fraction(str(last)) - start
        return [start + width * index / steps for index in range(number)]
    if first <= 0 or last <= 0:
        raise TemplateError(f"{kind}: two numbers above 0 were expected, not {first} and {last}")
    ratio = float(last / first)
    if not 0 < ratio < math.inf:
        raise TemplateError(f"{kind}: {first} and {last} are too far apart")
    inner = (float(f"{first * ratio ** (i / steps):.{_DIGITS}g}") for i in range(1, number - 1))
    found = [first, *inner, last][:number]
    # Whole numbers, each once: there may be fewer.
    return list(dict.fromkeys(map(round, found))) if kind == "igeom" else found


def _text(value: Any) -> str:
    """Of a number the shortest exact form; whole numbers without a point."""
    if isinstance(value, str):
        return value
    return str(int(value)) if value == int(value) else str(float(value))


def column_of(file: str, text: str, column: str) -> tuple[str, ...]:
    """The texts in a column of a CSV file, whose first row has the names of its columns.

    Empty lines are ignored. Raises TemplateError, with the line, for a file that is not CSV, has no
    such column, or has rows of different lengths.
    """
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        rows = [(reader.line_num, [field.strip() for field in row]) for row in reader if row]
    except csv.Error as error:
        raise TemplateError(f"{file}:{reader.line_num}: not valid CSV: {error}") from error
    names = rows[0][1] if rows else []
    if column not in names and rows:
        said = nearest(column, names)
        raise TemplateError(f"{file}:1: there is no column '{column}', {said}")
    if names.count(column) > 1:
        raise TemplateError(f"{file}:1: there are several columns '{column}'")
    if len(rows) < 2:
        raise TemplateError(f"{file}: there is no row with values below the names of the columns")
    found = []
    for line, row in rows[1:]:
        if len(row) != len(names):
            said = f"{len(names)} fields were expected as in the first line, not {len(row)}"
            raise TemplateError(f"{file}:{line}: {said}")
        found.append(row[names.index(column)])
        if wrong := value_problem(found[-1]):
            raise TemplateError(f"{file}:{line}: {wrong}")
    return tuple(found)


# ---- combinations


def dependency_order(used: Mapping[str, Iterable[str]]) -> list[str]:
    """The names in an order in which each comes after those that it uses.

    Raises TemplateError for a cycle, naming it. Used names that have no entry are left out.
    """
    # Imported here: few processes of a run make a grid.
    from graphlib import CycleError, TopologicalSorter

    graph = {name: [other for other in own if other in used] for name, own in used.items()}
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        names = chain(error.args[1][::-1])
        said = f"parameters refer to each other in a circle: {names}; give one of them a value"
        raise TemplateError(said) from None


_Part = Mapping[str, Value]


@dataclass(frozen=True)
class _Axis:
    """One factor of a product: its number of alternatives, at most, and what makes them."""

    count: int
    parts: Callable[[], Iterable[_Part]]


_WITHOUT_VALUE = _Axis(1, lambda: [{}])  # what is wrong with it was noted


class Expansion:
    """The combinations of one sweep on a machine. `count` is their number, at most.

    Notes problems: of values that do not exist when it is made, and of values that cannot be
    computed when it is iterated.
    """

    def __init__(
        self,
        sweep: Sweep,
        defaults: Parameters,
        facts: Given,
        problems: Problems,
        batch: str = "",
        sometimes: Collection[str] = (),
    ) -> None:
        """`batch` is the value of `${batch_name}`, `sometimes` the parameters that only some of its
        points have. Raises ConfigError for a cycle."""
        self.sweep = sweep
        self._facts, self._problems, self._sometimes = facts, problems, sometimes
        own = {name: choices for name, choices in defaults.items() if name not in sweep.parameters}
        parameters = {**own, **sweep.parameters}
        entries = flattened(parameters, facts.machine)
        try:
            self._order = dependency_order(names_used(entries))
        except TemplateError as error:
            raise problems.source_map.error((), str(error)) from error
        self._places = {name: each[0].place for name, each in flattened(parameters).items() if each}
        self._chosen = self._chosen_of(parameters)
        # What the numbers of series may use: the parameters with one value in all combinations.
        self._known = {BATCH_NAME: batch, **facts.values}
        for name in self._order:
            choice = self._chosen.get(name)
            if choice is None or choice.series or choice.below:
                continue
            is_one = len(entries[name]) == len(choice.values) == 1
            if is_one and all(other in self._known for other in choice.parsed[0].names):
                with suppress(TemplateError):  # noted with the combinations
                    text = choice.parsed[0].render(self._known)
                    self._known |= {} if value_problem(text) else {name: text}
        self._axes = tuple(self._all_axes())
        self.count = math.prod(axis.count for axis in self._axes)

    def _chosen_of(self, parameters: Parameters) -> dict[str, ParameterValues]:
        """The entry of each parameter that counts on the machine. One without any is noted."""
        chosen = {}
        for name, choices in parameters.items():
            if (choice := select(choices, self._facts.machine)) is not None:
                chosen[name] = choice
                continue
            others = ", ".join(sorted({m for each in choices for m in each.machines or ()}))
            said = f"'{name}' has no value on machine '{self._facts.machine}', only on {others}"
            self._problems.add(choices[0].place, f"{said}; add an entry without 'machines'")
        return chosen

    def _all_axes(self) -> Iterator[_Axis]:
        """In the order of the file, zipped parameters where the first of them is."""
        groups = {name: group for group in self.sweep.zipped for name in group}
        for name, choice in self._chosen.items():
            group = groups.get(name)
            if group is None:
                yield self._axis(name, choice)
            elif name == next(each for each in self._chosen if each in group):
                yield self._zipped(group)

    def _axis(self, name: str, choice: ParameterValues) -> _Axis:
        if choice.series:
            made = self._series(choice)
            if made is None:
                return _WITHOUT_VALUE
            return _Axis(len(made), lambda: ({name: plain(_text(each))} for each in made))
        heads = [{name: value} for value in choice.parsed]
        if not choice.below:
            return _Axis(len(heads), lambda: heads)
        branches = [
            [self._axis(*each) for each in self._chosen_of(below).items()] for below in choice.below
        ]
        return _Axis(
            sum(math.prod(axis.count for axis in inner) for inner in branches),
            lambda: (
                head | _union(parts)
                for head, inner in zip(heads, branches, strict=True)
                for parts in itertools.product(*(axis.parts() for axis in inner))
            ),
        )

    def _zipped(self, group: Sequence[str]) -> _Axis:
        columns: dict[str, Sequence[Any]] = {}
        wrong = ""
        for name in group:
            choice = self._chosen.get(name)
            if choice is None:
                wrong = f"there is no parameter '{name}' here, {nearest(name, self._chosen)}"
            elif choice.below:
                wrong = f"'{name}' has values with their own parameters, which cannot be zipped"
            elif (made := self._series(choice, True) if choice.series else choice.values) is None:
                return _WITHOUT_VALUE
            else:
                columns[name] = made
        if not wrong and len({len(values) for values in columns.values()}) > 1:
            told = ", ".join(f"'{name}' has {len(values)}" for name, values in columns.items())
            wrong = f"zipped parameters must have equally many values, but {told}"
            wrong += "; add the missing ones, or remove a name"
        count = 0 if wrong else len(columns[group[0]])
        if count > MAXIMUM_POINTS:  # which is told with the number of points
            return _Axis(count, lambda: [{}])
        texts = [map(_text, each) for each in columns.values()] if count else []
        rows = list(zip(*texts, strict=True))
        first: dict[tuple[str, ...], int] = {}
        for index, row in enumerate(rows):
            if first.setdefault(row, index) != index:
                shown = ", ".join(f"{name}={text}" for name, text in zip(group, row, strict=True))
                wrong = f"the values {shown} are zipped twice, as number {first[row] + 1} and "
                wrong += f"{index + 1}; to repeat runs, use 'duplicates'"
                break
        if wrong:
            self._problems.add((*self.sweep.place, "zip"), wrong)
            return _WITHOUT_VALUE
        parts = [dict(zip(group, map(parse_value, row), strict=True)) for row in rows]
        return _Axis(len(parts), lambda: parts)

    def _series(self, choice: ParameterValues, repeated: bool = False) -> Sequence[Any] | None:
        """A series, None if it is wrong; `repeated`: with values that occur several times."""
        try:
            if choice.series != CSV:
                return make_series(choice.series, [self._argument(text) for text in choice.values])
            file, column = choice.values
            if file not in self._facts.tables:
                raise TemplateError(
                    f"there is no file '{file}' in the project; give its path from the top of the "
                    "project, and make sure that git does not ignore it"
                )
            texts = column_of(file, self._facts.tables[file], column)
            return texts if repeated else tuple(dict.fromkeys(texts))
        except TemplateError as error:
            self._problems.add(choice.place, str(error))
            return None

    def _argument(self, text: str) -> Any:
        expression = parse_expression(text)
        for name in expression.names:
            if is_fact(name) and name not in self._known:
                raise TemplateError(self._facts.problem(name))
            if name not in self._known:
                raise TemplateError(
                    f"`{expression.source}`: '{name}' has several values here, and a series has "
                    "one length; write the longest series, and leave points out by 'when'"
                    if name in self._places
                    else f"the value of '{name}' is not known"
                )
        return expression.result(self._known)

    def __iter__(self) -> Iterator[tuple[FrozenDict[str, str], str]]:
        """Each combination, resolved, and why it is skipped, or nothing. The last parameter varies
        fastest.

        A parameter whose value cannot be computed is noted and left out of its combination,
        together with those that use it.
        """
        order = [name for name in self._order if name not in self._known]
        for parts in itertools.product(*(axis.parts() for axis in self._axes)):
            templates = _union(parts)
            values = dict(self._known)
            for name in order:
                if name in templates:
                    text = self._resolved(name, templates[name], values, templates)
                    if text is not None:
                        values[name] = text
            if not self._is_excluded(values):
                named = ((name, values[name]) for name in self._places if name in values)
                yield FrozenDict(named), self._skipped(values)

    def _resolved(
        self, name: str, template: Value, values: Mapping[str, str], templates: _Part
    ) -> str | None:
        try:
            text = template.render(values)
            wrong = value_problem(text)
        except KeyError as error:
            # Otherwise the parameter has no value, which was noted.
            self._note_missing(self._places[name], error.args[0], values, {*templates})
            return None
        except TemplateError as error:
            wrong = str(error)
        if wrong:
            self._problems.add_example(self._places[name], wrong)
        return None if wrong else text

    def _note_missing(
        self, place: KeyPath, name: str, values: Mapping[str, str], own: Collection[str] = ()
    ) -> None:
        """Note a name without a value that is not among the combination's `own` parameters."""
        if is_fact(name):
            self._problems.add_example(place, self._facts.problem(name))
        elif name in self._sometimes and name not in own:
            said = without_parameter(name, values, flattened(self.sweep.parameters))
            self._problems.add_example(place, said)

    def _is_excluded(self, values: Mapping[str, str]) -> bool:
        for place, entry in self.sweep.exclude:
            try:
                if all(
                    name in values
                    and any(parse_value(text).render(values) == values[name] for text in own)
                    for name, own in entry.items()
                ):
                    return True
            except KeyError as error:
                self._note_missing(place, error.args[0], {}, self._sometimes)
            except TemplateError as error:
                self._problems.add_example(place, str(error))
        return False

    def _skipped(self, values: Mapping[str, str]) -> str:
        """Why a combination is skipped, or nothing."""
        for condition in self.sweep.conditions:
            expression = condition.expression
            # A condition is not about points without a sub-parameter that it uses.
            if unknown := [name for name in expression.names if name not in values]:
                for name in filter(is_fact, unknown):
                    self._problems.add_example(condition.place, self._facts.problem(name))
                continue
            try:
                result = expression.result(values)
                if not isinstance(result, bool):
                    raise TemplateError(
                        f"{expression.with_values(values)}: true or false was expected, not "
                        f"{result!r}; compare it with something"
                    )
                if result is condition.when_true:
                    return self._reason(condition, values)
            except TemplateError as error:
                self._problems.add_example(condition.place, str(error))
        return ""

    def _reason(self, condition: Condition, values: Mapping[str, str]) -> str:
        if condition.reason:
            try:
                text = parse_value(condition.reason).render(values)
                return text.strip() or "no reason is given"
            except KeyError as error:
                self._note_missing(condition.place, error.args[0], values)
                return condition.reason
        names = dict.fromkeys(condition.expression.names)
        given = f" with {', '.join(f'{n}={values[n]}' for n in names)}" if names else ""
        text = condition.text.strip().strip("`")
        return f"`{text}` is {'true' if condition.when_true else 'false'}{given}"


def _union(parts: Iterable[_Part]) -> dict[str, Value]:
    return {name: value for part in parts for name, value in part.items()}


# ---- points


def make_points(
    batch: Batch,
    expansions: Sequence[Expansion],
    needed: Iterable[Use],
    facts: Given,
    problems: Problems,
) -> tuple[tuple[Point, ...], tuple[Skipped, ...]]:
    """The points of a batch, duplicates innermost, and the combinations that it skips.

    `expansions`: those of its sweeps; `needed`: the texts that must have a value at each point. If
    a problem is noted, the points are for further checks only: what has no value is missing or
    empty in them.
    """
    if _are_too_many(batch, expansions, problems):
        return (), ()
    texts = PointTexts(batch.job_name, batch.queue, batch.artifacts)
    phases = {"run": batch.run, "build": batch.build}
    # Other names have a value everywhere.
    uncertain = [(u.path, n) for u in needed for n in u.names if n in batch.sometimes or is_fact(n)]
    points, skipped = [], []
    for index, parameters, reason in _combinations(expansions, problems):
        if reason:
            skipped.append(Skipped(parameters, reason))
            continue
        values = {**facts.values, **parameters}
        for path, name in uncertain:
            if name not in values and name not in SUBSTITUTED:
                own = without_parameter(name, parameters, batch.parameters)
                problems.add_example(path, facts.problem(name) if is_fact(name) else own)
        requests = {key: request_of(phase.requested, values) for key, phase in phases.items()}
        for key, (_, wrong) in requests.items():
            for at, said in wrong.items():
                problems.add_example((*batch.path, key, *at), said)
        for duplicate in range(batch.duplicates):
            point = texts.point(parameters, batch.name, duplicate, index, batch.sometimes)
            for key, said in point.problems.items():
                problems.add_example((*batch.path, key), said)
            points.append(replace(point, request=requests["run"][0]))
    if not (points or skipped or problems):
        excluding = next(sweep for sweep in batch.sweeps if sweep.exclude)
        said = "nothing is left of the grid; remove an entry"
        problems.add((*excluding.place, "exclude"), said)
    return tuple(points), tuple(skipped)


def _are_too_many(batch: Batch, expansions: Iterable[Expansion], problems: Problems) -> bool:
    if batch.duplicates > MAXIMUM_DUPLICATES:
        told = f"{batch.duplicates} duplicates; at most {MAXIMUM_DUPLICATES} are possible"
        problems.add((*batch.path, "duplicates"), told)
        return True
    count = batch.duplicates * sum(each.count for each in expansions)
    if count > MAXIMUM_POINTS:
        told = str(count) if count <= _MOST_TOLD else f"more than {_MOST_TOLD}"
        said = f"{told} points; at most {MAXIMUM_POINTS} are possible"
        problems.add(batch.path, f"{said}; give the parameters fewer values")
        return True
    if count >= _MANY_POINTS:
        _log.warning("batch %s has %d points; planning them takes minutes", batch.name, count)
    return False


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
                    said = "is there twice: two values are the same when they are computed"
                problems.add_example(expansion.sweep.place, f"the point ({shown}) {said}")
    for parameters, (index, reason) in skipped.items():
        if parameters not in owners:
            yield index, parameters, reason


# ---- what was recorded: a rerun on another machine has the values of the machine of the record


def only_recorded(
    experiment: Experiment,
    recorded: Mapping[str, Sequence[Recorded]],
    below: str,
    requirements: Sequence[Requirement] = (),
) -> Experiment:
    """The experiment with these batches and points only, with all artifacts in the directory
    `below`, a template. If `below` has the code, so has each point, also where the batch has none.
    `requirements` replace recipes of the same dependency.

    Raises NameNotFoundError for a batch that the experiment does not have.
    """
    batches = {}
    for name, points in recorded.items():
        batch = experiment.batch(name)
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
    return replace(experiment, batches=FrozenDict(batches), remarks=())


def recorded_points(file: str, batch: Batch, names: Sequence[str], facts: Given) -> Iterator[Point]:
    """The points of a batch that were recorded.

    `names`: the parameters of the batch in the experiment `file`. Raises ConfigError for
    a point with others, or with values that no such point has.
    """
    texts = PointTexts(batch.job_name, batch.queue, batch.artifacts)
    for each in batch.recorded or ():
        where = f"{file}: batch '{batch.name}', record {each.identity}"
        differing = sorted(({*each.parameters} ^ {*names}) - batch.sometimes)
        if differing:
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
