"""The parameters of a batch: how they are written, and their combinations on a machine.

The combinations are counted before any is made: a range may have a billion values. A run makes its
own point only, and does not load this module.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from snakemake_kochi.errors import nearest
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.document import KeyPath, Problems, Scalar, is_null, section
from snakemake_kochi.project.expressions import (
    FACT,
    Expression,
    Template,
    TemplateError,
    is_fact,
    parse_expression,
    parse_value,
)
from snakemake_kochi.project.values import (
    BATCH_NAME,
    CODE,
    name_problem,
    value_problem,
)

MAXIMUM_POINTS = 1_000_000
CSV = "csv"
# The key for a file of commands, and the parameters that its lines give: number and text.
TASKS, TASK, COMMAND = "tasks", "task", "command"
# The arguments of the series, and their number at least and at most.
SERIES = {
    "range": ("[END], [START, END] or [START, END, STEP]", 1, 3),
    "pow2": ("[LAST] or [FIRST, LAST]", 1, 2),
    CSV: ("FILE or [FILE, COLUMN]", 1, 2),
}
# The facts that every machine has, if its scheduler can be asked.
STANDARD_FACTS = ("name", "cores", "sockets", "memory_mb", "gpus", "nodes")
_LARGEST = 10**18  # of a range, whose length is an index


# ---- data


@dataclass(frozen=True)
class ParameterValues:
    """What is written for a parameter, at the key `place`, for all machines (None) or some.

    With `series`, one of SERIES or TASKS, `values` are its arguments. `below`, if not empty, has
    the sub-parameters of each value. Nothing is substituted in values that are `literal`.
    """

    values: tuple[str, ...]
    machines: tuple[str, ...] | None = None
    series: str = ""
    below: tuple[Parameters, ...] = ()
    literal: bool = False
    place: KeyPath = field(default=(), compare=False)

    @property
    def has_several(self) -> bool:
        """Whether there may be several values."""
        return bool(self.series) or len(self.values) > 1

    @cached_property
    def parsed(self) -> tuple[Template | Expression, ...]:
        """The values, or the arguments of a series that may refer to something."""
        if self.literal:
            return tuple(Template((text,)) for text in self.values)
        parse = parse_expression if self.series else parse_value
        return () if self.series in (CSV, TASKS) else tuple(map(parse, self.values))

    @property
    def is_command(self) -> bool:
        """Whether the values are commands, which their tasks' numbers tell apart."""
        return self.series == TASKS and self.values[1] == COMMAND


Parameters = Mapping[str, tuple[ParameterValues, ...]]


def on_machine(choices: Iterable[ParameterValues], machine: str) -> tuple[ParameterValues, ...]:
    """The entry that counts on a machine, if any: the last one that matches."""
    return tuple(e for e in choices if e.machines is None or machine in e.machines)[-1:]


def flattened(
    parameters: Parameters, machine: str | None = None
) -> dict[str, tuple[ParameterValues, ...]]:
    """All entries of each parameter and sub-parameter, in the order of the file; with a machine,
    those that count there: the last that matches."""
    every: dict[str, tuple[ParameterValues, ...]] = {}
    for name, choices in parameters.items():
        if machine is not None:
            choices = on_machine(choices, machine)
        every[name] = every.get(name, ()) + choices
        for below in (each for choice in choices for each in choice.below):
            for inner, entries in flattened(below, machine).items():
                every[inner] = every.get(inner, ()) + entries
    return every


def names_used(parameters: Parameters) -> dict[str, list[str]]:
    """The names to which the values of each of these parameters refer."""
    return {
        name: [used for choice in choices for value in choice.parsed for used in value.names]
        for name, choices in parameters.items()
    }


def dependency_order(used: Mapping[str, Iterable[str]]) -> list[str]:
    """The names, each after those that it uses. Raises TemplateError, which names a cycle."""
    # Imported here: few processes of a run make a grid.
    from graphlib import CycleError, TopologicalSorter

    graph = {name: [other for other in names if other in used] for name, names in used.items()}
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        names = " -> ".join(error.args[1][::-1])
        said = f"parameters refer to each other in a circle: {names}; give one of them a value"
        raise TemplateError(said) from None


def without_parameter(missing: str, values: Mapping[str, str], own: Iterable[str]) -> str:
    """For people: a point has no such name. `own`: the parameters of the batch."""
    shown = ", ".join(f"{name}={values[name]}" for name in own if name in values)
    return (
        f"the point ({shown}) has no parameter '{missing}'; give it a value there, or one for all "
        "points in default_params"
    )


class Exclusion(NamedTuple):
    """An entry of `exclude`: it holds for one of its values for each of its parameters."""

    wanted: Mapping[str, Collection[str]]

    @property
    def names(self) -> Collection[str]:
        return self.wanted.keys()

    def holds(self, values: Mapping[str, str]) -> bool:
        return all(values[name] in texts for name, texts in self.wanted.items())


class Condition(NamedTuple):
    """At the key `place`, it skips a point if it is `when_true`, or if it is false. `reason`, for
    people; None: the point is not even told."""

    expression: Expression | Exclusion
    reason: Template | None
    when_true: bool
    place: KeyPath


@dataclass(frozen=True)
class Sweep:
    """A product of values, at the key `place`, and what limits it.

    `parameters` replace default ones. Those of each group in `zipped` go side by side.
    `has_code`: whether the batch says which code of the project its points run.
    """

    parameters: Parameters
    place: KeyPath
    zipped: tuple[tuple[str, ...], ...] = ()
    conditions: tuple[Condition, ...] = ()
    has_code: bool = False

    @property
    def called(self) -> str:
        """The sweep in messages about its batch."""
        is_grid = self.place[-2:-1] == ("grids",)
        return f"grids[{self.place[-1]}]" if is_grid else "the batch's params"


@dataclass(frozen=True)
class Given:
    """What determines points besides the text of an experiment: `facts` of the machine, or why some
    are not known (`without`), and the texts of files with values by their paths (`tables`)."""

    machine: str
    facts: Mapping[str, str] = FrozenDict()
    without: str = ""
    tables: Mapping[str, str] = FrozenDict()

    @cached_property
    def values(self) -> Mapping[str, str]:
        """The facts by the names that values and conditions have for them."""
        facts = {**self.facts, "name": self.machine}
        return {f"{FACT}{name}": value for name, value in facts.items()}

    def problem(self, name: str) -> str:
        """For people: there is no such fact."""
        short = name.removeprefix(FACT)
        said = f": {self.without};" if self.without else ";"
        if short not in STANDARD_FACTS:
            said = f", {nearest(short, {*self.facts, *STANDARD_FACTS})}"
            said += " Or" if said.endswith("?") else ";"
        write = f"machines: {{{self.machine}: {{facts: {{{short}: VALUE}}}}}}"
        known = f"${name} is not known for machine '{self.machine}'"
        return f"{known}{said} write into kochi.yaml: {write}"


# ---- reading

_ENTRIES = "the entries must be either all values or all {value: ..., machines: [...]}"
_BELOW = "a value's own parameters were expected, such as {a: {x: [1, 2]}, b: {}}"


class SweepReader:
    """Reads the default parameters and the sweeps of one document, noting problems."""

    def __init__(self, defaults: Mapping[str, Any], problems: Problems) -> None:
        self._defaults, self._problems = defaults, problems

    def defaults(self) -> FrozenDict[str, tuple[ParameterValues, ...]]:
        """The default parameters, with one value in each entry."""
        read: dict[str, tuple[ParameterValues, ...]] = {}
        for name, value in self._defaults.items():
            path = ("default_params", name)
            read[name] = self._choices(value, path)
            is_list = isinstance(value, list) and not isinstance(value[0], dict)
            if is_list or any(each.has_several or each.below for each in read[name]):
                said = "a single value was expected, not a list; lists go into the params of a "
                self._problems.add(path, f"{said}batch")
        return FrozenDict(read)

    def sweeps(self, data: Mapping[str, Any], path: KeyPath) -> tuple[Sweep, ...]:
        """What a batch at a key path combines: its grid or its grids."""
        common = self._sweep(data, path, Sweep({}, path))
        every = enumerate(data.get("grids", ()))
        grids = [self._sweep(each, (*path, "grids", index), common) for index, each in every]
        return tuple(grids) or (common,)

    def _sweep(self, data: Mapping[str, Any], path: KeyPath, common: Sweep) -> Sweep:
        """A grid; `common`: what it has besides."""
        params, parameters = section(data, "params"), dict(common.parameters)
        zipped = (*common.zipped, *self._zipped(data.get("zip", []), (*path, "zip")))
        repeated = {name for group in zipped for name in group}
        has_own = CODE in data and not is_null(data[CODE])  # of grids, only the batch has this key
        if has_own:
            parameters[CODE] = self._choices(data[CODE], (*path, CODE), CODE in repeated)
        if (has_own or common.has_code) and CODE in {**params, **self._defaults}:
            said = "'code' is also a parameter of this batch; rename that"
            self._problems.add((*path, CODE), said)
        for name, value in params.items():
            parameters[name] = self._choices(value, (*path, "params", name), name in repeated)
        if TASKS in data:
            place = (*path, TASKS)
            for name in {TASK, COMMAND} & {*parameters, *self._defaults}:
                said = f"'{name}' is also a parameter of this batch; rename that"
                self._problems.add(place, said)
            with self._problems.noting(place):
                file = _file_of_values(data[TASKS])
                for name in (TASK, COMMAND):
                    parameters[name] = (ParameterValues((file, name), series=TASKS, place=place),)
                zipped = (*zipped, (TASK, COMMAND))
        own = (*self._excluded(data, path), *self._conditions(data, path))
        # What is excluded does not have to fulfil the others.
        conditions = sorted((*common.conditions, *own), key=lambda each: each.reason is not None)
        has_code = has_own or common.has_code
        return Sweep(parameters, path, zipped, tuple(conditions), has_code)

    def _zipped(self, groups: list[Any], path: KeyPath) -> Iterator[tuple[str, ...]]:
        is_one = not any(isinstance(each, list) for each in groups)
        taken: list[str] = []
        for index, group in enumerate([groups] if is_one and groups else groups):
            said = "two names or more were expected" if len(group) < 2 else ""
            if not isinstance(group, list):
                said = "a list of names, or a list of such lists, was expected"
            elif twice := [each for each in group if [*taken, *group].count(each) > 1]:
                said = f"'{twice[0]}' is zipped twice; name it once"
            if said:
                self._problems.add(path if is_one else (*path, index), said)
            else:
                taken += group
                yield tuple(group)

    def _excluded(self, data: Mapping[str, Any], path: KeyPath) -> Iterator[Condition]:
        """Each entry of `exclude`, as a condition."""
        for index, entry in enumerate(data.get("exclude", [])):
            place, wanted = (*path, "exclude", index), {}
            if not entry:
                self._problems.add(place, "this leaves out all points; name values of parameters")
            for name, value in entry.items():
                try:
                    values = map(parse_value, self._texts(value, (*place, name), True))
                    wanted[name] = tuple(each.render({}) for each in values)
                except KeyError:
                    said = "a value was expected; for one that depends on others, use 'when'"
                    self._problems.add((*place, name), said)
            yield Condition(Exclusion(wanted), None, True, place)

    def _conditions(self, data: Mapping[str, Any], path: KeyPath) -> Iterator[Condition]:
        for key in [each for each in ("when", "skip_if") if each in data]:
            value, at = data[key], (*path, key)
            listed = isinstance(value, list)
            for index, entry in enumerate(value if listed else [value]):
                place = (*at, index) if listed else at
                written = entry if isinstance(entry, dict) else {"condition": entry}
                keys = (*place, "condition") if isinstance(entry, dict) else place
                with self._problems.noting((*place, "reason")):
                    reason = parse_value(written.get("reason", ""))
                    with self._problems.noting(keys):
                        expression = parse_expression(text := written["condition"].value_text)
                        if "reason" not in written:
                            reason = _reason(text, expression, key == "skip_if")
                        yield Condition(expression, reason, key == "skip_if", keys)

    def _value(self, scalar: Scalar, path: KeyPath) -> str | None:
        """The text of a value, None if it is wrong."""
        text = scalar.value_text
        with self._problems.noting(path):
            if wrong := value_problem(text):
                raise TemplateError(wrong)
            if not (value := parse_value(text)).names:
                value.render({})
            return text
        return None

    def _texts(self, value: Any, path: KeyPath, repeated: bool) -> tuple[str, ...]:
        """The texts of a value or a list. `repeated`: a value may occur several times."""
        if not isinstance(value, list):
            return (self._value(value, path) or "",)
        every, texts = set[str](), list[str]()
        for index, scalar in enumerate(value):
            text = self._value(scalar, (*path, index))
            if text in every and not repeated:
                said = f"the value '{text}' is in the list twice; to repeat runs, use 'duplicates'"
                self._problems.add((*path, index), said)
            elif text is not None:
                every.add(text)
                texts.append(text)
        return tuple(texts)

    def _choices(
        self, value: Any, path: KeyPath, repeated: bool = False
    ) -> tuple[ParameterValues, ...]:
        """What is written for a parameter with this key."""
        if not (isinstance(value, list) and any(isinstance(entry, dict) for entry in value)):
            return (replace(self._entry(value, path, str(path[-1]), repeated), place=path),)
        choices = []
        for index, entry in enumerate(value):
            if not isinstance(entry, dict):
                self._problems.add((*path, index), _ENTRIES)
                continue
            named = entry.get("machines")
            names = named if isinstance(named, list) else [named]
            machines = None if named is None or is_null(named) else tuple(map(str, names))
            own = self._entry(entry["value"], (*path, index, "value"), str(path[-1]), repeated)
            choices.append(replace(own, machines=machines, place=path))
        return tuple(choices)

    def _entry(self, value: Any, path: KeyPath, name: str, repeated: bool) -> ParameterValues:
        """What is written at a key path for the parameter of this name."""
        if not isinstance(value, dict):
            return ParameterValues(self._texts(value, path, repeated))
        kind, *others = value or [""]
        if kind and not others and not _is_below(value[kind]):
            with self._problems.noting((*path, kind)):
                return ParameterValues(_arguments(kind, value[kind], name), series=kind)
            return ParameterValues(("",))
        if "value" in value and not value.keys() - {"value", "machines"}:
            self._problems.add(path, "write this in a list: [{value: ..., machines: [...]}]")
            return ParameterValues(("",))
        if not value:
            self._problems.add(path, f"the mapping is empty; {_BELOW}")
        below = []
        for text, own in value.items():
            at, inner = (*path, text), section(value, text)
            if not _is_below(own):
                self._problems.add(at, f"after the value '{text}', {_BELOW}")
            for parameter in inner:
                if wrong := name_problem(parameter):
                    self._problems.add((*at, parameter), wrong)
            below.append(FrozenDict((n, self._choices(v, (*at, n))) for n, v in inner.items()))
        texts = (self._value(Scalar(text), (*path, text)) or "" for text in value)
        return ParameterValues(tuple(texts), below=tuple(below))


def _is_below(value: Any) -> bool:
    """Whether this is written after a value with parameters of its own."""
    return isinstance(value, dict) or is_null(value)


def _reason(text: str, expression: Expression, when_true: bool) -> Template:
    """Why a point is skipped whose condition has no reason."""
    names = tuple(dict.fromkeys(expression.names))
    said = f"`{text.strip().strip('`')}` is {'true' if when_true else 'false'}"
    starts = [f"{', ' if index else f'{said} with '}{name}=" for index, name in enumerate(names)]
    return Template((*starts, ""), names) if names else Template((said,))


# ---- series


def _arguments(kind: str, written: Any, name: str) -> tuple[str, ...]:
    """The arguments of a series for a parameter of that name. Raises TemplateError."""
    texts = [word.value_text for word in (written if isinstance(written, list) else [written])]
    if kind not in SERIES:
        raise TemplateError(
            f"there is no series '{kind}', {nearest(kind, SERIES)} (or, for a value with "
            f"parameters of its own, write them as a mapping: {kind}: {{x: 1}})"
        )
    form, least, most = SERIES[kind]
    if not least <= len(texts) <= most:
        raise TemplateError(f"{kind}: {form} was expected, not {len(texts)} values")
    if kind == CSV:
        return (_file_of_values(texts[0]), [*texts, name][1])
    for text in texts:
        parse_expression(text)
    return tuple(texts)


def _file_of_values(text: str) -> str:
    """The path of a file in the project. Raises TemplateError."""
    if text[:1] in ("", "/") or ".." in text.split("/"):
        raise TemplateError(f"{text!r}: a path relative to the top of the project was expected")
    return text


def make_series(kind: str, arguments: Sequence[Any]) -> Sequence[int]:
    """The numbers of a `range`, as Python's, or of `pow2`, with both ends. Raises TemplateError."""
    for each in arguments:
        if isinstance(each, bool | str) or each % 1 != 0 or abs(each) > _LARGEST:
            said = f"a whole number was expected, at most 10**18, not {str(each)[:200]}"
            raise TemplateError(f"{kind}: {said}")
    numbers = [int(each) for each in arguments]
    made: Sequence[int] = ()
    if kind == "pow2" and (first := (1, *numbers)[-2]) > 0:
        last = max(0, numbers[-1])
        made = [2**n for n in range((first - 1).bit_length(), last.bit_length())]
    elif kind == "range" and numbers[2:] != [0]:
        made = range(*numbers)
    if not made:
        given = ", ".join(map(str, numbers))
        raise TemplateError(
            f"{kind}: there is no value in [{given}]; {SERIES[kind][0]} was expected"
        )
    return made


def column_of(file: str, text: str, column: str) -> list[str]:
    """The texts in a column of a CSV file, whose first row names its columns. Raises TemplateError,
    with the line."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        rows = [(reader.line_num, [word.strip() for word in row]) for row in reader if row]
    except csv.Error as error:
        raise TemplateError(f"{file}:{reader.line_num}: not valid CSV: {error}") from error
    if len(rows) < 2:
        raise TemplateError(f"{file}: there is no row with values below the names of the columns")
    names = rows[0][1]
    if names.count(column) != 1:
        what = "are several columns" if column in names else "is no column"
        raise TemplateError(f"{file}:1: there {what} '{column}', {nearest(column, names)}")
    for line, row in rows:
        wrong = f"{len(names)} fields were expected as in the first line, not {len(row)}"
        if len(row) != len(names) or (wrong := value_problem(row[names.index(column)]) or ""):
            raise TemplateError(f"{file}:{line}: {wrong}")
    return [row[names.index(column)] for _, row in rows[1:]]


def commands_of(file: str, text: str, column: str) -> list[str]:
    """The commands of a file with one per line, or the numbers of their lines. Raises
    TemplateError, with the line."""
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), 1)]
    tasks = [(number, line) for number, line in lines if line and not line.startswith("#")]
    if not tasks:
        raise TemplateError(f"{file}: there is no command in it")
    for number, line in tasks:
        if wrong := value_problem(line):
            raise TemplateError(f"{file}:{number}: {wrong}")
    return [line if column == COMMAND else str(number) for number, line in tasks]


# ---- combinations

_Part = Mapping[str, Template | Expression]
# One factor of a product: its number of alternatives, at most, and what makes them.
_Axis = tuple[int, Callable[[], Iterable[_Part]]]


class Expansion:
    """The combinations of one sweep on a machine. `count` is their number, at most.

    Notes problems: of values that do not exist when it is made, and of values that cannot be
    computed when it is iterated. There are no cycles: `check_references` has looked for them.
    `batch` is the value of `${batch_name}`; `sometimes` are the parameters that only some points of
    the batch have.
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
        self.sweep, self._facts = sweep, facts
        self._problems, self._sometimes = problems, sometimes
        self._replaceable = {n: c for n, c in defaults.items() if n not in sweep.parameters}
        parameters = {**self._replaceable, **sweep.parameters}
        entries = flattened(parameters, facts.machine)
        self._places = {name: each[0].place for name, each in flattened(parameters).items() if each}
        # What the numbers of series may use: the parameters with one value in all combinations.
        self._known = {BATCH_NAME: batch, **facts.values}
        self._order = []  # the others
        for name in dependency_order(names_used(entries)):
            own = entries[name] if name in parameters else ()
            if len(own) == 1 and not (own[0].below or own[0].has_several):
                with suppress(TemplateError, KeyError):  # noted with the combinations
                    if not value_problem(text := own[0].parsed[0].render(self._known)):
                        self._known[name] = text
                        continue
            self._order.append(name)
        self.count, self._make = self._product(parameters, sweep.zipped)

    def _product(self, parameters: Parameters, zipped: Sequence[Sequence[str]] = ()) -> _Axis:
        """In the order of the file, zipped parameters where the first of them is."""
        chosen: dict[str, ParameterValues] = {}
        for name, choices in parameters.items():
            if here := on_machine(choices, self._facts.machine):
                chosen[name] = here[0]
            else:
                others = ", ".join(sorted({m for each in choices for m in each.machines or ()}))
                said = f"'{name}' has no value on machine '{self._facts.machine}', only on {others}"
                self._problems.add(choices[0].place, f"{said}; add an entry without 'machines'")
        groups = {name: group for group in zipped for name in group}
        factors = dict.fromkeys(tuple(groups.get(name, (name,))) for name in chosen)
        axes = [self._axis(names, chosen) for names in factors]
        return math.prod(size for size, _ in axes), lambda: map(
            self._union, itertools.product(*(make() for _, make in axes))
        )

    def _axis(self, names: Sequence[str], chosen: Mapping[str, ParameterValues]) -> _Axis:
        """Of one parameter, or of several side by side. What is wrong is noted."""
        there = [chosen[name] for name in names if name in chosen]
        columns = [self._column(each, len(names) > 1) for each in there]
        sizes = {name: len(column) for name, column in zip(names, columns, strict=False)}
        wrong = ""
        if missing := [name for name in names if name not in chosen]:
            wrong = f"there is no parameter '{missing[0]}' here, {nearest(missing[0], chosen)}"
        elif names[1:] and any(each.below for each in there):
            name = next(name for name in names if chosen[name].below)
            wrong = f"'{name}' has values with their own parameters, which cannot be zipped"
        elif all(columns) and len({*sizes.values()}) > 1:
            told = ", ".join(f"'{name}' has {size}" for name, size in sizes.items())
            wrong = f"zipped parameters must have equally many values, but {told}; add the missing "
            wrong += "ones, or remove a name"
        if wrong:
            self._problems.add((*self.sweep.place, "zip"), wrong)
        if wrong or not all(columns):
            return 1, lambda: [{}]
        branches = [self._product(below) for below in there[0].below]

        def make() -> Iterator[_Part]:
            for index, row in enumerate(zip(*columns, strict=True)):
                head = {name: _template(value) for name, value in zip(names, row, strict=True)}
                for part in branches[index][1]() if branches else ({},):
                    yield self._union((head, part))

        return sum(size for size, _ in branches) if branches else len(columns[0]), make

    def _column(self, choice: ParameterValues, repeated: bool) -> Sequence[Any]:
        """The values, none if a series is wrong; `repeated`: of a file, also those that occur
        several times."""
        if not choice.series:
            return choice.parsed
        with self._problems.noting(choice.place):
            if choice.series not in (CSV, TASKS):
                return make_series(choice.series, [self._argument(text) for text in choice.values])
            file, column = choice.values
            if file not in self._facts.tables:
                said = f"there is no file '{file}' in the project; give its path from the top of "
                raise TemplateError(f"{said}the project, and make sure that git does not ignore it")
            read = column_of if choice.series == CSV else commands_of
            texts = read(file, self._facts.tables[file], column)
            return texts if repeated else list(dict.fromkeys(texts))
        return ()

    def _argument(self, text: str) -> Any:
        expression = parse_expression(text)
        for name in expression.names:
            if name not in self._known:
                said = f"`{expression.source}`: '{name}' has several values here, and a series has "
                said += "one length; write the longest series, and leave points out by 'when'"
                raise TemplateError(self._facts.problem(name) if is_fact(name) else said)
        return expression.result(self._known)

    def __iter__(self) -> Iterator[tuple[FrozenDict[str, str], str | None]]:
        """Each combination, resolved, and why it is skipped, or None. The last parameter varies
        fastest. A parameter whose value cannot be computed is noted and left out, with those that
        use it."""
        for templates in self._make():
            values = dict(self._known)
            for name in self._order:
                if name in templates:
                    try:
                        text = templates[name].render(values)
                        if wrong := value_problem(text):
                            raise TemplateError(wrong)
                        values[name] = text
                    except (KeyError, TemplateError) as error:
                        # One that has no value was noted.
                        if str(error.args[0]) not in templates:
                            self._note(self._places[name], error, values)
            if (reason := self._skipped(values)) != "":
                named = ((name, values[name]) for name in self._places if name in values)
                yield FrozenDict(named), reason

    def _union(self, parts: Sequence[_Part]) -> _Part:
        union = {name: value for part in parts for name, value in part.items()}
        if len(union) < sum(map(len, parts)):
            every = [name for part in parts for name in part if name not in self._replaceable]
            for name in [name for name in union if every.count(name) > 1]:
                said = f"'{name}' is twice among the parameters of a point; rename one"
                self._problems.add(self._places[name], said)
        return union

    def _note(
        self, place: KeyPath, error: KeyError | TemplateError, values: Mapping[str, str]
    ) -> None:
        """Note what is wrong with a value or a condition of a point."""
        said, name = str(error), str(error.args[0])
        if isinstance(error, KeyError):
            said = without_parameter(name, values, flattened(self.sweep.parameters))
            said = self._facts.problem(name) if is_fact(name) else said
        if not isinstance(error, KeyError) or is_fact(name) or name in self._sometimes:
            self._problems.add_example(place, said)

    def _skipped(self, values: Mapping[str, str]) -> str | None:
        """Why a combination is skipped, "" if it is excluded; or None."""
        for expression, reason, when_true, place in self.sweep.conditions:
            # A condition is not about points without a sub-parameter that it uses.
            if any(name not in values and not is_fact(name) for name in expression.names):
                continue
            try:
                if expression.holds(values) is when_true:
                    if reason is None:
                        return ""
                    return reason.render(values).strip() or "no reason is given"
            except (KeyError, TemplateError) as error:
                self._note(place, error, values)
        return None


def _template(value: Any) -> Template | Expression:
    """Nothing is substituted in the values of a series."""
    return value if isinstance(value, Template | Expression) else Template((str(value),))
