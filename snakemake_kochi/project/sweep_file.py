"""Reading what the batches of an experiment combine: values, grids, zips, conditions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from snakemake_kochi.errors import nearest
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.document import Scalar, is_null, names, section
from snakemake_kochi.project.parameters import (
    CSV,
    SERIES,
    Condition,
    Parameters,
    ParameterValues,
    Sweep,
    flattened,
)
from snakemake_kochi.project.problems import KeyPath, Problems
from snakemake_kochi.project.series import USAGE, number_of_arguments_problem
from snakemake_kochi.project.templates import TemplateError, parse_expression, parse_value
from snakemake_kochi.project.values import CODE, looks_like_list, name_problem, value_problem

_ENTRIES = "the entries must be either all values or all {value: ..., machines: [...]}"
_BELOW = "a value's own parameters were expected, such as {a: {x: [1, 2]}, b: {}}"


class SweepReader:
    """Reads the default parameters and the sweeps of one document, noting problems."""

    def __init__(self, data: Mapping[str, Any], problems: Problems, remarks: Problems) -> None:
        self._data = data
        self._problems = problems
        self._remarks = remarks

    def defaults(self) -> FrozenDict[str, tuple[ParameterValues, ...]]:
        """The default parameters, with one value in each entry."""
        data = section(self._data, "default_params")
        return FrozenDict(
            (name, self._single(value, ("default_params", name))) for name, value in data.items()
        )

    def sweeps(self, data: Mapping[str, Any], path: KeyPath) -> tuple[Sweep, ...]:
        """What a batch at a key path combines: its grid or its grids, and what they include."""
        common = self._sweep(data, path, None)
        if "grids" not in data:
            return (common, *self._included(common, data, path))
        if "include" in data:
            said = "with 'grids', write 'include' into one of them, or make it one of them"
            self._problems.add((*path, "include"), said)
        found = []
        for index, each in enumerate(data["grids"]):
            place = (*path, "grids", index)
            grid = self._sweep(each, place, common)
            found += [grid, *self._included(grid, each, place)]
        return tuple(found)

    def sometimes(self, sweeps: Sequence[Sweep]) -> frozenset[str]:
        """The parameters that only some points of these sweeps have."""
        anywhere = {name for sweep in sweeps for name in flattened(sweep.parameters)}
        always = {*section(self._data, "default_params")}
        if sweeps:
            always |= set.intersection(*({*sweep.parameters} for sweep in sweeps))
        return frozenset(anywhere - always)

    def _sweep(self, data: Mapping[str, Any], path: KeyPath, common: Sweep | None) -> Sweep:
        """A grid; `common`: what the batch has for all of its grids."""
        common = common or Sweep({}, path, {})
        own = params = section(data, "params")
        zipped = (*common.zipped, *self._zipped(data.get("zip", []), (*path, "zip")))
        repeated = {name for group in zipped for name in group}
        places: dict[str, KeyPath] = {name: (*path, "params", name) for name in params}
        has_code = common.places.get(CODE) == (*common.place, CODE)
        # Of grids, only the batch has this key.
        if CODE in data and not is_null(data[CODE]):
            has_code, places[CODE] = True, (*path, CODE)
            own = {CODE: data[CODE], **params}
        if has_code and CODE in {**params, **self._default}:
            said = "'code' is also a parameter of this batch; rename that"
            self._problems.add((*path, CODE), said)
        parameters = {
            name: self._choices(value, places[name], name in repeated)
            for name, value in own.items()
        }
        sweep = Sweep(
            parameters={**common.parameters, **parameters},
            place=path,
            places={**common.places, **places},
            zipped=zipped,
            exclude=(*common.exclude, *self._exclude(data.get("exclude", []), (*path, "exclude"))),
            conditions=(
                *common.conditions,
                *self._conditions(data.get("when"), (*path, "when"), when_true=False),
                *self._conditions(data.get("skip_if"), (*path, "skip_if"), when_true=True),
            ),
        )
        self._check_shadows(sweep)
        return sweep

    @property
    def _default(self) -> dict[str, Any]:
        return section(self._data, "default_params")

    def _included(self, grid: Sweep, data: Mapping[str, Any], path: KeyPath) -> Iterator[Sweep]:
        known = {**flattened(grid.parameters), **self._default}
        for index, entry in enumerate(data.get("include", ())):
            place = (*path, "include", index)
            for name in entry:
                if name not in known:
                    said = f"there is no parameter '{name}' in this grid, {nearest(name, known)}"
                    self._problems.add((*place, name), said)
            for group in grid.zipped:
                named = [name for name in group if name in entry]
                if named and len(named) < len(group):
                    rest = " and ".join(f"'{name}'" for name in group if name not in named)
                    self._problems.add(place, f"'{named[0]}' is zipped with {rest}; name all here")
            repeated = {name for group in grid.zipped for name in group}
            parameters = {
                name: self._choices(value, (*place, name), name in repeated)
                for name, value in entry.items()
            }
            sweep = Sweep(
                parameters={**grid.parameters, **parameters},
                place=place,
                places={**grid.places, **{name: (*place, name) for name in parameters}},
                zipped=grid.zipped,
                conditions=grid.conditions,
            )
            self._check_shadows(sweep)
            yield sweep

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
            place = (*path, index)
            if not entry:
                self._problems.add(place, "this leaves out all points; name values of parameters")
            texts = {name: self._texts(own, (*place, name), True) for name, own in entry.items()}
            yield place, FrozenDict(texts)

    def _conditions(self, value: Any, path: KeyPath, when_true: bool) -> Iterator[Condition]:
        is_list = isinstance(value, list)
        for index, entry in enumerate(value if is_list else [] if value is None else [value]):
            place = (*path, index) if is_list else path
            reason = ""
            try:
                if isinstance(entry, dict):
                    reason_place, reason = (*place, "reason"), entry.get("reason", "")
                    place, entry = (*place, "condition"), entry["condition"]
                    self._checked(reason, reason_place)
                parse_expression(entry.value_text)
            except TemplateError as error:
                self._problems.add(place, str(error))
                continue
            yield Condition(entry.value_text, str(reason), when_true, place)

    def _checked(self, text: str, path: KeyPath) -> None:
        try:
            parse_value(text)
        except TemplateError as error:
            self._problems.add(path, str(error))

    def _check_shadows(self, sweep: Sweep) -> None:
        """Note a sub-parameter with the name of another parameter of the same points."""
        for name, choices in sweep.parameters.items():
            for choice in choices:
                for text, below in zip(choice.values, choice.below, strict=False):
                    place = (*sweep.places[name], text)
                    others = {each: each for each in sweep.parameters}
                    for other, other_choices in sweep.parameters.items():
                        if other != name:
                            inner = flattened({other: other_choices})
                            others |= {each: other for each in inner if each != other}
                    self._check_below(below, others, place)

    def _check_below(self, below: Parameters, others: Mapping[str, str], path: KeyPath) -> None:
        for name, choices in below.items():
            if name in others:
                owner = others[name]
                what = "a parameter" if owner == name else f"a parameter below '{owner}'"
                said = f"'{name}' is also {what} of the same points; rename one"
                self._problems.add((*path, name), said)
            for choice in choices:
                for text, inner in zip(choice.values, choice.below, strict=False):
                    siblings = {each: each for each in below}
                    self._check_below(inner, {**others, **siblings}, (*path, name, text))

    # ---- values

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
        texts: list[str] = []
        seen = set()
        for index, scalar in enumerate(value):
            text = self._value(scalar, (*path, index))
            if text is None:
                continue
            if text in seen and not repeated:
                self._problems.add(
                    (*path, index),
                    f"the value '{text}' is in the list twice; to repeat runs, use 'duplicates'",
                )
                continue
            seen.add(text)
            texts.append(text)
        return tuple(texts)

    def _entry(
        self, value: Any, path: KeyPath, machines: tuple[str, ...] | None, repeated: bool
    ) -> ParameterValues:
        """What is written for a parameter, on some machines or all."""
        if not isinstance(value, dict):
            return ParameterValues(self._texts(value, path, repeated), machines)
        if len(value) == 1:
            ((kind, arguments),) = value.items()
            if not _is_below(arguments):
                return self._series(kind, arguments, path, machines)
        if "value" in value and not value.keys() - {"value", "machines"}:
            said = "write this in a list: [{value: ..., machines: [...]}]"
            self._problems.add(path, said)
            return ParameterValues(("",), machines)
        if not value:
            self._problems.add(path, f"the mapping is empty; {_BELOW}")
        texts = []
        below = []
        for text, own in value.items():
            if not _is_below(own):
                self._problems.add((*path, text), f"after the value '{text}', {_BELOW}")
                own = {}
            texts.append(self._value(Scalar(text), (*path, text)) or "")
            inner = own if isinstance(own, dict) else {}
            for name in inner:
                if wrong := name_problem(name):
                    self._problems.add((*path, text, name), wrong)
            below.append(
                FrozenDict(
                    (name, self._choices(each, (*path, text, name), False))
                    for name, each in inner.items()
                )
            )
        return ParameterValues(tuple(texts), machines, below=tuple(below))

    def _series(
        self, kind: str, arguments: Any, path: KeyPath, machines: tuple[str, ...] | None
    ) -> ParameterValues:
        words = arguments if isinstance(arguments, list) else [arguments]
        texts = [word.value_text for word in words]
        wrong = None
        if kind not in SERIES:
            said = nearest(kind, SERIES)
            said = (
                f"there is no series '{kind}', {said} (or, for a value with parameters of its own"
            )
            wrong = f"{said}, write them as a mapping: {kind}: {{x: 1}})"
        elif kind == CSV:
            wrong = self._csv_problem(texts)
            texts = [*texts, _name_of(path)][:2]
        else:
            wrong = number_of_arguments_problem(kind, len(texts))
            try:
                for text in texts:
                    parse_expression(text)
            except TemplateError as error:
                wrong = str(error)
        if wrong:
            self._problems.add((*path, kind), wrong)
            return ParameterValues(("",), machines)
        return ParameterValues(tuple(texts), machines, series=kind)

    @staticmethod
    def _csv_problem(texts: Sequence[str]) -> str | None:
        if not 1 <= len(texts) <= 2:
            return f"csv: {USAGE[CSV]} was expected"
        path = PurePosixPath(texts[0])
        if path.is_absolute() or ".." in path.parts or not texts[0]:
            return f"{texts[0]!r}: a path relative to the top of the project was expected"
        return None

    def _choices(self, value: Any, path: KeyPath, repeated: bool) -> tuple[ParameterValues, ...]:
        if not isinstance(value, list) or not any(isinstance(entry, dict) for entry in value):
            return (self._entry(value, path, None, repeated),)
        choices = []
        for index, entry in enumerate(value):
            if not isinstance(entry, dict):
                self._problems.add((*path, index), _ENTRIES)
                continue
            machines = names(entry.get("machines"))
            place = (*path, index, "value")
            choices.append(self._entry(entry["value"], place, machines, repeated))
        return tuple(choices)

    def _single(self, value: Any, path: KeyPath) -> tuple[ParameterValues, ...]:
        """As `_choices`, with one value in each."""
        entries = value if isinstance(value, list) else []
        single = [each["value"] for each in entries if isinstance(each, dict)]
        is_wrong = isinstance(value, dict) or len(single) < len(entries)
        if is_wrong or any(isinstance(each, list | dict) for each in single):
            said = "a single value was expected, not a list; lists go into the params of a batch"
            self._problems.add(path, said)
            return ()
        return self._choices(value, path, False)


def _name_of(path: KeyPath) -> str:
    """The parameter with this key, also within a list of values for machines."""
    match path:
        case (*_, name, int(), "value"):
            return str(name)
    return str(path[-1])


def _is_below(value: Any) -> bool:
    """Whether this is written after a value with parameters of its own."""
    return isinstance(value, dict) or is_null(value)
