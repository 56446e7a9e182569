"""Reading what the batches of an experiment combine: grids, zips, conditions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from snakemake_kochi.errors import nearest
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.document import Document, Scalar, is_null, section
from snakemake_kochi.project.parameter_file import ValueReader
from snakemake_kochi.project.parameters import (
    Condition,
    Parameters,
    ParameterValues,
    Sweep,
    flattened,
)
from snakemake_kochi.project.problems import KeyPath, Problems
from snakemake_kochi.project.templates import TemplateError, parse_expression, parse_value
from snakemake_kochi.project.values import CODE


class SweepReader:
    """Reads the default parameters and the sweeps of one document, noting problems."""

    def __init__(self, document: Document) -> None:
        self._data: dict[str, Any] = document.data
        self._problems: Problems = document.problems
        self._values = ValueReader(document)

    def defaults(self) -> FrozenDict[str, tuple[ParameterValues, ...]]:
        """The default parameters, with one value in each entry."""
        data = section(self._data, "default_params")
        self._values.check_names(data, ("default_params",))
        return FrozenDict(
            (name, self._values.default(value, ("default_params", name)))
            for name, value in data.items()
        )

    def sweeps(self, batch: str, data: Mapping[str, Any]) -> tuple[Sweep, ...]:
        """What a batch combines: its grid or its grids, and what they include."""
        path: KeyPath = ("batches", batch)
        common = self._sweep(data, path, None)
        grids = data.get("grids")
        if not isinstance(grids, list):
            return (common, *self._included(common, data, path))
        if data.get("include"):
            said = "with 'grids', write 'include' into one of them, or make it one of them"
            self._problems.add((*path, "include"), said)
        found = []
        for index, each in enumerate(grids):
            place = (*path, "grids", index)
            entry = each if isinstance(each, dict) else {}
            grid = self._sweep(entry, place, common)
            found += [grid, *self._included(grid, entry, place)]
        return tuple(found)

    def sometimes(self, sweeps: Sequence[Sweep]) -> frozenset[str]:
        """The parameters that only some points of these sweeps have."""
        anywhere = {name for sweep in sweeps for name in flattened(sweep.parameters)}
        always = {*section(self._data, "default_params")}
        if sweeps:
            always |= set.intersection(*({*sweep.parameters} for sweep in sweeps))
        return frozenset(anywhere - always)

    # ---- sweeps

    def _sweep(self, data: Mapping[str, Any], path: KeyPath, common: Sweep | None) -> Sweep:
        """A grid; `common`: what the batch has for all of its grids."""
        own = section(data, "params")
        zipped = self._zipped(data.get("zip"), (*path, "zip"))
        repeated = {name for group in zipped for name in group}
        repeated |= {name for group in (common.zipped if common else ()) for name in group}
        parameters = {
            name: self._values.choices(value, (*path, "params", name), name in repeated)
            for name, value in own.items()
        }
        self._values.check_names(own, (*path, "params"))
        places: dict[str, KeyPath] = {name: (*path, "params", name) for name in parameters}
        # Of grids, only the batch has this key.
        if (code := data.get(CODE)) is not None and not is_null(code):
            choices = self._values.choices(code, (*path, CODE), CODE in repeated)
            parameters = {CODE: choices, **parameters}
            places = {**places, CODE: (*path, CODE)}
        has_code = CODE in section(section(self._data, "batches"), str(path[1]))
        if has_code and CODE in {**own, **section(self._data, "default_params")}:
            said = "'code' is also a parameter of this batch; rename that"
            self._problems.add((*path, CODE), said)
        sweep = Sweep(
            parameters={**(common.parameters if common else {}), **parameters},
            place=path,
            places={**(common.places if common else {}), **places},
            zipped=(*(common.zipped if common else ()), *zipped),
            exclude=(
                *(common.exclude if common else ()),
                *self._exclude(data.get("exclude"), (*path, "exclude")),
            ),
            conditions=(
                *(common.conditions if common else ()),
                *self._conditions(data.get("when"), (*path, "when"), when_true=False),
                *self._conditions(data.get("skip_if"), (*path, "skip_if"), when_true=True),
            ),
        )
        self._check_shadows(sweep)
        return sweep

    def _included(self, grid: Sweep, data: Mapping[str, Any], path: KeyPath) -> Iterator[Sweep]:
        entries = data.get("include")
        known = {**flattened(grid.parameters), **section(self._data, "default_params")}
        for index, entry in enumerate(entries if isinstance(entries, list) else []):
            if not isinstance(entry, dict):
                continue
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
                name: self._values.choices(value, (*place, name), name in repeated)
                for name, value in entry.items()
                if name in known
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

    def _zipped(self, value: Any, path: KeyPath) -> tuple[tuple[str, ...], ...]:
        if not isinstance(value, list):
            return ()
        groups = value if any(isinstance(each, list) for each in value) else [value]
        found: list[tuple[str, ...]] = []
        for index, group in enumerate(groups):
            place = (*path, index) if groups is value else path
            if not isinstance(group, list) or any(isinstance(each, list) for each in group):
                said = "a list of names, or a list of such lists, was expected"
                self._problems.add(place, said)
                continue
            words = tuple(map(str, group))
            taken = {name for each in found for name in each}
            for name in words:
                if words.count(name) > 1 or name in taken:
                    self._problems.add(place, f"'{name}' is zipped twice; name it once")
                    break
            else:
                if len(words) < 2:
                    self._problems.add(place, "two names or more were expected")
                else:
                    found.append(words)
        return tuple(found)

    def _exclude(
        self, value: Any, path: KeyPath
    ) -> Iterator[tuple[KeyPath, Mapping[str, tuple[str, ...]]]]:
        for index, entry in enumerate(value if isinstance(value, list) else []):
            place = (*path, index)
            if not isinstance(entry, dict):
                continue
            if not entry:
                self._problems.add(place, "this leaves out all points; name values of parameters")
                continue
            texts = {
                name: self._values.values(own, (*place, name), True) for name, own in entry.items()
            }
            yield place, FrozenDict(texts)

    def _conditions(self, value: Any, path: KeyPath, when_true: bool) -> Iterator[Condition]:
        if value is None:
            return
        for index, entry in enumerate(value if isinstance(value, list) else [value]):
            place = (*path, index) if isinstance(value, list) else path
            reason = ""
            if isinstance(entry, dict):
                reason = self._checked_value(entry.get("reason"), (*place, "reason"))
                place, entry = (*place, "condition"), entry.get("condition")
            if not isinstance(entry, Scalar):
                continue
            text = self._values.with_parameter_machine(entry.value_text)
            try:
                parse_expression(text)
            except TemplateError as error:
                self._problems.add(place, str(error))
                continue
            yield Condition(text, reason, when_true, place)

    def _checked_value(self, scalar: Scalar | None, path: KeyPath) -> str:
        if scalar is None:
            return ""
        text = self._values.with_parameter_machine(scalar.value_text)
        try:
            parse_value(text)
        except TemplateError as error:
            self._problems.add(path, str(error))
            return ""
        return text

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
                # One value replaces the other, so that points of the grid may be the same.
                self._problems.mark_unknown((*path[:2], "params"))
            for choice in choices:
                for text, inner in zip(choice.values, choice.below, strict=False):
                    siblings = {each: each for each in below}
                    self._check_below(inner, {**others, **siblings}, (*path, name, text))
