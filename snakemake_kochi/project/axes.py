"""The factors of a product of parameters: lists, series, zipped lists, values with their own
parameters.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from snakemake_kochi.errors import nearest
from snakemake_kochi.project.machine_facts import Facts
from snakemake_kochi.project.parameters import (
    CSV,
    Parameters,
    ParameterValues,
    Sweep,
    machines_named,
    select,
)
from snakemake_kochi.project.problems import KeyPath, Problems
from snakemake_kochi.project.series import Series, column_of, make_series
from snakemake_kochi.project.templates import (
    TemplateError,
    Value,
    is_fact,
    parse_expression,
    parse_value,
)

Part = Mapping[str, Value]
# Zipped values are made at once.
_MOST_ZIPPED = 1_000_000


@dataclass(frozen=True)
class Axis:
    """One factor of a product: its number of alternatives, at most, and the values in each."""

    count: int
    parts: Callable[[], Iterable[Part]]


_WITHOUT_VALUE = Axis(1, lambda: [{}])  # what is wrong with it was noted


def chosen_entries(
    parameters: Parameters, sweep: Sweep, machine: str, problems: Problems
) -> dict[str, ParameterValues]:
    """The entry of each parameter that counts on a machine. A parameter without any is noted."""
    chosen = {}
    for name, choices in parameters.items():
        place = sweep.place_of(name)
        choice = select(choices, machine)
        if problems.is_unknown(place):
            continue
        if choice is not None:
            chosen[name] = choice
            continue
        problems.add(
            place,
            f"'{name}' has no value on machine '{machine}', only on "
            f"{', '.join(sorted(machines_named({name: choices})))}; "
            "add an entry without 'machines'",
        )
    return chosen


class AxisMaker:
    """Makes the factors of a sweep from the entries that count on a machine, noting problems.

    `constants`: what the numbers of a series may use. `tables`: the texts of CSV files by path.
    """

    def __init__(
        self,
        chosen: Mapping[str, ParameterValues],
        sweep: Sweep,
        constants: Mapping[str, str],
        facts: Facts,
        tables: Mapping[str, str],
        problems: Problems,
    ) -> None:
        self._chosen = chosen
        self._sweep = sweep
        self._constants = constants
        self._facts = facts
        self._tables = tables
        self._problems = problems

    def axes(self) -> Iterator[Axis]:
        """In the order of the file, zipped parameters where the first of them is."""
        groups = {name: group for group in self._sweep.zipped for name in group}
        for name, choice in self._chosen.items():
            group = groups.get(name)
            if group is None:
                yield self._axis(name, choice, self._sweep.place_of(name))
            elif name == next((each for each in self._chosen if each in group), None):
                yield self._zipped(group)

    def _axis(self, name: str, choice: ParameterValues, place: KeyPath) -> Axis:
        if choice.series:
            made = self._series(choice, place)
            if made is None:
                return _WITHOUT_VALUE
            return Axis(made.count, lambda: ({name: parse_value(text)} for text in made.values()))
        if not choice.below:
            parts: list[Part] = [{name: value} for value in choice.parsed()]
            return Axis(len(parts), lambda: parts)
        branches = []
        count = 0
        for text, below in zip(choice.values, choice.below, strict=True):
            head = {name: parse_value(text)}
            inner = [
                self._axis(each, picked, (*place, text, each))
                for each, picked in self._chosen_below(below, (*place, text)).items()
            ]
            count += math.prod(axis.count for axis in inner)
            branches.append((head, inner))
        return Axis(count, lambda: _branches(branches))

    def _chosen_below(self, below: Parameters, place: KeyPath) -> dict[str, ParameterValues]:
        chosen = {}
        for name, choices in below.items():
            choice = select(choices, self._facts.machine)
            if choice is not None:
                chosen[name] = choice
            else:
                self._problems.add(
                    (*place, name), f"'{name}' has no value on machine '{self._facts.machine}'"
                )
        return chosen

    def _zipped(self, group: Sequence[str]) -> Axis:
        place = (*self._sweep.place, "zip")
        columns: dict[str, Sequence[str]] = {}
        for name in group:
            values = self._column_of_zip(name, place)
            if isinstance(values, Axis):
                return values
            columns[name] = values
        lengths = {name: len(values) for name, values in columns.items()}
        if len({*lengths.values()}) > 1:
            told = ", ".join(f"'{name}' has {count}" for name, count in lengths.items())
            self._problems.add(
                place,
                f"zipped parameters must have equally many values, but {told}; add the missing "
                "ones, or remove a name",
            )
            return _WITHOUT_VALUE
        rows = list(zip(*columns.values(), strict=True))
        first: dict[tuple[str, ...], int] = {}
        for index, row in enumerate(rows):
            if first.setdefault(row, index) != index:
                shown = ", ".join(f"{name}={text}" for name, text in zip(group, row, strict=True))
                self._problems.add(
                    place,
                    f"the values {shown} are zipped twice, as number {first[row] + 1} and "
                    f"{index + 1}; to repeat runs, use 'duplicates'",
                )
                break
        parts = [
            {name: parse_value(text) for name, text in zip(columns, row, strict=True)}
            for row in rows
        ]
        return Axis(len(parts), lambda: parts)

    def _column_of_zip(self, name: str, place: KeyPath) -> Sequence[str] | Axis:
        """The values of a zipped parameter, or what stands for its group if there are none."""
        choice = self._chosen.get(name)
        if choice is None:
            if not self._problems.is_unknown(self._sweep.place_of(name)):
                said = nearest(name, self._chosen)
                self._problems.add(place, f"there is no parameter '{name}' here, {said}")
            return _WITHOUT_VALUE
        if choice.below:
            said = "has values with their own parameters, which cannot be zipped"
            self._problems.add(place, f"'{name}' {said}")
            return _WITHOUT_VALUE
        if not choice.series:
            return choice.values
        series = self._series(choice, self._sweep.place_of(name), repeated=True)
        if series is None:
            return _WITHOUT_VALUE
        if series.count > _MOST_ZIPPED:  # which is told with the number of points
            return Axis(series.count, lambda: [{}])
        return tuple(series.values())

    def _series(
        self, choice: ParameterValues, place: KeyPath, repeated: bool = False
    ) -> Series | None:
        """The values of a series, None if it is wrong; `repeated`: with those that occur several
        times."""
        try:
            if choice.series == CSV:
                texts = self._column(*choice.values)
                found = texts if repeated else tuple(dict.fromkeys(texts))
                return Series(len(found), lambda: found)
            arguments = [self._argument(text) for text in choice.values]
            return make_series(choice.series, arguments)
        except TemplateError as error:
            self._problems.add(place, str(error))
            return None

    def _column(self, file: str, column: str) -> tuple[str, ...]:
        if file not in self._tables:
            raise TemplateError(
                f"there is no file '{file}' in the project; give its path from the top of the "
                "project, and make sure that git does not ignore it"
            )
        return column_of(file, self._tables[file], column)

    def _argument(self, text: str) -> Any:
        expression = parse_expression(text)
        for name in expression.names:
            if name in self._constants:
                continue
            if is_fact(name):
                raise TemplateError(self._facts.problem(name))
            if name in self._chosen or name in self._sweep.all_places:
                raise TemplateError(
                    f"`{expression.source}`: '{name}' has several values here, and a series has "
                    "one length; write the longest series, and leave points out by 'when'"
                )
        try:
            return expression.result(self._constants)
        except KeyError as error:  # of a name that does not exist, which was noted
            raise TemplateError(f"the value of {error} is not known") from error


def _branches(
    branches: Iterable[tuple[Mapping[str, Value], Sequence[Axis]]],
) -> Iterator[Part]:
    for head, inner in branches:
        for parts in itertools.product(*(axis.parts() for axis in inner)):
            merged = dict(head)
            for part in parts:
                merged |= part
            yield merged
