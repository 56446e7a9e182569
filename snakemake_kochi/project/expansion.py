"""From the parameters of an experiment to the combinations of their values.

The combinations are counted before any is made: a range may have a billion values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from snakemake_kochi.errors import nearest
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.parameters import (
    CSV,
    Condition,
    Given,
    Parameters,
    ParameterValues,
    Sweep,
    flattened,
    machines_named,
    names_below,
    select,
    without_parameter,
)
from snakemake_kochi.project.problems import KeyPath, Problems, chain
from snakemake_kochi.project.series import Series, column_of, make_series
from snakemake_kochi.project.templates import (
    TemplateError,
    Value,
    is_fact,
    parse_expression,
    parse_value,
)
from snakemake_kochi.project.values import BATCH_NAME, value_problem

_Part = Mapping[str, Value]
# Zipped values are made at once.
_MOST_ZIPPED = 1_000_000


def dependency_order(values: Mapping[str, Iterable[Value]]) -> list[str]:
    """The names in an order in which each comes after the names that its values use.

    Raises TemplateError for a cycle, naming it. Names that are not in `values` are left out.
    """
    # Imported here: few processes of a run make a grid.
    from graphlib import CycleError, TopologicalSorter

    used = {
        name: [other for value in own for other in value.names if other in values]
        for name, own in values.items()
    }
    try:
        return list(TopologicalSorter(used).static_order())
    except CycleError as error:
        names = chain(error.args[1][::-1])
        raise TemplateError(
            f"parameters refer to each other in a circle: {names}; give one of them a value"
        ) from None


def values_on(parameters: Parameters, machine: str) -> dict[str, tuple[Value, ...]]:
    """The values of each parameter, and of each sub-parameter, that may count on a machine."""
    found: dict[str, tuple[Value, ...]] = {}
    for name, choices in parameters.items():
        choice = select(choices, machine)
        found[name] = found.get(name, ()) + (choice.parsed() if choice else ())
        for each in choice.below if choice else ():
            for inner, values in values_on(each, machine).items():
                found[inner] = found.get(inner, ()) + values
    return found


@dataclass(frozen=True)
class _Axis:
    """One factor of a product: its number of alternatives, at most, and the values in each."""

    count: int
    parts: Callable[[], Iterable[_Part]]


_WITHOUT_VALUE = _Axis(1, lambda: [{}])  # what is wrong with it was noted


class Expansion:
    """The combinations of one sweep on a machine. `count` is their number, at most.

    Notes problems: of values that do not exist when it is made, and of values that cannot be
    computed when it is iterated. `names`: those of all parameters, in the order of the file.
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
        self._facts = facts
        self._problems = problems
        self._sometimes = sometimes
        own = {name: choices for name, choices in defaults.items() if name not in sweep.parameters}
        parameters = {**own, **sweep.parameters}
        try:
            self._order = dependency_order(values_on(parameters, facts.machine))
        except TemplateError as error:
            raise problems.source_map.error((), str(error)) from error
        self.names = list(flattened(parameters))
        self._chosen = self._chosen_of(parameters)
        # What the numbers of series may use.
        self._known = {BATCH_NAME: batch, **facts.values}
        self._note_constants({*names_below(parameters)})
        self._axes = tuple(self._all_axes())
        self.count = math.prod(axis.count for axis in self._axes)

    def _chosen_of(
        self, parameters: Parameters, around: KeyPath = ()
    ) -> dict[str, ParameterValues]:
        """The entry of each parameter that counts on the machine. One without any is noted.
        `around`: the key of the value to which sub-parameters belong."""
        chosen = {}
        for name, choices in parameters.items():
            if (choice := select(choices, self._facts.machine)) is not None:
                chosen[name] = choice
                continue
            others = ", ".join(sorted(machines_named({name: choices})))
            said = f"'{name}' has no value on machine '{self._facts.machine}', only on {others}"
            place = (*around, name) if around else self.sweep.place_of(name)
            self._problems.add(place, f"{said}; add an entry without 'machines'")
        return chosen

    def _note_constants(self, below: Collection[str]) -> None:
        """Add the parameters with one value in all combinations to what is known. `below`: the
        sub-parameters, which may replace such a value."""
        for name in self._order:
            choice = self._chosen.get(name)
            if choice is None or choice.series or choice.below or len(choice.values) != 1:
                continue
            (value,) = choice.parsed()
            if name in below or not all(other in self._known for other in value.names):
                continue
            try:
                text = value.render(self._known)
            except TemplateError:  # noted with the combinations
                continue
            if value_problem(text) is None:
                self._known[name] = text

    # ---- factors

    def _all_axes(self) -> Iterator[_Axis]:
        """In the order of the file, zipped parameters where the first of them is."""
        groups = {name: group for group in self.sweep.zipped for name in group}
        for name, choice in self._chosen.items():
            group = groups.get(name)
            if group is None:
                yield self._axis(name, choice, self.sweep.place_of(name))
            elif name == next(each for each in self._chosen if each in group):
                yield self._zipped(group)

    def _axis(self, name: str, choice: ParameterValues, place: KeyPath) -> _Axis:
        if choice.series:
            made = self._series(choice, place)
            if made is None:
                return _WITHOUT_VALUE
            return _Axis(made.count, lambda: ({name: parse_value(text)} for text in made.values()))
        if not choice.below:
            parts = [{name: value} for value in choice.parsed()]
            return _Axis(len(parts), lambda: parts)
        branches = []
        count = 0
        for text, below in zip(choice.values, choice.below, strict=True):
            around = (*place, text)
            chosen = self._chosen_of(below, around)
            inner = [self._axis(each, chosen[each], (*around, each)) for each in chosen]
            count += math.prod(axis.count for axis in inner)
            branches.append(({name: parse_value(text)}, inner))
        return _Axis(
            count,
            lambda: (
                head | _union(parts)
                for head, inner in branches
                for parts in itertools.product(*(axis.parts() for axis in inner))
            ),
        )

    def _zipped(self, group: Sequence[str]) -> _Axis:
        place = (*self.sweep.place, "zip")
        columns: dict[str, Sequence[str]] = {}
        for name in group:
            values = self._column_of_zip(name, place)
            if isinstance(values, _Axis):
                return values
            columns[name] = values
        if len({len(values) for values in columns.values()}) > 1:
            told = ", ".join(f"'{name}' has {len(values)}" for name, values in columns.items())
            said = f"zipped parameters must have equally many values, but {told}"
            self._problems.add(place, f"{said}; add the missing ones, or remove a name")
            return _WITHOUT_VALUE
        rows = list(zip(*columns.values(), strict=True))
        first: dict[tuple[str, ...], int] = {}
        for index, row in enumerate(rows):
            if first.setdefault(row, index) != index:
                shown = ", ".join(f"{name}={text}" for name, text in zip(group, row, strict=True))
                numbers = f"as number {first[row] + 1} and {index + 1}"
                said = f"the values {shown} are zipped twice, {numbers}"
                self._problems.add(place, f"{said}; to repeat runs, use 'duplicates'")
                break
        parts = [dict(zip(columns, map(parse_value, row), strict=True)) for row in rows]
        return _Axis(len(parts), lambda: parts)

    def _column_of_zip(self, name: str, place: KeyPath) -> Sequence[str] | _Axis:
        """The values of a zipped parameter, or what stands for its group if there are none."""
        choice = self._chosen.get(name)
        if choice is None:
            said = nearest(name, self._chosen)
            self._problems.add(place, f"there is no parameter '{name}' here, {said}")
            return _WITHOUT_VALUE
        if choice.below:
            said = "has values with their own parameters, which cannot be zipped"
            self._problems.add(place, f"'{name}' {said}")
            return _WITHOUT_VALUE
        if not choice.series:
            return choice.values
        series = self._series(choice, self.sweep.place_of(name), repeated=True)
        if series is None:
            return _WITHOUT_VALUE
        if series.count > _MOST_ZIPPED:  # which is told with the number of points
            return _Axis(series.count, lambda: [{}])
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
            return make_series(choice.series, [self._argument(text) for text in choice.values])
        except TemplateError as error:
            self._problems.add(place, str(error))
            return None

    def _column(self, file: str, column: str) -> tuple[str, ...]:
        if file not in self._facts.tables:
            raise TemplateError(
                f"there is no file '{file}' in the project; give its path from the top of the "
                "project, and make sure that git does not ignore it"
            )
        return column_of(file, self._facts.tables[file], column)

    def _argument(self, text: str) -> Any:
        expression = parse_expression(text)
        for name in expression.names:
            if name in self._known:
                continue
            if is_fact(name):
                raise TemplateError(self._facts.problem(name))
            if name in self._chosen or name in self.sweep.all_places:
                raise TemplateError(
                    f"`{expression.source}`: '{name}' has several values here, and a series has "
                    "one length; write the longest series, and leave points out by 'when'"
                )
            raise TemplateError(f"the value of '{name}' is not known")
        return expression.result(self._known)

    # ---- combinations

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
                    values |= {} if text is None else {name: text}
            if not self._is_excluded(values):
                resolved = FrozenDict((name, values[name]) for name in self.names if name in values)
                yield resolved, self._skipped(values)

    def _resolved(
        self, name: str, template: Value, values: Mapping[str, str], templates: _Part
    ) -> str | None:
        place = self.sweep.place_of(name)
        try:
            text = template.render(values)
            wrong = value_problem(text)
        except KeyError as error:
            # Otherwise the parameter has no value, which was noted.
            self._note_missing(place, error.args[0], values, {*templates})
            return None
        except TemplateError as error:
            wrong = str(error)
        if wrong:
            self._problems.add_example(place, wrong)
            return None
        return text

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
                if is_fact(error.args[0]):
                    self._problems.add_example(place, self._facts.problem(error.args[0]))
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
