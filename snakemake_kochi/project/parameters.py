"""What an experiment says about parameters: their values, and how these are combined.

Everything is as written; `expansion` makes the combinations of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from snakemake_kochi.errors import nearest
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.templates import (
    FACT,
    Expression,
    Literal,
    Value,
    parse_expression,
    parse_value,
)

if TYPE_CHECKING:
    from snakemake_kochi.project.problems import KeyPath

CSV = "csv"
SERIES = ("range", "linspace", "geom", "igeom", "pow2", CSV)


@dataclass(frozen=True)
class ParameterValues:
    """Values of a parameter, on all machines (None) or some.

    With `series`, one of SERIES, `values` are its arguments: expressions, or for `csv` the path of
    the file in the project and the column. `below` is either empty, or has the sub-parameters that
    come with each of the values. Nothing is substituted in values that are `literal`.
    """

    values: tuple[str, ...]
    machines: tuple[str, ...] | None = None
    series: str = ""
    below: tuple[Parameters, ...] = ()
    literal: bool = False

    def on(self, machine: str) -> bool:
        return self.machines is None or machine in self.machines

    @property
    def has_several(self) -> bool:
        """Whether there may be several values."""
        return bool(self.series) or len(self.values) > 1

    def parsed(self) -> tuple[Value, ...]:
        """The values, or the arguments of a series that may refer to something."""
        if self.series == CSV:
            return ()
        if self.series:
            return tuple(map(parse_expression, self.values))
        if self.literal:
            return tuple(map(Literal, self.values))
        return tuple(map(parse_value, self.values))


Parameters = Mapping[str, tuple[ParameterValues, ...]]


def select(choices: Iterable[ParameterValues], machine: str) -> ParameterValues | None:
    """The entry that counts on a machine: the last one that matches."""
    matching = [choice for choice in choices if choice.on(machine)]
    return matching[-1] if matching else None


def machines_named(parameters: Parameters) -> set[str]:
    """The machines for which a parameter has values of its own."""
    return {
        machine
        for choices in flattened(parameters).values()
        for choice in choices
        for machine in choice.machines or ()
    }


def flattened(parameters: Parameters) -> dict[str, tuple[ParameterValues, ...]]:
    """All entries of each parameter, and of each sub-parameter, in the order of the file."""
    found: dict[str, tuple[ParameterValues, ...]] = {}
    for name, choices in parameters.items():
        found[name] = found.get(name, ()) + choices
        for choice in choices:
            for each in choice.below:
                for inner, inner_choices in flattened(each).items():
                    found[inner] = found.get(inner, ()) + inner_choices
    return found


def entries_of(parameters: Iterable[Parameters]) -> dict[str, tuple[ParameterValues, ...]]:
    """All entries of each parameter, those that are the same in several grids once."""
    found: dict[str, tuple[ParameterValues, ...]] = {}
    for each in parameters:
        for name, choices in each.items():
            known = found.get(name, ())
            found[name] = known + tuple(choice for choice in choices if choice not in known)
    return found


def without_parameter(missing: str, values: Mapping[str, str], own: Iterable[str]) -> str:
    """What is wrong with a name that a point does not have, for people. `own`: the parameters of
    the batch."""
    shown = ", ".join(f"{name}={values[name]}" for name in own if name in values)
    return (
        f"the point ({shown}) has no parameter '{missing}'; give it a value there, or one for all "
        "points in default_params"
    )


def names_below(parameters: Parameters) -> Iterator[str]:
    """The names of the sub-parameters, which only some points have."""
    for choices in parameters.values():
        for choice in choices:
            for each in choice.below:
                yield from flattened(each)


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
    has some values for some parameters, is left out. `place` is its key in the file, `places` those
    of its parameters.
    """

    parameters: Parameters
    place: KeyPath
    places: Mapping[str, KeyPath]
    zipped: tuple[tuple[str, ...], ...] = ()
    exclude: tuple[tuple[KeyPath, Mapping[str, tuple[str, ...]]], ...] = ()
    conditions: tuple[Condition, ...] = ()

    @cached_property
    def all_places(self) -> Mapping[str, KeyPath]:
        """The keys of its parameters and their sub-parameters."""
        found = dict(self.places)
        for name, choices in self.parameters.items():
            found |= dict(_places_below(choices, self.places[name]))
        return found

    def place_of(self, name: str) -> KeyPath:
        """The key of a parameter in the file."""
        return self.all_places.get(name, ("default_params", name))

    @property
    def called(self) -> str:
        """The sweep in messages about its batch."""
        match self.place:
            case (*_, str(key), int(index)):
                return f"{key}[{index}]"
        return "the batch's params"


def _places_below(
    choices: Iterable[ParameterValues], path: KeyPath
) -> Iterator[tuple[str, KeyPath]]:
    for choice in choices:
        for value, below in zip(choice.values, choice.below, strict=False):
            for name, inner in below.items():
                yield name, (*path, value, name)
                yield from _places_below(inner, (*path, value, name))


@dataclass(frozen=True)
class Skipped:
    """A combination of parameters that is not run, and why, for people."""

    parameters: FrozenDict[str, str]
    reason: str


# The facts that every machine has, if its scheduler can be asked.
STANDARD_FACTS = ("name", "cores", "sockets", "memory_mb", "gpus", "nodes")


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
        write = (
            f"write into kochi.yaml: machines: {{{self.machine}: {{facts: {{{short}: VALUE}}}}}}"
        )
        if short in STANDARD_FACTS:
            why = f": {self.without}" if self.without else ""
            return f"${name} is not known for machine '{self.machine}'{why}; {write}"
        said = nearest(short, {*self.facts, *STANDARD_FACTS})
        also = " Or " if said.endswith("?") else "; or "
        return f"machine '{self.machine}' has no fact '{short}', {said}{also}{write}"
