"""Texts with `$x` and `${x}` in them, values with expressions in backticks, and conditions.

In values and conditions, `$machine.cores` is a fact of the machine.
"""

from __future__ import annotations

import ast
import functools
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from snakemake_kochi.project.evaluation import (
    Evaluation,
    refuse_foreign_parts,
    text_of,
)
from snakemake_kochi.project.evaluation import (
    TemplateError as TemplateError,
)

# `$` before anything else is itself, so prices and regular expressions need no escaping.
_NAME = "[A-Za-z_][A-Za-z0-9_]*"
_REFERENCE, _REFERENCE_OR_FACT = (
    re.compile(
        rf"\$(?:(?P<dollar>\$)|(?P<plain>{plain})|(?P<open>\{{)(?:(?P<braced>[^{{}}]*)\}})?)"
    )
    for plain in (_NAME, rf"machine\.{_NAME}|{_NAME}")
)
# The beginning of the name of a fact; no parameter has a dot in its name.
FACT = "machine."
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
    def parse(cls, text: str, facts: bool = False) -> Template:
        """With `facts`, `$machine.x` refers to `machine.x`. Raises TemplateError for `${` that is
        not closed."""
        literals, names = _split(text, facts)
        return cls(tuple(literals), tuple(names))

    def render(self, values: Mapping[str, str]) -> str:
        parts = [self.literals[0]]
        for name, literal in zip(self.names, self.literals[1:], strict=True):
            parts += (values[name], literal)
        return "".join(parts)


def _split(text: str, facts: bool) -> tuple[list[str], list[str]]:
    """The literals around the references of a text, one more than there are, and the names."""
    reference = _REFERENCE_OR_FACT if facts else _REFERENCE
    literals = [""]
    names = []
    end = 0
    for found in reference.finditer(text):
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


@functools.lru_cache(10_000)
def parse_value(text: str) -> Value:
    """A parameter's value: a text with references, in which text between backticks is an
    expression. Raises TemplateError."""
    pieces = _EXPRESSION.split(text)  # texts and expressions in turn
    parts = tuple(
        Expression.parse(piece) if index % 2 else _parse_text(piece)
        for index, piece in enumerate(pieces)
        if piece or len(pieces) == 1
    )
    return parts[0] if len(parts) == 1 else Joined(parts)


def _parse_text(text: str) -> Value:
    return Template.parse(text, facts=True) if "$" in text else Literal(text)


@functools.lru_cache(10_000)
def parse_expression(text: str) -> Expression:
    """A text that is an expression as a whole, with or without backticks around it: a condition,
    or a bound of a series. Raises TemplateError."""
    inner = _EXPRESSION.fullmatch(text.strip())
    return Expression.parse(inner[1] if inner else text)


def is_fact(name: str) -> bool:
    """Whether a name in a value is that of a fact of the machine."""
    return name.startswith(FACT)


_LISTS = (ast.Tuple, ast.List)
_SINGLE_EQUALS = re.compile(r"[^=<>!]=[^=]")
_OF_C = (("&&", "and"), ("||", "or"), ("!(", "not ("), ("!$", "not $"))
_MAXIMUM_SOURCE = 2_000  # characters; also bounds the depth of the recursion


@dataclass(frozen=True)
class Expression:
    """A parsed expression; `$x` in a text is x's text, elsewhere x as a number or boolean."""

    source: str
    names: tuple[str, ...]
    _tree: ast.expr
    _placeholder: re.Pattern[str]

    @classmethod
    def parse(cls, text: str) -> Expression:
        """From the text between the backticks. Raises TemplateError."""
        literals, names = _split(text, facts=True)
        prefix = "parameter_"
        while any(prefix in literal for literal in literals):
            prefix += "_"
        placeholder = re.compile(rf"{prefix}\d+_")
        code, source = literals[0], literals[0]
        for index, (name, literal) in enumerate(zip(names, literals[1:], strict=True)):
            code += f"{prefix}{index}_{literal}"
            source += f"${{{name}}}{literal}"
        if len(code) > _MAXIMUM_SOURCE:
            raise TemplateError(f"the expression has more than {_MAXIMUM_SOURCE} characters")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore"
                )  # in '\\d', for example: these are messages for programmers
                tree = ast.parse(code.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            hint = "; to compare, write ==" if _SINGLE_EQUALS.search(source) else ""
            hint += "".join(f"; for {word}, write {own}" for word, own in _OF_C if word in source)
            raise TemplateError(f"`{source}` is not an expression{hint}") from error
        known = {f"{prefix}{index}_" for index in range(len(names))}
        try:
            refuse_foreign_parts(tree, known)
        except TemplateError as error:
            raise TemplateError(f"`{source}`: {error}") from error
        return cls(source, tuple(names), tree, placeholder)

    def render(self, values: Mapping[str, str]) -> str:
        """The result as a text: true or false for booleans, the shortest exact form of a float.

        Raises TemplateError when there is none.
        """
        result = self.result(values)
        if isinstance(result, tuple):
            raise self._error("the result is a list, a single value was expected", values)
        return text_of(result)

    def result(self, values: Mapping[str, str]) -> Any:
        """The result: a number, a boolean, a text or a tuple. Raises TemplateError."""
        prefix = self._placeholder.pattern.removesuffix(r"\d+_")
        texts = {f"{prefix}{i}_": values[name] for i, name in enumerate(self.names)}
        try:
            return Evaluation(self._placeholder, texts).value(self._tree)
        except (TemplateError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
            raise self._error(str(error), values) from error

    def compared(self) -> Iterator[tuple[str, str]]:
        """The names that are compared with texts by ==, !=, in or not in, and these texts."""
        for node in ast.walk(self._tree):
            if not isinstance(node, ast.Compare) or len(node.ops) > 1:
                continue
            (other,) = node.comparators
            sides = [(node.left, other)]
            if isinstance(node.ops[0], ast.Eq | ast.NotEq):
                sides.append((other, node.left))
            elif isinstance(node.ops[0], ast.In | ast.NotIn) and isinstance(other, _LISTS):
                sides = [(node.left, each) for each in other.elts]
            else:
                continue
            for one, text in sides:
                if not isinstance(one, ast.Name) or not isinstance(text, ast.Constant):
                    continue
                is_fixed = isinstance(text.value, str) and not self._placeholder.search(text.value)
                if is_fixed and (number := re.search(r"(\d+)_$", one.id)):
                    yield self.names[int(number[1])], str(text.value)

    def with_values(self, values: Mapping[str, str]) -> str:
        """The expression and the values of its names, for people."""
        given = ", ".join(f"{name}={values[name]!r}" for name in dict.fromkeys(self.names))
        return f"`{self.source}` with {given}" if given else f"`{self.source}`"

    def _error(self, message: str, values: Mapping[str, str]) -> TemplateError:
        return TemplateError(f"{self.with_values(values)}: {message}")
