"""What an experiment says about parameters: their values, and how these are combined.

Everything is as written; `expansion` makes the combinations of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from snakemake_kochi.errors import nearest
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.document import KeyPath, Problems, Scalar, is_null, section
from snakemake_kochi.project.expressions import (
    FACT,
    Expression,
    TemplateError,
    Value,
    parse_expression,
    parse_value,
    plain,
)
from snakemake_kochi.project.values import CODE, looks_like_list, name_problem, value_problem

CSV = "csv"
# The arguments of the series, and their number at least and at most.
SERIES = {
    "range": ("[END], [START, END] or [START, END, STEP]", 1, 3),
    "linspace": ("[FIRST, LAST, NUMBER]", 3, 3),
    "geom": ("[FIRST, LAST, NUMBER]", 3, 3),
    "igeom": ("[FIRST, LAST, NUMBER]", 3, 3),
    "pow2": ("[LAST] or [FIRST, LAST]", 1, 2),
    CSV: ("FILE or [FILE, COLUMN]", 1, 2),
}
# The facts that every machine has, if its scheduler can be asked.
STANDARD_FACTS = ("name", "cores", "sockets", "memory_mb", "gpus", "nodes")


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
    def parsed(self) -> tuple[Value, ...]:
        """The values, or the arguments of a series that may refer to something."""
        if self.series == CSV:
            return ()
        parse = parse_expression if self.series else plain if self.literal else parse_value
        return tuple(map(parse, self.values))


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
    found: dict[str, tuple[ParameterValues, ...]] = {}
    for name, choices in parameters.items():
        if machine is not None:
            chosen = select(choices, machine)
            choices = () if chosen is None else (chosen,)
        found[name] = found.get(name, ()) + choices
        for below in (each for choice in choices for each in choice.below):
            for inner, own in flattened(below, machine).items():
                found[inner] = found.get(inner, ()) + own
    return found


def names_used(parameters: Parameters) -> dict[str, list[str]]:
    """The names to which the values of each of these parameters refer."""
    return {
        name: [used for choice in choices for value in choice.parsed for used in value.names]
        for name, choices in parameters.items()
    }


def without_parameter(missing: str, values: Mapping[str, str], own: Iterable[str]) -> str:
    """What is wrong with a name that a point does not have, for people. `own`: the parameters of
    the batch."""
    shown = ", ".join(f"{name}={values[name]}" for name in own if name in values)
    return (
        f"the point ({shown}) has no parameter '{missing}'; give it a value there, or one for all "
        "points in default_params"
    )


@dataclass(frozen=True)
class Condition:
    """A condition that decides whether a point is run: it is skipped `when_true`, or when it is
    false. `reason`: a value text for people, or empty. `place`: its key in the file."""

    text: str
    reason: str
    when_true: bool
    place: KeyPath

    @property
    def expression(self) -> Expression:
        return parse_expression(self.text)


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
        match self.place:
            case (*_, str(key), int(index)):
                return f"{key}[{index}]"
        return "the batch's params"


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
        found: dict[str, tuple[ParameterValues, ...]] = {}
        for name, value in self._defaults.items():
            place: KeyPath = ("default_params", name)
            entries = value if isinstance(value, list) else [{"value": value}]
            written = [each["value"] if isinstance(each, dict) else [each] for each in entries]
            if any(isinstance(each, list | dict) for each in written):
                said = "a single value was expected, not a list"
                self._problems.add(place, f"{said}; lists go into the params of a batch")
                found[name] = ()
            else:
                found[name] = self._choices(value, place)
        return FrozenDict(found)

    def sweeps(self, data: Mapping[str, Any], path: KeyPath) -> tuple[Sweep, ...]:
        """What a batch at a key path combines: its grid or its grids, and what they include."""
        common = self._sweep(data, path, Sweep({}, path))
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

    def sometimes(self, sweeps: tuple[Sweep, ...]) -> frozenset[str]:
        """The parameters that only some points of these sweeps have."""
        anywhere = {name for sweep in sweeps for name in flattened(sweep.parameters)}
        always = set.intersection(*({*sweep.parameters} for sweep in sweeps)) if sweeps else set()
        return frozenset(anywhere - always - {*self._defaults})

    def _sweep(
        self, data: Mapping[str, Any], path: KeyPath, common: Sweep, at: KeyPath = ()
    ) -> Sweep:
        """A grid; `common`: what it has besides, `at`: where its parameters are, if not in its
        `params`."""
        params, has_code = section(data, "params"), common.has_code
        zipped = (*common.zipped, *self._zipped(data.get("zip", []), (*path, "zip")))
        repeated = {name for group in zipped for name in group}
        parameters = {}
        # Of grids, only the batch has this key.
        if CODE in data and not is_null(data[CODE]):
            has_code = True
            parameters[CODE] = self._choices(data[CODE], (*path, CODE), CODE in repeated)
        if has_code and not at and CODE in {**params, **self._defaults}:
            said = "'code' is also a parameter of this batch; rename that"
            self._problems.add((*path, CODE), said)
        for name, value in params.items():
            place = (*(at or (*path, "params")), name)
            parameters[name] = self._choices(value, place, name in repeated)
        when = self._conditions(data.get("when"), (*path, "when"), when_true=False)
        skip_if = self._conditions(data.get("skip_if"), (*path, "skip_if"), when_true=True)
        sweep = Sweep(
            parameters={**common.parameters, **parameters},
            place=path,
            zipped=zipped,
            exclude=(*common.exclude, *self._exclude(data.get("exclude", []), (*path, "exclude"))),
            conditions=(*common.conditions, *when, *skip_if),
            has_code=has_code,
        )
        self._note_shadows(sweep.parameters)
        return sweep

    def _included(self, grid: Sweep, data: Mapping[str, Any], path: KeyPath) -> Iterator[Sweep]:
        known = {**flattened(grid.parameters), **self._defaults}
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
            yield self._sweep({"params": entry}, place, replace(grid, exclude=()), at=place)

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
            place, reason = (*path, index) if is_list else path, ""
            try:
                if isinstance(entry, dict):
                    place, reason = (*place, "reason"), entry.get("reason", "")
                    parse_value(reason)
                    place, entry = (*place[:-1], "condition"), entry["condition"]
                parse_expression(entry.value_text)
            except TemplateError as error:
                self._problems.add(place, str(error))
                continue
            yield Condition(entry.value_text, str(reason), when_true, place)

    def _note_shadows(self, parameters: Parameters) -> None:
        """Note a sub-parameter with the name of another parameter of the same points: of one above
        it, or of one beside these or below one beside them."""
        below = {
            name: [inner for choice in choices for inner in choice.below]
            for name, choices in parameters.items()
            if any(choice.below for choice in choices)
        }
        inside = {
            n: {k: v for each in own for k, v in flattened(each).items()}
            for n, own in below.items()
        }
        owners: dict[str, list[str]] = {}
        for name in parameters if below else ():
            for each in (name, *inside.get(name, ())):
                owners.setdefault(each, []).append(name)
        for name, own in inside.items():
            for each, entries in own.items():
                others = [name] if each == name else owners[each][:2]
                for other in [n for n in others if n != name or each == name][:1]:
                    what = "a parameter" if other == each else f"a parameter below '{other}'"
                    said = f"'{each}' is also {what} of the same points; rename one"
                    self._problems.add(entries[0].place, said)
            for inner in below[name]:
                self._note_shadows(inner)

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
            if text in seen and not repeated:
                said = f"the value '{text}' is in the list twice; to repeat runs, use 'duplicates'"
                self._problems.add((*path, index), said)
            elif text is not None:
                seen.add(text)
                texts.append(text)
        return tuple(texts)

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
            said = "write this in a list: [{value: ..., machines: [...]}]"
            self._problems.add(path, said)
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
        wrong = None
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
