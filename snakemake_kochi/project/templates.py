"""Texts with `$x` and `${x}` in them, and values with expressions in backticks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from snakemake_kochi.project.circles import chain, in_order
from snakemake_kochi.project.expressions import Expression, TemplateError

# `$` before anything else is itself, so prices and regular expressions need no escaping.
_REFERENCE = re.compile(
    r"\$(?:(?P<dollar>\$)|(?P<plain>[A-Za-z_][A-Za-z0-9_]*)|(?P<open>\{)(?:(?P<braced>[^{}]*)\})?)"
)
_EXPRESSION = re.compile("`([^`]+)`")


class Value(Protocol):
    """A parameter's value before substitution."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names it refers to."""

    def render(self, values: Mapping[str, str]) -> str:
        """The text. Raises TemplateError when it has none; `values` must have all names."""


@dataclass(frozen=True)
class Literal:
    """A text in which nothing is substituted."""

    text: str
    names: tuple[str, ...] = ()

    def render(self, values: Mapping[str, str]) -> str:
        return self.text


@dataclass(frozen=True)
class Template:
    """A text with references: literals[0], names[0], literals[1], ... literals[-1].

    `$x` and `${x}` refer to x, `$$` is a dollar, and so is `$` before anything else.
    """

    literals: tuple[str, ...]
    names: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Template:
        """Raises TemplateError for `${` that is not closed."""
        literals, names = split(text)
        return cls(tuple(literals), tuple(names))

    def render(self, values: Mapping[str, str]) -> str:
        parts = [self.literals[0]]
        for name, literal in zip(self.names, self.literals[1:], strict=True):
            parts += (values[name], literal)
        return "".join(parts)


def split(text: str) -> tuple[list[str], list[str]]:
    """The literals around the references of a text, one more than there are, and the names."""
    literals = [""]
    names = []
    end = 0
    for found in _REFERENCE.finditer(text):
        literals[-1] += text[end : found.start()]
        end = found.end()
        if found["dollar"]:
            literals[-1] += "$"
        elif found["open"] and found["braced"] is None:
            raise TemplateError("'${' without '}'; write $$ for a dollar")
        else:
            names.append(found["plain"] or found["braced"] or "")
            literals.append("")
    literals[-1] += text[end:]
    return literals, names


@dataclass(frozen=True)
class Joined:
    """Values written one after the other, as in a_`$n + 1`."""

    parts: tuple[Value, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for part in self.parts for name in part.names)

    def render(self, values: Mapping[str, str]) -> str:
        return "".join(part.render(values) for part in self.parts)


def parse_value(text: str) -> Value:
    """A parameter's value: a text with references, in which text between backticks is an
    expression. Raises TemplateError."""
    pieces = _EXPRESSION.split(text)  # texts and expressions in turn
    parts = tuple(
        Expression.parse(*split(piece)) if index % 2 else _parse_text(piece)
        for index, piece in enumerate(pieces)
        if piece or len(pieces) == 1
    )
    return parts[0] if len(parts) == 1 else Joined(parts)


def _parse_text(text: str) -> Value:
    return Template.parse(text) if "$" in text else Literal(text)


def dependency_order(values: Mapping[str, tuple[Value, ...]]) -> list[str]:
    """The names in an order in which each comes after those that its values use.

    Raises TemplateError for a cycle, naming it. Names that are not in `values` are left out.
    """

    def needed_by(name: str) -> Iterator[str]:
        return (other for value in values[name] for other in value.names if other in values)

    def refuse(circle: list[str]) -> None:
        names = chain([*circle, circle[0]])
        raise TemplateError(f"parameters refer to each other in a circle: {names}")

    return in_order(values, needed_by, refuse)
