"""Conditions that select points of a batch by their parameters: `n=100`, `n>1000`, `flags!=-O0`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from snakemake_kochi.errors import ConfigError, NameNotFoundError, nearest

_CONDITION = re.compile(r"\s*([^=!<>\s]+)\s*(==|!=|<=|>=|=|<|>)\s*(.*)", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,6})?", re.ASCII)
_RELATIONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MOST_VALUES = 10
_EXPECTED = "n=100, n!=100, n<100, n<=100, n>100 or n>=100"

# The parameters of a point and its duplicate.
Place = tuple[Mapping[str, str], int]


def _number_of(text: str) -> Decimal | None:
    """A text as a number, if it is one: 1.10 and 1.1 are the same number."""
    return Decimal(text.strip()) if _NUMBER.fullmatch(text.strip()) else None


@dataclass(frozen=True)
class Condition:
    """`name` is a parameter, or "duplicate"; `relation` is one of = != < <= > >=."""

    name: str
    relation: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Raises ConfigError."""
        match = _CONDITION.fullmatch(text)
        if match is None:
            raise ConfigError(f"'{text}' is no condition: {_EXPECTED} was expected")
        name, relation, value = match.groups()
        if relation[0] in "<>" and _number_of(value) is None:
            raise ConfigError(f"'{text}': a number was expected after '{relation}'")
        return cls(name, "=" if relation == "==" else relation, value.strip())

    def __str__(self) -> str:
        return f"{self.name}{self.relation}{self.value}"

    def holds(self, text: str | None) -> bool:
        """Whether it holds for a value; None: the point does not have the parameter."""
        if text is None or text == self.value:
            return self.relation in (("!=",) if text is None else ("=", "<=", ">="))
        value, wanted = _number_of(text), _number_of(self.value)
        if value is None or wanted is None:
            return self.relation == "!="
        return _RELATIONS[self.relation](value, wanted)


@dataclass(frozen=True)
class Where:
    """Points for which all conditions of one of the `alternatives` hold."""

    alternatives: tuple[tuple[Condition, ...], ...]

    @classmethod
    def parse(cls, *alternatives: Sequence[str]) -> Where:
        """From the texts of conditions. Raises ConfigError."""
        return cls(tuple(tuple(map(Condition.parse, texts)) for texts in alternatives))

    def has(self, parameters: Mapping[str, str], duplicate: int) -> bool:
        values = {**parameters, "duplicate": str(duplicate)}
        every = self.alternatives
        return any(all(each.holds(values.get(each.name)) for each in some) for some in every)

    def check(self, points: Iterable[Place], batch: str) -> None:
        """Raise an error, with what was expected, unless each alternative selects a point.

        `batch` names it in messages. Raises NameNotFoundError for an unknown parameter and
        ConfigError for a value, or a combination, that no point has.
        """
        known = [{**parameters, "duplicate": str(number)} for parameters, number in points]
        names = dict.fromkeys(name for point in known for name in point)
        for conditions in self.alternatives:
            for each in conditions:
                if each.name not in names:
                    said = f"{batch} has no parameter '{each.name}', {nearest(each.name, names)}"
                    raise NameNotFoundError(f"'{each}': {said}")
                own = list(dict.fromkeys(p[each.name] for p in known if each.name in p))
                if not any(map(each.holds, own)):
                    shown = ", ".join(own[:_MOST_VALUES])
                    more = f" and {len(own) - _MOST_VALUES} more" if own[_MOST_VALUES:] else ""
                    said = f"its values of {each.name} are {shown}{more}"
                    raise ConfigError(f"{batch} has no point with {each}: {said}")
            if not any(all(each.holds(p.get(each.name)) for each in conditions) for p in known):
                said = f"{' and '.join(map(str, conditions))}, only points with some of them"
                raise ConfigError(f"{batch} has no point with {said}")
