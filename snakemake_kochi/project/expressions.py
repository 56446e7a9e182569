"""Texts with `$x` and `${x}` in them, values with expressions in backticks, and conditions.

In values and conditions, `$machine.cores` is a fact of the machine. An expression has arithmetic,
comparison, conditions, texts and a few functions. It has no names but parameters and these
functions, and no attributes, subscripts or comprehensions. Numbers and texts are bounded, which
limits the time and memory of an expression.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from snakemake_kochi.errors import nearest
from snakemake_kochi.project.values import MAXIMUM_LENGTH, typed

_NAME = "[A-Za-z_][A-Za-z0-9_]*"
# `$` before anything else is itself, so prices and regular expressions need no escaping.
_REFERENCE = r"\$(?:(?P<dollar>\$)|(?P<plain>{})|(?P<open>\{{)(?:(?P<braced>[^{{}}]*)\}})?)"
_IN_TEXT = re.compile(_REFERENCE.format(_NAME))
_IN_EXPRESSION = re.compile(_REFERENCE.format(rf"machine\.{_NAME}|{_NAME}"))
_IN_VALUE = re.compile(f"{_IN_EXPRESSION.pattern}|`(?P<code>[^`]+)`")
# The beginning of the name of a fact; no parameter has a dot in its name.
FACT = "machine."
_MAXIMUM_SOURCE = 2_000  # characters; also bounds the depth of the recursion
_MAXIMUM_BITS = 10_000  # of a whole number; Python writes out no more than 4300 digits
_SINGLE_EQUALS = re.compile(r"[^=<>!]=[^=]")
_OF_C = (("&&", "and"), ("||", "or"), ("!(", "not ("), ("!$", "not $"))
# A letter around the number of a reference: a name that Python accepts, and nobody writes.
_MARK = "\u0298"
_MARKED = re.compile(rf"{_MARK}(\d+){_MARK}")


class TemplateError(ValueError):
    """A text cannot be parsed or has no value; the message is for people, without file and line."""


def is_fact(name: str) -> bool:
    """Whether a name in a value is that of a fact of the machine."""
    return name.startswith(FACT)


# ---- texts and values


@dataclass(frozen=True)
class Template:
    """A text with references and expressions: literals[0], inserted[0], literals[1], ...
    literals[-1].

    `$x` and `${x}` refer to x, `$$` is a dollar, and so is `$` before anything else.
    """

    literals: tuple[str, ...]
    inserted: tuple[str | Expression, ...] = ()

    @classmethod
    def parse(cls, text: str, syntax: re.Pattern[str] = _IN_TEXT) -> Template:
        """Raises TemplateError for `${` that is not closed, and for what is no expression."""
        literals, inserted, end = [""], list[str | Expression](), 0
        for found in syntax.finditer(text):
            literals[-1] += text[end : found.start()]
            end = found.end()
            if found["dollar"]:
                literals[-1] += "$"
                continue
            if found["open"] and found["braced"] is None:
                raise TemplateError("'${' without '}'; write $$ for a dollar")
            if code := found.groupdict().get("code"):
                inserted.append(Expression.parse(code))
            else:
                inserted.append(found["plain"] or found["braced"] or "")
            literals.append("")
        literals[-1] += text[end:]
        return cls(tuple(literals), tuple(inserted))

    @cached_property
    def names(self) -> tuple[str, ...]:
        every = ((e,) if isinstance(e, str) else e.names for e in self.inserted)
        return tuple(name for names in every for name in names)

    def render(self, values: Mapping[str, str]) -> str:
        """The text. `values` must have all names. Raises TemplateError."""
        if not self.inserted:
            return self.literals[0]
        parts = [self.literals[0]]
        for each, literal in zip(self.inserted, self.literals[1:], strict=True):
            parts += (values[each] if isinstance(each, str) else each.render(values), literal)
        return "".join(parts)


parse_text = functools.lru_cache(10_000)(Template.parse)


@functools.lru_cache(10_000)
def parse_value(text: str) -> Template:
    """A parameter's value: a text with references, in which text between backticks is an
    expression. Raises TemplateError."""
    return Template.parse(text, _IN_VALUE)


@functools.lru_cache(10_000)
def parse_expression(text: str) -> Expression:
    """A text that is an expression as a whole, with or without backticks around it: a condition,
    or a bound of a series. Raises TemplateError."""
    inner = re.fullmatch("`([^`]+)`", text.strip())
    return Expression.parse(inner[1] if inner else text)


@dataclass(frozen=True)
class Expression:
    """A parsed expression; `$x` in a text is x's text, elsewhere x as a number or boolean. The i-th
    reference is the name _MARK i _MARK in the tree."""

    source: str
    names: tuple[str, ...]
    _tree: ast.expr

    @classmethod
    def parse(cls, text: str) -> Expression:
        """From the text between the backticks. Raises TemplateError."""
        template = Template.parse(text, _IN_EXPRESSION)
        marks = {str(number): f"{_MARK}{number}{_MARK}" for number in range(len(template.names))}
        code = Template(template.literals, tuple(marks)).render(marks).strip()
        source = template.render({name: f"${{{name}}}" for name in template.names})
        if len(code) > _MAXIMUM_SOURCE or _MARK in text:
            said = f"is longer than {_MAXIMUM_SOURCE} characters, or has the character {_MARK}"
            raise TemplateError(f"the expression {said}")
        try:
            with warnings.catch_warnings():
                # In '\\d', for example: they are messages for programmers.
                warnings.simplefilter("ignore")
                tree = ast.parse(code, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            hint = "; to compare, write ==" if _SINGLE_EQUALS.search(source) else ""
            hint += "".join(f"; for {word}, write {own}" for word, own in _OF_C if word in source)
            raise TemplateError(f"`{source}` is not an expression{hint}") from error
        if wrong := _foreign_part(tree):
            raise TemplateError(f"`{source}`: {wrong}")
        return cls(source, template.names, tree)

    def render(self, values: Mapping[str, str]) -> str:
        """The result as a text: true or false for booleans, the shortest exact form of a float.

        Raises TemplateError when there is none.
        """
        return _text_of(self.result(values))

    def result(self, values: Mapping[str, str]) -> Any:
        """The result: a number, a boolean or a text. Raises TemplateError."""
        texts = [values[name] for name in self.names]
        try:
            return _plain(_value(self._tree, texts))
        except (TemplateError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
            raise TemplateError(f"{self.with_values(values)}: {error}") from error

    def holds(self, values: Mapping[str, str]) -> bool:
        """The result of a condition. Raises TemplateError if it is not true or false."""
        if not isinstance(result := self.result(values), bool):
            said = f"{self.with_values(values)}: true or false was expected, not {result!r}"
            raise TemplateError(f"{said}; compare it with something")
        return result

    def with_values(self, values: Mapping[str, str]) -> str:
        """The expression and the values of its names, for people."""
        given = ", ".join(f"{name}={values[name]!r}" for name in dict.fromkeys(self.names))
        return f"`{self.source}` with {given}" if given else f"`{self.source}`"


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
    elif isinstance(result, complex):
        raise TemplateError("the result is not a real number")
    return result


def _computed(operate: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """The result of an operation, unless it would take too much time or memory."""
    if isinstance(left, int) and isinstance(right, int):
        if operate in (operator.pow, operator.lshift):
            _bounded(right if operate is operator.lshift else left.bit_length() * max(0, right))
    elif operate is operator.mul:
        for text, count in ((left, right), (right, left)):
            if isinstance(text, str) and isinstance(count, int):
                _bounded(len(text) * count, MAXIMUM_LENGTH)
    # '%999999999d' would write a gigabyte.
    elif operate is operator.mod and re.search(r"%[^a-zA-Z%]*([0-9]{4}|\*)", str(left)):
        raise TemplateError("a format cannot have * or a width of more than 3 digits")
    return _checked(operate(left, right))


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


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
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
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{each.__name__: each for each in (abs, float, int, len, max, min)},
    "log2": _log2,
    "pow": functools.partial(_computed, operator.pow),
    "round": _round,
    "str": _text_of,
}
_PARTS = (
    *(ast.Constant, ast.Name, ast.Load, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.And, ast.Or),
    *(ast.Compare, ast.IfExp, ast.Tuple, ast.List, ast.Call, *_OPERATORS, *_COMPARISONS),
)


def _value(node: ast.expr, texts: list[str]) -> Any:
    """The value of a node, with the texts of the references; that of one is a _Parameter."""

    def plain(inner: ast.expr) -> Any:
        return _plain(_value(inner, texts))

    match node:
        case ast.Constant(value=str() as text):
            # Inserted after parsing, so that no value can end the literal around it.
            return _checked(_MARKED.sub(lambda found: texts[int(found[1])], text))
        case ast.Constant(value=constant):
            return constant
        case ast.Name(id=name):
            found = _MARKED.fullmatch(name)
            return _Parameter(texts[int(found[1])]) if found else name == "true"
        case ast.UnaryOp(op=op, operand=operand):
            return _checked(_OPERATORS[type(op)](plain(operand)))
        case ast.BinOp(left=left, op=op, right=right):
            return _computed(_OPERATORS[type(op)], plain(left), plain(right))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return plain(body if plain(test) else orelse)
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return _checked(_FUNCTIONS[name](*map(plain, arguments)))
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return tuple(_value(item, texts) for item in items)
        case ast.BoolOp(op=op, values=operands):
            for operand in operands:
                result = plain(operand)
                if bool(result) is isinstance(op, ast.Or):
                    break
            return result
        case ast.Compare(left=left, ops=ops, comparators=others):
            value = _value(left, texts)
            for comparison, other in zip(ops, others, strict=True):
                following = _value(other, texts)
                if not _COMPARISONS[type(comparison)](value, following):
                    return False
                value = following
            return True
    raise AssertionError(node)  # refused by the parser


def _foreign_part(tree: ast.expr) -> str | None:
    """What an expression has and cannot have, or None."""
    functions, lists = set[ast.expr](), set[ast.expr]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            functions.add(node.func)
        elif isinstance(node, ast.Compare):
            pairs = zip(node.ops, node.comparators, strict=True)
            lists |= {other for op, other in pairs if isinstance(op, ast.In | ast.NotIn)}
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            lists.add(node.right)
    for node in ast.walk(tree):
        name = node.id if isinstance(node, ast.Name) else ""
        is_known = name in ("", "true", "false") or _MARKED.fullmatch(name)
        is_list = isinstance(node, ast.Tuple | ast.List)
        is_odd = isinstance(node, ast.Constant) and not isinstance(node.value, int | float | str)
        if node in functions:
            if name not in _FUNCTIONS:
                return f"there is no function '{name}', {nearest(name, _FUNCTIONS)}"
        elif (
            not isinstance(node, _PARTS)
            or not is_known
            or (isinstance(node, ast.Call) and node.keywords)
            or (is_list and node not in lists)
            or is_odd
        ):
            shown = _MARKED.sub("${...}", name) or type(node).__name__
            return (
                f"'{shown}' has no meaning here; write a parameter as $name, and else use only "
                "numbers, texts, operators and calls, and lists after 'in', or a text and %"
            )
    return None
