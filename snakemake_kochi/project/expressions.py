"""Texts with `$x` and `${x}` in them, values with expressions in backticks, and conditions.

In values and conditions, `$machine.cores` is a fact of the machine. An expression has arithmetic,
comparison, conditions, texts and a few functions. It has no names but parameters and these
functions, and no attributes, subscripts or comprehensions. Numbers, texts and lists are bounded,
which limits the time and memory of an expression.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from snakemake_kochi.errors import nearest
from snakemake_kochi.project.values import MAXIMUM_LENGTH, typed

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
_BACKTICKS = re.compile("`([^`]+)`")
_MAXIMUM_SOURCE = 2_000  # characters; also bounds the depth of the recursion
_MAXIMUM_BITS = 10_000  # of a whole number; Python writes out no more than 4300 digits
_MAXIMUM_ENTRIES = 10_000  # of a list
_SINGLE_EQUALS = re.compile(r"[^=<>!]=[^=]")
_OF_C = (("&&", "and"), ("||", "or"), ("!(", "not ("), ("!$", "not $"))


class TemplateError(Exception):
    """A text cannot be parsed or has no value; the message is for people, without file and line."""


def is_fact(name: str) -> bool:
    """Whether a name in a value is that of a fact of the machine."""
    return name.startswith(FACT)


# ---- values


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
        literals, names, end = [""], [], 0
        for found in (_REFERENCE_OR_FACT if facts else _REFERENCE).finditer(text):
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
        return cls(tuple(literals), tuple(names))

    def render(self, values: Mapping[str, str]) -> str:
        """The text. `values` must have all names."""
        if not self.names:
            return self.literals[0]
        parts = [self.literals[0]]
        for name, literal in zip(self.names, self.literals[1:], strict=True):
            parts += (values[name], literal)
        return "".join(parts)


@functools.lru_cache(10_000)
def parse_text(text: str) -> Template:
    """A text with references to parameters. Raises TemplateError."""
    return Template.parse(text)


def plain(text: str) -> Template:
    """A text in which nothing is substituted."""
    return Template((text,), ())


@dataclass(frozen=True)
class Joined:
    """Values written one after the other, as in a_`$n + 1`."""

    parts: tuple[Value, ...]
    names: tuple[str, ...]

    def render(self, values: Mapping[str, str]) -> str:
        return "".join(part.render(values) for part in self.parts)


@functools.lru_cache(10_000)
def parse_value(text: str) -> Value:
    """A parameter's value: a text with references, in which text between backticks is an
    expression. Raises TemplateError."""
    parts: list[Value] = []
    for index, piece in enumerate(_BACKTICKS.split(text)):  # texts and expressions in turn
        if index % 2:
            parts.append(Expression.parse(piece))
        elif piece or not text:
            parts.append(Template.parse(piece, facts=True))
    names = tuple(name for part in parts for name in part.names)
    return parts[0] if len(parts) == 1 else Joined(tuple(parts), names)


@functools.lru_cache(10_000)
def parse_expression(text: str) -> Expression:
    """A text that is an expression as a whole, with or without backticks around it: a condition,
    or a bound of a series. Raises TemplateError."""
    inner = _BACKTICKS.fullmatch(text.strip())
    return Expression.parse(inner[1] if inner else text)


@dataclass(frozen=True)
class Expression:
    """A parsed expression; `$x` in a text is x's text, elsewhere x as a number or boolean."""

    source: str
    names: tuple[str, ...]
    _tree: ast.expr
    _prefix: str  # the i-th reference is the name PREFIXi_ in the tree

    @classmethod
    def parse(cls, text: str) -> Expression:
        """From the text between the backticks. Raises TemplateError."""
        template = Template.parse(text, facts=True)
        prefix = "parameter_"
        while any(prefix in literal for literal in template.literals):
            prefix += "_"
        known = [f"{prefix}{index}_" for index in range(len(template.names))]
        code = Template(template.literals, tuple(known)).render({name: name for name in known})
        source = template.render({name: f"${{{name}}}" for name in template.names})
        if len(code) > _MAXIMUM_SOURCE:
            raise TemplateError(f"the expression has more than {_MAXIMUM_SOURCE} characters")
        try:
            with warnings.catch_warnings():
                # In '\\d', for example: they are messages for programmers.
                warnings.simplefilter("ignore")
                tree = ast.parse(code.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            hint = "; to compare, write ==" if _SINGLE_EQUALS.search(source) else ""
            hint += "".join(f"; for {word}, write {own}" for word, own in _OF_C if word in source)
            raise TemplateError(f"`{source}` is not an expression{hint}") from error
        if wrong := _foreign_part(tree, known):
            raise TemplateError(f"`{source}`: {wrong}")
        return cls(source, template.names, tree, prefix)

    def render(self, values: Mapping[str, str]) -> str:
        """The result as a text: true or false for booleans, the shortest exact form of a float.

        Raises TemplateError when there is none.
        """
        result = self.result(values)
        if isinstance(result, tuple):
            said = "the result is a list, a single value was expected"
            raise TemplateError(f"{self.with_values(values)}: {said}")
        return _text_of(result)

    def result(self, values: Mapping[str, str]) -> Any:
        """The result: a number, a boolean, a text or a tuple. Raises TemplateError."""
        texts = {f"{self._prefix}{i}_": values[name] for i, name in enumerate(self.names)}
        try:
            return _plain(_Evaluation(self._prefix, texts).value(self._tree))
        except (TemplateError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
            raise TemplateError(f"{self.with_values(values)}: {error}") from error

    def compared(self) -> Iterator[tuple[str, str]]:
        """The names that are compared with texts by ==, !=, in or not in, and these texts."""
        for node in ast.walk(self._tree):
            if not isinstance(node, ast.Compare) or len(node.ops) > 1:
                continue
            left, (op,), (right,) = node.left, node.ops, node.comparators
            sides = []
            if isinstance(op, ast.Eq | ast.NotEq):
                sides = [(left, right), (right, left)]
            elif isinstance(op, ast.In | ast.NotIn) and isinstance(right, ast.Tuple | ast.List):
                sides = [(left, each) for each in right.elts]
            for one, text in sides:
                if isinstance(one, ast.Name) and isinstance(text, ast.Constant):
                    is_fixed = isinstance(text.value, str) and self._prefix not in text.value
                    if is_fixed and (number := re.search(r"(\d+)_$", one.id)):
                        yield self.names[int(number[1])], str(text.value)

    def with_values(self, values: Mapping[str, str]) -> str:
        """The expression and the values of its names, for people."""
        given = ", ".join(f"{name}={values[name]!r}" for name in dict.fromkeys(self.names))
        return f"`{self.source}` with {given}" if given else f"`{self.source}`"


# What a text is before substitution, with the names to which it refers.
Value = Template | Joined | Expression


# ---- evaluation


class _Parameter(str):
    """The text of a parameter, which is a number or a boolean except beside a text."""


def _plain(value: Any) -> Any:
    """A value as it counts in an operation: of parameters what they are taken for."""
    if isinstance(value, _Parameter):
        return typed(str(value))
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value


def _text_of(value: Any) -> str:
    """The text of a result: true or false for booleans."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bounded(size: int, limit: int = _MAXIMUM_BITS) -> None:
    if size > limit:
        raise TemplateError("the result is too large")


def _checked(result: Any) -> Any:
    if isinstance(result, int):
        _bounded(result.bit_length())
    elif isinstance(result, str):
        _bounded(len(result), MAXIMUM_LENGTH)
    return result


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(base, int) and isinstance(exponent, int) and exponent > 0:
        _bounded(base.bit_length() * exponent)
    result = base**exponent
    if isinstance(result, complex):
        raise TemplateError(f"{base} ** {exponent} is not a real number")
    return result


def _multiply(left: Any, right: Any) -> Any:
    for text, count in ((left, right), (right, left)):
        if isinstance(text, str) and isinstance(count, int):
            _bounded(len(text) * count, MAXIMUM_LENGTH)
    return left * right


def _shift_left(value: Any, by: Any) -> Any:
    if isinstance(by, int):
        _bounded(by)
    return value << by


def _modulo(left: Any, right: Any) -> Any:
    # '%999999999d' would write a gigabyte.
    if isinstance(left, str) and re.search(r"%[^a-zA-Z%]*([0-9]{4}|\*)", left):
        raise TemplateError("a format cannot have * or a width of more than 3 digits")
    return left % right


def _equal(left: Any, right: Any) -> bool:
    """Beside a text, a parameter is its text: `$mode == 'on'`, `$version != '1.10'`."""
    if isinstance(left, str) and isinstance(right, str):
        are_parameters = isinstance(left, _Parameter) and isinstance(right, _Parameter)
        if not are_parameters or str(left) == str(right):
            return str(left) == str(right)
    return bool(_plain(left) == _plain(right))


def _contained(item: Any, container: Any) -> bool:
    if isinstance(container, tuple):
        return any(_equal(item, each) for each in container)
    return (str(item) if isinstance(item, _Parameter) else item) in _plain(container)


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: _multiply,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: _modulo,
    ast.Pow: _power,
    ast.LShift: _shift_left,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
    ast.Not: operator.not_,
}
# Of operands in which parameters are texts as yet.
_COMPARISONS: dict[type[ast.AST], Callable[[Any, Any], bool]] = {
    ast.Eq: _equal,
    ast.NotEq: lambda left, right: not _equal(left, right),
    ast.In: _contained,
    ast.NotIn: lambda left, right: not _contained(left, right),
    ast.Lt: lambda left, right: _plain(left) < _plain(right),
    ast.LtE: lambda left, right: _plain(left) <= _plain(right),
    ast.Gt: lambda left, right: _plain(left) > _plain(right),
    ast.GtE: lambda left, right: _plain(left) >= _plain(right),
}


def _range(*bounds: int) -> tuple[int, ...]:
    found = range(*bounds)
    # Not len(): it fails for objects that are larger than an index.
    if found and abs(found[-1] - found[0]) // abs(found.step) >= _MAXIMUM_ENTRIES:
        raise TemplateError(f"more than {_MAXIMUM_ENTRIES} numbers")
    return tuple(found)


def _log2(value: Any) -> Any:
    if not isinstance(value, int | float):
        raise TemplateError(f"log2 of a number was expected, not of {_text_of(value)!r}")
    if value <= 0:
        raise TemplateError(f"log2({_text_of(value)}) does not exist; the number must be above 0")
    # Exact for powers of two, where it becomes a part of names.
    is_power = isinstance(value, int) and value & (value - 1) == 0
    return int(value).bit_length() - 1 if is_power else math.log2(value)


def _round(value: Any, *digits: Any) -> Any:
    if digits and isinstance(digits[0], int):
        _bounded(abs(digits[0]))  # Python computes 10 ** digits
    return round(value, *digits)


def _sum(values: Any) -> Any:
    if not isinstance(values, tuple) or any(isinstance(v, str | tuple) for v in values):
        raise TemplateError("a list of numbers was expected")
    return sum(values)


def _str(value: Any) -> str:
    if isinstance(value, tuple):  # its text may be as long as those of all of its entries
        raise TemplateError("a single value was expected, not a list")
    return _text_of(value)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{each.__name__: each for each in (abs, all, any, float, int, len, max, min)},
    "log2": _log2,
    "pow": _power,
    "range": _range,
    "round": _round,
    "str": _str,
    "sum": _sum,
    "sorted": lambda values: tuple(sorted(values)),
}
_LITERAL_NAMES = {"true": True, "false": False}
_PARTS = (
    *(ast.Constant, ast.Name, ast.Load, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.And, ast.Or),
    *(ast.Compare, ast.IfExp, ast.Tuple, ast.List, ast.Call, *_OPERATORS, *_COMPARISONS),
)


class _Evaluation:
    """One evaluation, with the texts of the parameters by their names in the tree."""

    def __init__(self, prefix: str, texts: Mapping[str, str]) -> None:
        self._prefix, self._texts = prefix, texts

    def value(self, node: ast.expr) -> Any:
        """The value of a node; that of a parameter is a _Parameter."""
        match node:
            case ast.Constant(value=str() as text):
                # Inserted after parsing, so that no value can end the literal around it.
                names = re.compile(rf"{self._prefix}\d+_")
                return _checked(names.sub(lambda m: self._texts.get(m[0], m[0]), text))
            case ast.Constant(value=constant):
                return constant
            case ast.Name(id=name):
                return _Parameter(self._texts[name]) if name in self._texts else name == "true"
            case ast.UnaryOp(op=op, operand=operand):
                return _checked(_OPERATORS[type(op)](self._plain(operand)))
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(op, self._plain(left), self._plain(right))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._plain(body if self._plain(test) else orelse)
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return _checked(_FUNCTIONS[name](*map(self._plain, arguments)))
            case ast.Tuple(elts=items) | ast.List(elts=items):
                return tuple(map(self.value, items))
            case ast.BoolOp(op=op, values=operands):
                for operand in operands:
                    result = self._plain(operand)
                    if bool(result) is isinstance(op, ast.Or):
                        break
                return result
            case ast.Compare(left=left, ops=ops, comparators=others):
                value = self.value(left)
                for comparison, other in zip(ops, map(self.value, others), strict=True):
                    if not _COMPARISONS[type(comparison)](value, other):
                        return False
                    value = other
                return True
        raise AssertionError(node)  # refused by the parser

    def _plain(self, node: ast.expr) -> Any:
        return _plain(self.value(node))

    def _binary(self, op: ast.operator, left: Any, right: Any) -> Any:
        formatting = isinstance(op, ast.Mod) and isinstance(left, str)
        if isinstance(left, tuple) or (isinstance(right, tuple) and not formatting):
            raise TemplateError(
                "a list is only allowed in a call, and after 'in', 'not in', or a text and %"
            )
        return _checked(_OPERATORS[type(op)](left, right))


def _foreign_part(tree: ast.expr, known: list[str]) -> str | None:
    """What an expression has and cannot have, or None; `known`: the names of its parameters."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if id(node) in called:
            if not isinstance(node, ast.Name) or node.id in known:
                return f"only a function can be called; {nearest('', _FUNCTIONS)}"
            if node.id not in _FUNCTIONS:
                return f"there is no function '{node.id}', {nearest(node.id, _FUNCTIONS)}"
        elif not isinstance(node, _PARTS):
            return (
                f"{type(node).__name__} is not allowed here; use only numbers, texts, $parameters, "
                "operators and calls"
            )
        elif isinstance(node, ast.Call) and node.keywords:
            return "a call cannot have named arguments"
        elif isinstance(node, ast.Name) and node.id not in (*known, *_LITERAL_NAMES):
            shown = re.sub(r"parameter_+\d+_", "${...}", node.id)
            return f"'{shown}' has no meaning here; write a parameter as $name"
        elif isinstance(node, ast.Constant) and not isinstance(
            node.value, bool | int | float | str
        ):
            return f"{node.value!r} is not possible here"
    return None
