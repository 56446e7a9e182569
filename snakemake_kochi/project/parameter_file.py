"""Reading the values of parameters: lists, series, values with their own parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any

from snakemake_kochi.errors import nearest
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.document import Document, Scalar, is_null, names, section
from snakemake_kochi.project.parameters import CSV, SERIES, ParameterValues
from snakemake_kochi.project.problems import KeyPath, Problems
from snakemake_kochi.project.series import USAGE, number_of_arguments_problem
from snakemake_kochi.project.templates import TemplateError, parse_expression, parse_value
from snakemake_kochi.project.values import CODE, looks_like_list, name_problem, value_problem

_ENTRIES = "the entries must be either all values or all {value: ..., machines: [...]}"
_BELOW = "a value's own parameters were expected, such as {a: {x: [1, 2]}, b: {}}"


class ValueReader:
    """Reads the values of parameters of one document, noting problems."""

    def __init__(self, document: Document) -> None:
        self._data: dict[str, Any] = document.data
        self._problems: Problems = document.problems
        self._remarks: Problems = document.remarks

    def check_names(self, names: Iterable[str], path: KeyPath) -> None:
        for name in names:
            if wrong := name_problem(name):
                self._problems.add((*path, name), wrong)

    def with_parameter_machine(self, text: str) -> str:
        """The text, in which `$machine.x` is the parameter `machine` where there is one: files that
        have one may be older than the facts of machines."""
        if "$machine." not in text or not self._has_parameter_machine:
            return text
        return re.sub(r"(?<!\$)((?:\$\$)*)\$machine\.", r"\1${machine}.", text)

    @property
    def _has_parameter_machine(self) -> bool:
        batches = section(self._data, "batches")
        places = [section(self._data, "default_params")]
        places += [section(each, "params") for each in batches.values() if isinstance(each, dict)]
        return any("machine" in each for each in places)

    def _value(self, scalar: Scalar, path: KeyPath) -> str | None:
        text = self.with_parameter_machine(scalar.value_text)
        wrong = value_problem(text)
        try:
            value = parse_value(text)
            if not value.names:
                value.render({})
        except TemplateError as error:
            wrong = str(error)
        if wrong:
            self._problems.add(path, wrong)
            self._problems.mark_unknown(_parameter(path))
        if scalar.is_plain and looks_like_list(text):
            where = "" if path[0] == "batches" else " in the params of a batch"
            said = f'several values are written [{text}]{where}, a text "{text}"'
            self._remarks.add(path, f"'{text}' is one text; {said}")
        return None if wrong else text

    def values(self, value: Any, path: KeyPath, repeated: bool) -> tuple[str, ...]:
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
            return ParameterValues(self.values(value, path, repeated), machines)
        if len(value) == 1:
            ((kind, arguments),) = value.items()
            if not _is_below(arguments):
                return self._series(kind, arguments, path, machines)
        if "value" in value and not value.keys() - {"value", "machines"}:
            said = "write this in a list: [{value: ..., machines: [...]}]"
            self._problems.add(path, said)
            self._problems.mark_unknown(_parameter(path))
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
            self.check_names(inner, (*path, text))
            below.append(
                FrozenDict(
                    (name, self.choices(each, (*path, text, name), False))
                    for name, each in inner.items()
                )
            )
        return ParameterValues(tuple(texts), machines, below=tuple(below))

    def _series(
        self, kind: str, arguments: Any, path: KeyPath, machines: tuple[str, ...] | None
    ) -> ParameterValues:
        words = arguments if isinstance(arguments, list) else [arguments]
        texts = [self.with_parameter_machine(word.value_text) for word in words]
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
            self._problems.mark_unknown(_parameter(path))
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

    def choices(self, value: Any, path: KeyPath, repeated: bool) -> tuple[ParameterValues, ...]:
        if not isinstance(value, list) or not any(isinstance(entry, dict) for entry in value):
            return (self._entry(value, path, None, repeated),)
        choices = []
        for index, entry in enumerate(value):
            if not isinstance(entry, dict):
                self._problems.add((*path, index), _ENTRIES)
                self._problems.mark_unknown(path)
                continue
            machines = names(entry.get("machines"))
            place = (*path, index, "value")
            choices.append(self._entry(entry["value"], place, machines, repeated))
        return tuple(choices)

    def default(self, value: Any, path: KeyPath) -> tuple[ParameterValues, ...]:
        """As `choices`, with one value in each."""
        entries = value if isinstance(value, list) else []
        single = [each["value"] for each in entries if isinstance(each, dict)]
        is_wrong = isinstance(value, dict) or len(single) < len(entries)
        if is_wrong or any(isinstance(each, list | dict) for each in single):
            said = "a single value was expected, not a list; lists go into the params of a batch"
            self._problems.add(path, said)
            self._problems.mark_unknown(path)
            return ()
        return self.choices(value, path, False)


def _parameter(path: KeyPath) -> KeyPath:
    """The key of the parameter to which the key of a value belongs."""
    if path[2:3] == (CODE,):
        return path[:3]
    for index, key in enumerate(path[:-1]):
        if index and key in ("params", "include", "exclude"):
            return path[: index + (2 if key == "params" else 3)]
    return path[:2]


def _name_of(path: KeyPath) -> str:
    """The parameter with this key, also within a list of values for machines."""
    match path:
        case (*_, name, int(), "value"):
            return str(name)
    return str(path[-1])


def _is_below(value: Any) -> bool:
    """Whether this is written after a value with parameters of its own."""
    return isinstance(value, dict) or is_null(value)
