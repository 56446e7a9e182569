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
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from snakemake_kochi.errors import nearest
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.document import KeyPath, Problems, Scalar, chain, is_null, section
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
    looks_like_list,
    name_problem,
    value_problem,
)

MAXIMUM_POINTS = 1_000_000
CSV = "csv"
# The arguments of the series, and their number at least and at most.
SERIES = {
    "range": ("[END], [START, END] or [START, END, STEP]", 1, 3),
    "pow2": ("[LAST] or [FIRST, LAST]", 1, 2),
    CSV: ("FILE or [FILE, COLUMN]", 1, 2),
}
# The facts that every machine has, if its scheduler can be asked.
STANDARD_FACTS = ("name", "cores", "sockets", "memory_mb", "gpus", "nodes")
_LARGEST = 2**62  # of a range, whose length is an index


# ---- data


@dataclass(frozen=True)
class ParameterValues:
    """Values of a parameter, on all machines (None) or some.

    With `series`, one of SERIES, `values` are its arguments: expressions, or for `csv` the path of
    the file in the project and the column. `below` is either empty, or has the sub-parameters that
    come with each of the values. Nothing is substituted in values that are `literal`. `place` is
    the key of the parameter in the file.
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
        return () if self.series == CSV else tuple(map(parse, self.values))


Parameters = Mapping[str, tuple[ParameterValues, ...]]


def select(choices: Iterable[ParameterValues], machine: str) -> ParameterValues | None:
    """The entry that counts on a machine: the last one that matches."""
    matching = [each for each in choices if each.machines is None or machine in each.machines]
    return matching[-1] if matching else None


def flattened(
    parameters: Parameters, machine: str | None = None
) -> dict[str, tuple[ParameterValues, ...]]:
    """All entries of each parameter, and of each sub-parameter, in the order of the file; with a
    machine, those that count on it."""
    every: dict[str, tuple[ParameterValues, ...]] = {}
    for name, choices in parameters.items():
        if machine is not None:
            chosen = select(choices, machine)
            choices = () if chosen is None else (chosen,)
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
    """The names in an order in which each comes after those that it uses.

    Raises TemplateError for a cycle, naming it. Used names that have no entry are left out.
    """
    # Imported here: few processes of a run make a grid.
    from graphlib import CycleError, TopologicalSorter

    graph = {name: [other for other in names if other in used] for name, names in used.items()}
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        names = chain(error.args[1][::-1])
        said = f"parameters refer to each other in a circle: {names}; give one of them a value"
        raise TemplateError(said) from None


def without_parameter(missing: str, values: Mapping[str, str], own: Iterable[str]) -> str:
    """What is wrong with a name that a point does not have, for people. `own`: the parameters of
    the batch."""
    shown = ", ".join(f"{name}={values[name]}" for name in own if name in values)
    return (
        f"the point ({shown}) has no parameter '{missing}'; give it a value there, or one for all "
        "points in default_params"
    )


class Condition(NamedTuple):
    """A condition that decides whether a point is run: it is skipped `when_true`, or when it is
    false. `reason`: a value text for people, or empty. `place`: its key in the file."""

    text: str
    reason: str
    when_true: bool
    place: KeyPath

    @property
    def expression(self) -> Expression:
        return parse_expression(self.text)

    def reason_for(self, values: Mapping[str, str]) -> str:
        """Why a point is skipped. Raises KeyError for a name that it does not have."""
        if self.reason:
            return parse_value(self.reason).render(values).strip() or "no reason is given"
        names = dict.fromkeys(self.expression.names)
        given = f" with {', '.join(f'{n}={values[n]}' for n in names)}" if names else ""
        return f"`{self.text.strip().strip('`')}` is {'true' if self.when_true else 'false'}{given}"


@dataclass(frozen=True)
class Sweep:
    """A product of values, and what limits it.

    `parameters` are in addition to the default ones, which they replace. The parameters of each
    group in `zipped` go side by side. A combination that agrees with an entry of `exclude`, which
    has some values for some parameters, is left out. `place` is its key in the file. `has_code`:
    whether the batch says which code of the project its points run.
    """

    parameters: Parameters
    place: KeyPath
    zipped: tuple[tuple[str, ...], ...] = ()
    exclude: tuple[tuple[KeyPath, Mapping[str, tuple[str, ...]]], ...] = ()
    conditions: tuple[Condition, ...] = ()
    has_code: bool = False

    @property
    def called(self) -> str:
        """The sweep in messages about its batch."""
        is_grid = self.place[-2:-1] == ("grids",)
        return f"grids[{self.place[-1]}]" if is_grid else "the batch's params"


@dataclass(frozen=True)
class Given:
    """What determines points besides the text of an experiment, frozen with it.

    `facts`: of the machine, by name; `without`: why its scheduler's are not known, for people.
    `tables`: the texts of CSV files, by their paths in the project.
    """

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
        """What is wrong with such a name that is not known, for people."""
        short = name.removeprefix(FACT)
        facts = f"{{facts: {{{short}: VALUE}}}}"
        write = f"write into kochi.yaml: machines: {{{self.machine}: {facts}}}"
        if short in STANDARD_FACTS:
            why = f": {self.without}" if self.without else ""
            return f"${name} is not known for machine '{self.machine}'{why}; {write}"
        said = nearest(short, {*self.facts, *STANDARD_FACTS})
        also = " Or " if said.endswith("?") else "; or "
        return f"machine '{self.machine}' has no fact '{short}', {said}{also}{write}"


# ---- reading

_ENTRIES = "the entries must be either all values or all {value: ..., machines: [...]}"
_BELOW = "a value's own parameters were expected, such as {a: {x: [1, 2]}, b: {}}"


class SweepReader:
    """Reads the default parameters and the sweeps of one document, noting problems."""

    def __init__(self, defaults: Mapping[str, Any], problems: Problems, remarks: Problems) -> None:
        self._defaults, self._problems, self._remarks = defaults, problems, remarks

    def defaults(self) -> FrozenDict[str, tuple[ParameterValues, ...]]:
        """The default parameters, with one value in each entry."""
        read: dict[str, tuple[ParameterValues, ...]] = {}
        for name, value in self._defaults.items():
            place: KeyPath = ("default_params", name)
            entries = value if isinstance(value, list) else [{"value": value}]
            written = [each["value"] if isinstance(each, dict) else [each] for each in entries]
            if any(isinstance(each, list | dict) for each in written):
                said = "a single value was expected, not a list"
                self._problems.add(place, f"{said}; lists go into the params of a batch")
                read[name] = ()
            else:
                read[name] = self._choices(value, place)
        return FrozenDict(read)

    def sweeps(self, data: Mapping[str, Any], path: KeyPath) -> tuple[Sweep, ...]:
        """What a batch at a key path combines: its grid or its grids."""
        common = self._sweep(data, path, Sweep({}, path))
        return tuple(
            self._sweep(each, (*path, "grids", index), common)
            for index, each in enumerate(data.get("grids", ()))
        ) or (common,)

    def sometimes(self, sweeps: tuple[Sweep, ...]) -> frozenset[str]:
        """The parameters that only some points of these sweeps have."""
        anywhere = {name for sweep in sweeps for name in flattened(sweep.parameters)}
        always = set.intersection(*({*sweep.parameters} for sweep in sweeps))
        return frozenset(anywhere - always - {*self._defaults})

    def _sweep(self, data: Mapping[str, Any], path: KeyPath, common: Sweep) -> Sweep:
        """A grid; `common`: what it has besides."""
        params, has_code = section(data, "params"), common.has_code
        zipped = (*common.zipped, *self._zipped(data.get("zip", []), (*path, "zip")))
        repeated = {name for group in zipped for name in group}
        parameters = dict(common.parameters)
        # Of grids, only the batch has this key.
        if CODE in data and not is_null(data[CODE]):
            has_code = True
            parameters[CODE] = self._choices(data[CODE], (*path, CODE), CODE in repeated)
        if has_code and CODE in {**params, **self._defaults}:
            said = "'code' is also a parameter of this batch; rename that"
            self._problems.add((*path, CODE), said)
        for name, value in params.items():
            parameters[name] = self._choices(value, (*path, "params", name), name in repeated)
        exclude = data.get("exclude", [])
        return Sweep(
            parameters=parameters,
            place=path,
            zipped=zipped,
            exclude=(*common.exclude, *self._exclude(exclude, (*path, "exclude"))),
            conditions=(*common.conditions, *self._conditions(data, path)),
            has_code=has_code,
        )

    def _zipped(self, groups: list[Any], path: KeyPath) -> Iterator[tuple[str, ...]]:
        is_one = not any(isinstance(each, list) for each in groups)
        taken: list[str] = []
        for index, group in enumerate([groups] if is_one and groups else groups):
            place = path if is_one else (*path, index)
            if not isinstance(group, list):
                said = "a list of names, or a list of such lists, was expected"
                self._problems.add(place, said)
            elif twice := [each for each in group if [*taken, *group].count(each) > 1]:
                self._problems.add(place, f"'{twice[0]}' is zipped twice; name it once")
            elif len(group) < 2:
                self._problems.add(place, "two names or more were expected")
            else:
                taken += group
                yield tuple(group)

    def _exclude(
        self, entries: list[dict[str, Any]], path: KeyPath
    ) -> Iterator[tuple[KeyPath, Mapping[str, tuple[str, ...]]]]:
        for index, entry in enumerate(entries):
            place, texts = (*path, index), dict[str, tuple[str, ...]]()
            if not entry:
                self._problems.add(place, "this leaves out all points; name values of parameters")
            for name, value in entry.items():
                templates = list(map(parse_value, self._texts(value, (*place, name), True)))
                if any(each.names for each in templates):
                    said = "a value was expected; for one that depends on others, use 'when'"
                    self._problems.add((*place, name), said)
                else:
                    texts[name] = tuple(each.render({}) for each in templates)
            yield place, FrozenDict(texts)

    def _conditions(self, data: Mapping[str, Any], path: KeyPath) -> Iterator[Condition]:
        for key in ("when", "skip_if"):
            value, place = data.get(key, []), (*path, key)
            entries = enumerate(value) if isinstance(value, list) else [(-1, value)]
            for index, entry in entries:
                at, reason = (*place, index) if index >= 0 else place, ""
                try:
                    if isinstance(entry, dict):
                        at, reason = (*at, "reason"), entry.get("reason", "")
                        parse_value(reason)
                        at, entry = (*at[:-1], "condition"), entry["condition"]
                    parse_expression(entry.value_text)
                except TemplateError as error:
                    self._problems.add(at, str(error))
                else:
                    yield Condition(entry.value_text, str(reason), key == "skip_if", at)

    def _value(self, scalar: Scalar, path: KeyPath) -> str | None:
        text = scalar.value_text
        wrong = value_problem(text)
        try:
            value = parse_value(text)
            if not value.names:
                value.render({})
        except TemplateError as error:
            wrong = str(error)
        if wrong:
            self._problems.add(path, wrong)
        if scalar.is_plain and looks_like_list(text):
            where = "" if path[0] == "batches" else " in the params of a batch"
            said = f'several values are written [{text}]{where}, a text "{text}"'
            self._remarks.add(path, f"'{text}' is one text; {said}")
        return None if wrong else text

    def _texts(self, value: Any, path: KeyPath, repeated: bool) -> tuple[str, ...]:
        """The texts of a value or a list. `repeated`: a value may occur several times."""
        if not isinstance(value, list):
            return (self._value(value, path) or "",)
        texts: dict[str, None] = {}
        every = [self._value(scalar, (*path, index)) for index, scalar in enumerate(value)]
        for index, text in enumerate(every):
            if text in texts and not repeated:
                said = f"the value '{text}' is in the list twice; to repeat runs, use 'duplicates'"
                self._problems.add((*path, index), said)
            elif text is not None:
                texts[text] = None
        return tuple(text for text in every if text is not None) if repeated else tuple(texts)

    def _choices(
        self, value: Any, path: KeyPath, repeated: bool = False
    ) -> tuple[ParameterValues, ...]:
        """What is written for a parameter with this key."""
        if not isinstance(value, list) or not any(isinstance(entry, dict) for entry in value):
            return (self._entry(value, path, path, None, repeated),)
        choices = []
        for index, entry in enumerate(value):
            if not isinstance(entry, dict):
                self._problems.add((*path, index), _ENTRIES)
                continue
            named = entry.get("machines")
            names = named if isinstance(named, list) else [named]
            machines = None if named is None or is_null(named) else tuple(map(str, names))
            at = (*path, index, "value")
            choices.append(self._entry(entry["value"], path, at, machines, repeated))
        return tuple(choices)

    def _entry(
        self,
        value: Any,
        place: KeyPath,
        path: KeyPath,
        machines: tuple[str, ...] | None,
        repeated: bool,
    ) -> ParameterValues:
        """What is written for the parameter at `place`, at a key path, on some machines or all."""
        if not isinstance(value, dict):
            return ParameterValues(self._texts(value, path, repeated), machines, place=place)
        if len(value) == 1 and not _is_below(arguments := next(iter(value.values()))):
            kind = next(iter(value))
            written = self._arguments(kind, arguments, str(place[-1]), path)
            return ParameterValues(written or ("",), machines, kind if written else "", place=place)
        if "value" in value and not value.keys() - {"value", "machines"}:
            self._problems.add(path, "write this in a list: [{value: ..., machines: [...]}]")
            return ParameterValues(("",), machines, place=place)
        if not value:
            self._problems.add(path, f"the mapping is empty; {_BELOW}")
        texts, below = [], []
        for text, own in value.items():
            at = (*path, text)
            if not _is_below(own):
                self._problems.add(at, f"after the value '{text}', {_BELOW}")
            texts.append(self._value(Scalar(text), at) or "")
            inner = own if isinstance(own, dict) else {}
            for name in inner:
                if wrong := name_problem(name):
                    self._problems.add((*at, name), wrong)
            choices = {name: self._choices(each, (*at, name)) for name, each in inner.items()}
            below.append(FrozenDict(choices))
        return ParameterValues(tuple(texts), machines, below=tuple(below), place=place)

    def _arguments(self, kind: str, written: Any, name: str, path: KeyPath) -> tuple[str, ...]:
        """The arguments of a series for a parameter of that name; none if they are wrong."""
        texts = [word.value_text for word in (written if isinstance(written, list) else [written])]
        wrong = ""
        if kind not in SERIES:
            wrong = (
                f"there is no series '{kind}', {nearest(kind, SERIES)} (or, for a value with "
                f"parameters of its own, write them as a mapping: {kind}: {{x: 1}})"
            )
        elif not SERIES[kind][1] <= len(texts) <= SERIES[kind][2]:
            given = f"not {len(texts)} value{'s' if len(texts) > 1 else ''}"
            wrong = f"{kind}: {SERIES[kind][0]} was expected, {given}"
        elif kind == CSV:
            file = PurePosixPath(texts[0])
            if file.is_absolute() or ".." in file.parts or not texts[0]:
                wrong = f"{texts[0]!r}: a path relative to the top of the project was expected"
            texts = [*texts, name][:2]
        else:
            try:
                for text in texts:
                    parse_expression(text)
            except TemplateError as error:
                wrong = str(error)
        if wrong:
            self._problems.add((*path, kind), wrong)
        return () if wrong else tuple(texts)


def _is_below(value: Any) -> bool:
    """Whether this is written after a value with parameters of its own."""
    return isinstance(value, dict) or is_null(value)


# ---- series


def make_series(kind: str, arguments: Sequence[Any]) -> Sequence[int]:
    """The numbers of a `range`, as Python's, or of `pow2`, with both ends. Raises TemplateError."""
    numbers = []
    for each in arguments:
        if isinstance(each, bool | str) or each % 1 != 0:
            raise TemplateError(f"{kind}: a whole number was expected, not {str(each)[:200]}")
        numbers.append(int(each))
    if kind == "range":
        if numbers[2:] == [0] or max(map(abs, numbers)) > _LARGEST:
            said = "a STEP other than 0" if numbers[2:] == [0] else f"at most {_LARGEST}"
            raise TemplateError(f"range: {said} was expected")
        made: Sequence[int] = range(*numbers)
    else:
        first, last = (1, *numbers)[-2:]
        if first < 1:
            raise TemplateError(f"pow2: a FIRST above 0 was expected, not {first}")
        made = [2**n for n in range((first - 1).bit_length(), max(0, last).bit_length())]
    if not made:
        given = ", ".join(map(str, numbers))
        raise TemplateError(f"{kind}: there is no value in [{given}], which is {SERIES[kind][0]}")
    return made


def column_of(file: str, text: str, column: str) -> list[str]:
    """The texts in a column of a CSV file, whose first row has the names of its columns.

    Empty lines are ignored. Raises TemplateError, with the line, for a file that is not CSV, has no
    such column, or has rows of different lengths.
    """
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
    texts = []
    for line, row in rows[1:]:
        wrong = f"{len(names)} fields were expected as in the first line, not {len(row)}"
        if len(row) == len(names):
            texts.append(row[names.index(column)])
            wrong = value_problem(texts[-1]) or ""
        if wrong:
            raise TemplateError(f"{file}:{line}: {wrong}")
    return texts


# ---- combinations

_Part = Mapping[str, Template | Expression]


class _Axis(NamedTuple):
    """One factor of a product: its number of alternatives, at most, and what makes them."""

    size: int
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
        points have. There are no cycles: `check_references` has looked for them."""
        self.sweep = sweep
        self._facts, self._problems, self._sometimes = facts, problems, sometimes
        own = {name: choices for name, choices in defaults.items() if name not in sweep.parameters}
        parameters = {**own, **sweep.parameters}
        self._replaceable = own
        entries = flattened(parameters, facts.machine)
        order = dependency_order(names_used(entries))
        self._places = {name: each[0].place for name, each in flattened(parameters).items() if each}
        self._chosen = self._chosen_of(parameters)
        # What the numbers of series may use: the parameters with one value in all combinations.
        self._known = {BATCH_NAME: batch, **facts.values}
        for name in order:
            choice = self._chosen.get(name)
            if choice is None or choice.series or choice.below or len(entries[name]) > 1:
                continue
            if len(choice.values) == 1 and {*choice.parsed[0].names} <= {*self._known}:
                with suppress(TemplateError):  # noted with the combinations
                    text = choice.parsed[0].render(self._known)
                    self._known |= {} if value_problem(text) else {name: text}
        self._order = [name for name in order if name not in self._known]
        self._axes = tuple(self._all_axes())
        self.count = math.prod(axis.size for axis in self._axes)

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
            made = self._series(choice, False)
            if not made:
                return _WITHOUT_VALUE
            return _Axis(len(made), lambda: ({name: Template((str(each),))} for each in made))
        heads = [{name: value} for value in choice.parsed]
        if not choice.below:
            return _Axis(len(heads), lambda: heads)
        branches = [
            [self._axis(*each) for each in self._chosen_of(below).items()] for below in choice.below
        ]
        return _Axis(
            sum(math.prod(axis.size for axis in inner) for inner in branches),
            lambda: (
                self._union((head, *parts))
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
            else:
                columns[name] = self._series(choice, True) if choice.series else choice.values
        sizes = {name: len(values) for name, values in columns.items()}
        if not wrong and 0 in sizes.values():
            return _WITHOUT_VALUE
        if not wrong and len({*sizes.values()}) > 1:
            told = ", ".join(f"'{name}' has {size}" for name, size in sizes.items())
            wrong = f"zipped parameters must have equally many values, but {told}"
            wrong += "; add the missing ones, or remove a name"
        if wrong:
            self._problems.add((*self.sweep.place, "zip"), wrong)
            return _WITHOUT_VALUE
        return _Axis(
            sizes[group[0]],
            lambda: (
                {name: parse_value(str(each)) for name, each in zip(group, row, strict=True)}
                for row in zip(*columns.values(), strict=True)
            ),
        )

    def _series(self, choice: ParameterValues, repeated: bool) -> Sequence[Any]:
        """A series, empty if it is wrong; `repeated`: with values that occur several times."""
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
            return texts if repeated else list(dict.fromkeys(texts))
        except TemplateError as error:
            self._problems.add(choice.place, str(error))
            return ()

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
        for parts in itertools.product(*(axis.parts() for axis in self._axes)):
            templates = self._union(parts)
            values = dict(self._known)
            for name in self._order:
                if name in templates:
                    self._resolve(name, templates, values)
            if not any(
                all(values.get(name) in texts for name, texts in entry.items())
                for _, entry in self.sweep.exclude
            ):
                named = ((name, values[name]) for name in self._places if name in values)
                yield FrozenDict(named), self._skipped(values)

    def _union(self, parts: Sequence[_Part]) -> _Part:
        union = {name: value for part in parts for name, value in part.items()}
        if len(union) < sum(map(len, parts)):
            every = [name for part in parts for name in part if name not in self._replaceable]
            for name in [name for name in union if every.count(name) > 1]:
                said = f"'{name}' is twice among the parameters of a point; rename one"
                self._problems.add_first(self._places[name], said)
        return union

    def _resolve(self, name: str, templates: _Part, values: dict[str, str]) -> None:
        place = self._places[name]
        try:
            text = templates[name].render(values)
            if wrong := value_problem(text):
                raise TemplateError(wrong)
            values[name] = text
        except KeyError as error:
            if error.args[0] not in templates:  # otherwise it has no value, which was noted
                self._note_missing(place, error.args[0], values)
        except TemplateError as error:
            self._problems.add_example(place, str(error))

    def _note_missing(self, place: KeyPath, name: str, values: Mapping[str, str]) -> None:
        """Note a name without a value, unless it is a parameter that has none for a reason."""
        if is_fact(name):
            self._problems.add_example(place, self._facts.problem(name))
        elif name in self._sometimes:
            said = without_parameter(name, values, flattened(self.sweep.parameters))
            self._problems.add_example(place, said)

    def _skipped(self, values: Mapping[str, str]) -> str:
        """Why a combination is skipped, or nothing."""
        for condition in self.sweep.conditions:
            expression = condition.expression
            # A condition is not about points without a sub-parameter that it uses.
            if unknown := [name for name in expression.names if name not in values]:
                for name in filter(is_fact, unknown):
                    self._note_missing(condition.place, name, values)
                continue
            try:
                result = expression.result(values)
                if not isinstance(result, bool):
                    raise TemplateError(
                        f"{expression.with_values(values)}: true or false was expected, not "
                        f"{result!r}; compare it with something"
                    )
                if result is condition.when_true:
                    return condition.reason_for(values)
            except KeyError as error:
                self._note_missing(condition.place, error.args[0], values)
                return condition.reason
            except TemplateError as error:
                self._problems.add_example(condition.place, str(error))
        return ""
