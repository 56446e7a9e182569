"""From the parameters of an experiment to the combinations of their values.

The combinations are counted before any is made: a range may have a billion values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping

from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.axes import AxisMaker, Part, chosen_entries
from snakemake_kochi.project.machine_facts import Facts
from snakemake_kochi.project.parameters import (
    Condition,
    Parameters,
    ParameterValues,
    Sweep,
    flattened,
    names_below,
    select,
    without_parameter,
)
from snakemake_kochi.project.problems import KeyPath, Problems, chain
from snakemake_kochi.project.templates import (
    Expression,
    Literal,
    TemplateError,
    Value,
    is_fact,
    parse_value,
)
from snakemake_kochi.project.values import BATCH_NAME, value_problem


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


class Expansion:
    """The combinations of one sweep on a machine. `count` is their number, at most.

    Notes problems: of values that do not exist when it is made, and of values that cannot be
    computed when it is iterated. `names`: those of all parameters, in the order of the file.
    """

    def __init__(
        self,
        defaults: Parameters,
        sweep: Sweep,
        facts: Facts,
        tables: Mapping[str, str],
        problems: Problems,
        batch: str = "",
        sometimes: Collection[str] = (),
    ) -> None:
        """`batch` is the value of `${batch_name}`, `sometimes` the parameters that only some of its
        points have. Raises ConfigError for a cycle."""
        self._sweep = sweep
        self._facts = facts
        self._problems = problems
        self._known = {BATCH_NAME: batch, **facts.values}
        parameters: dict[str, tuple[ParameterValues, ...]] = {
            name: choices for name, choices in defaults.items() if name not in sweep.parameters
        }
        parameters |= sweep.parameters
        values = values_on(parameters, facts.machine)
        try:
            self._order = dependency_order(values)
        except TemplateError as error:
            raise problems.source_map.error((), str(error)) from error
        self.names = list(flattened(parameters))
        self._sometimes = sometimes
        chosen = chosen_entries(parameters, sweep, facts.machine, problems)
        self._known |= self._constants(chosen, {*names_below(parameters)})
        maker = AxisMaker(chosen, sweep, self._known, facts, tables, problems)
        self._axes = tuple(maker.axes())
        self.count = math.prod(axis.count for axis in self._axes)

    @property
    def path(self) -> KeyPath:
        """The key of the sweep in the file."""
        return self._sweep.place

    @property
    def called(self) -> str:
        """The sweep in messages about its batch."""
        return self._sweep.called

    def _constants(
        self, chosen: Mapping[str, ParameterValues], below: Collection[str]
    ) -> dict[str, str]:
        """The parameters with one value in all combinations, which the numbers of series may use.
        `below`: the sub-parameters, which may replace such a value."""
        found: dict[str, str] = {}
        for name in self._order:
            choice = chosen.get(name)
            if choice is None or choice.series or choice.below or len(choice.values) != 1:
                continue
            (value,) = choice.parsed()
            known = {**self._known, **found}
            if name in below or not all(other in known for other in value.names):
                continue
            try:
                text = value.render(known)
            except TemplateError:  # noted with the combinations
                continue
            if value_problem(text) is None:
                found[name] = text
        return found

    # ---- combinations

    def __iter__(self) -> Iterator[tuple[FrozenDict[str, str], str]]:
        """Each combination, resolved, and why it is skipped, or nothing. The last parameter varies
        fastest.

        A parameter whose value cannot be computed is noted and left out of its combination,
        together with those that use it.
        """
        names = self.names
        order = [name for name in self._order if name not in self._known]
        conditions = [(each, each.expression) for each in self._sweep.conditions]
        exclude = [
            (place, {name: tuple(map(parse_value, texts)) for name, texts in entry.items()})
            for place, entry in self._sweep.exclude
        ]
        for parts in itertools.product(*(axis.parts() for axis in self._axes)):
            templates: dict[str, Value] = {}
            for part in parts:
                templates.update(part)
            values = dict(self._known)
            for name in order:
                if name not in templates:
                    continue
                template = templates[name]
                if type(template) is Literal:  # checked when it was read
                    values[name] = template.text
                    continue
                self._resolve(name, template, values, templates)
            if exclude and self._is_excluded(exclude, values):
                continue
            resolved = FrozenDict((name, values[name]) for name in names if name in values)
            reason = self._skipped(conditions, values) if conditions else ""
            yield resolved, reason

    def _resolve(self, name: str, template: Value, values: dict[str, str], templates: Part) -> None:
        try:
            text = template.render(values)
        except KeyError as error:
            missing = error.args[0]
            self._note_fact(self._sweep.place_of(name), missing)
            if missing in self._sometimes and missing not in templates:
                own = self._sweep.parameters
                self._problems.add_example(
                    self._sweep.place_of(name), without_parameter(missing, values, flattened(own))
                )
            return  # otherwise the parameter has no value, which was noted
        except TemplateError as error:
            self._problems.add_example(self._sweep.place_of(name), str(error))
            return
        if wrong := value_problem(text):
            self._problems.add_example(self._sweep.place_of(name), wrong)
        else:
            values[name] = text

    def _is_excluded(
        self,
        exclude: Iterable[tuple[KeyPath, Mapping[str, tuple[Value, ...]]]],
        values: Mapping[str, str],
    ) -> bool:
        for place, entry in exclude:
            try:
                if all(
                    name in values and any(each.render(values) == values[name] for each in own)
                    for name, own in entry.items()
                ):
                    return True
            except KeyError as error:
                self._note_fact(place, error.args[0])
            except TemplateError as error:
                self._problems.add_example(place, str(error))
        return False

    def _skipped(
        self, conditions: Iterable[tuple[Condition, Expression]], values: Mapping[str, str]
    ) -> str:
        """Why a combination is skipped, or nothing."""
        for condition, expression in conditions:
            # A condition is not about points without a sub-parameter that it uses.
            unknown = [name for name in expression.names if name not in values]
            for name in unknown:
                self._note_fact(condition.place, name)
            if unknown:
                continue
            try:
                result = expression.result(values)
                if not isinstance(result, bool):
                    raise TemplateError(
                        f"{expression.with_values(values)}: true or false was expected, not "
                        f"{result!r}; compare it with something"
                    )
                if result is condition.when_true:
                    return self._reason(condition, expression, result, values)
            except TemplateError as error:
                self._problems.add_example(condition.place, str(error))
        return ""

    def _reason(
        self,
        condition: Condition,
        expression: Expression,
        result: bool,
        values: Mapping[str, str],
    ) -> str:
        if not condition.reason:
            given = ", ".join(f"{n}={values[n]}" for n in dict.fromkeys(expression.names))
            text = condition.text.strip().strip("`")
            return f"`{text}` is {'true' if result else 'false'} with {given}".removesuffix(
                " with "
            )
        reason = parse_value(condition.reason)
        try:
            return reason.render(values).strip() or "no reason is given"
        except KeyError as error:
            missing = error.args[0]
            self._note_fact(condition.place, missing)
            if missing in self._sometimes:
                own = flattened(self._sweep.parameters)
                self._problems.add_example(condition.place, without_parameter(missing, values, own))
            return condition.reason

    def _note_fact(self, place: KeyPath, name: str) -> None:
        """Note that a name has no value, if it is that of a fact: others were noted."""
        if is_fact(name):
            self._problems.add_example(place, self._facts.problem(name))
