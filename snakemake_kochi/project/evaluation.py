"""The evaluation of a parsed expression.

An expression has arithmetic, comparison, conditions, texts and a few functions. It has no names but
parameters and these functions, and no attributes, subscripts or comprehensions. Numbers, texts and
lists are bounded, which limits the time and memory of an expression.
"""

from __future__ import annotations

import ast
import itertools
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from snakemake_kochi.errors import nearest
from snakemake_kochi.project.values import MAXIMUM_LENGTH, typed


class TemplateError(Exception):
    """A text cannot be parsed or has no value; the message is for people, without file and line."""


_MAXIMUM_BITS = 10_000  # of a whole number; Python writes out no more than 4300 digits
_MAXIMUM_ENTRIES = 10_000  # of a list

_NODES = frozenset(
    [
        "Constant",
        "Name",
        "Load",
        "BinOp",
        "UnaryOp",
        "BoolOp",
        "And",
        "Or",
        "Compare",
        "IfExp",
        "Tuple",
        "List",
        "Call",
    ]
)
_LITERAL_NAMES = {"true": True, "false": False}


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
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, container: item in container,
    ast.NotIn: lambda item, container: item not in container,
}


def _of_single_values(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that takes no lists: the text of a list may be as long as all of its entries'."""

    def call(*values: Any) -> Any:
        if any(isinstance(value, tuple) for value in values):
            raise TemplateError("a single value was expected, not a list")
        return function(*values)

    return call


def _range(*bounds: int) -> tuple[int, ...]:
    found = range(*bounds)
    # Not len(): it fails for objects that are larger than an index.
    if found and abs(found[-1] - found[0]) // abs(found.step) >= _MAXIMUM_ENTRIES:
        raise TemplateError(f"more than {_MAXIMUM_ENTRIES} numbers")
    return tuple(found)


def _log2(value: Any) -> Any:
    if not isinstance(value, int | float):
        raise TemplateError(f"log2 of a number was expected, not of {text_of(value)!r}")
    if value <= 0:
        raise TemplateError(f"log2({text_of(value)}) does not exist; the number must be above 0")
    # Exact for powers of two, where it becomes a part of names.
    if isinstance(value, int) and value & (value - 1) == 0:
        return value.bit_length() - 1
    return math.log2(value)


def _round(value: Any, *digits: Any) -> Any:
    if digits and isinstance(digits[0], int):
        _bounded(abs(digits[0]))  # Python computes 10 ** digits
    return round(value, *digits)


def _sum(values: Any) -> Any:
    if not isinstance(values, tuple) or any(isinstance(v, str | tuple) for v in values):
        raise TemplateError("a list of numbers was expected")
    return sum(values)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "all": all,
    "any": any,
    "float": float,
    "int": int,
    "len": len,
    "log2": _log2,
    "max": max,
    "min": min,
    "pow": _power,
    "range": _range,
    "round": _round,
    "sorted": lambda values: tuple(sorted(values)),
    "str": _of_single_values(lambda value: text_of(value)),
    "sum": _sum,
}


def text_of(value: Any) -> str:
    """The text of a result: true or false for booleans."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _bounded(size: int, limit: int = _MAXIMUM_BITS) -> None:
    if size > limit:
        raise TemplateError("the result is too large")


def _checked(result: Any) -> Any:
    if isinstance(result, int):
        _bounded(result.bit_length())
    elif isinstance(result, str):
        _bounded(len(result), MAXIMUM_LENGTH)
    return result


@dataclass(frozen=True)
class Evaluation:
    """One evaluation with the values of the placeholders."""

    placeholder: re.Pattern[str]
    texts: Mapping[str, str]

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=str() as text):
                # Inserted after parsing, so that no value can end the literal around it.
                return _checked(self.placeholder.sub(lambda m: self.texts.get(m[0], m[0]), text))
            case ast.Constant(value=constant):
                return constant
            case ast.Name(id=name):
                return typed(self.texts[name]) if name in self.texts else _LITERAL_NAMES[name]
            case ast.UnaryOp(op=op, operand=operand):
                return _checked(_OPERATORS[type(op)](self.value(operand)))
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(op, self.value(left), self.value(right))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self.value(body if self.value(test) else orelse)
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return _checked(_FUNCTIONS[name](*map(self.value, arguments)))
            case ast.Tuple(elts=items) | ast.List(elts=items):
                return tuple(self.value(item) for item in items)
            case ast.BoolOp(op=op, values=operands):
                stop = isinstance(op, ast.Or)
                for operand in operands:
                    result = self.value(operand)
                    if bool(result) is stop:
                        break
                return result
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                return self._compare(left, ops, comparators)
        raise AssertionError(node)  # refused by the parser

    def _binary(self, op: ast.operator, left: Any, right: Any) -> Any:
        formatting = isinstance(op, ast.Mod) and isinstance(left, str)
        if isinstance(left, tuple) or (isinstance(right, tuple) and not formatting):
            raise TemplateError(
                "a list is only allowed in a call, and after 'in', 'not in', or a text and %"
            )
        return _checked(_OPERATORS[type(op)](left, right))

    def _compare(self, left: ast.expr, ops: list[ast.cmpop], others: list[ast.expr]) -> bool:
        value = self._operand(left)
        for op, other in zip(ops, others, strict=True):
            next_value = self._operand(other)
            if not _holds(op, value, next_value):
                return False
            value = next_value
        return True

    def _operand(self, node: ast.expr) -> Any:
        """The value on one side of a comparison, in which parameters are texts as yet."""
        match node:
            case ast.Name(id=name) if name in self.texts:
                return _Parameter(self.texts[name])
            case ast.Tuple(elts=items) | ast.List(elts=items):
                return tuple(self._operand(item) for item in items)
        return self.value(node)


@dataclass(frozen=True)
class _Parameter:
    text: str


def _holds(op: ast.cmpop, left: Any, right: Any) -> bool:
    if isinstance(op, ast.In | ast.NotIn) and isinstance(right, tuple):
        return any(map(_are_equal, itertools.repeat(left), right)) is isinstance(op, ast.In)
    if isinstance(op, ast.Eq | ast.NotEq):
        return _are_equal(left, right) is isinstance(op, ast.Eq)
    if isinstance(left, _Parameter) and isinstance(op, ast.In | ast.NotIn):
        left = left.text
    return bool(_OPERATORS[type(op)](_valued(left), _valued(right)))


def _are_equal(left: Any, right: Any) -> bool:
    """Beside a text, a parameter is its text: `$mode == 'on'`, `$version != '1.10'`."""
    texts = [each.text if isinstance(each, _Parameter) else each for each in (left, right)]
    if all(isinstance(text, str) for text in texts):
        is_text = not (isinstance(left, _Parameter) and isinstance(right, _Parameter))
        if is_text or texts[0] == texts[1]:
            return bool(texts[0] == texts[1])
    return bool(_valued(left) == _valued(right))


def _valued(operand: Any) -> Any:
    if isinstance(operand, tuple):
        return tuple(map(_valued, operand))
    return typed(operand.text) if isinstance(operand, _Parameter) else operand


def refuse_foreign_parts(tree: ast.expr, known: set[str]) -> None:
    """Raises TemplateError for what an expression cannot have; `known`: the names of its
    parameters."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if id(node) in called:
            _refuse_unknown_function(node, known)
        else:
            _refuse_foreign(node, known)


def _refuse_foreign(node: ast.AST, known: set[str]) -> None:
    if type(node) not in _OPERATORS and type(node).__name__ not in _NODES:
        raise TemplateError(
            f"{type(node).__name__} is not allowed here; use only numbers, texts, $parameters, "
            "operators and calls"
        )
    if isinstance(node, ast.Call) and node.keywords:
        raise TemplateError("a call cannot have named arguments")
    if isinstance(node, ast.Name) and node.id not in known | _LITERAL_NAMES.keys():
        shown = re.sub(r"parameter_+\d+_", "${...}", node.id)
        raise TemplateError(f"'{shown}' has no meaning here; write a parameter as $name")
    if isinstance(node, ast.Constant) and not isinstance(node.value, bool | int | float | str):
        raise TemplateError(f"{node.value!r} is not possible here")


def _refuse_unknown_function(node: ast.AST, known: set[str]) -> None:
    if not isinstance(node, ast.Name) or node.id in known:
        raise TemplateError(f"only a function can be called; {nearest('', _FUNCTIONS)}")
    if node.id not in _FUNCTIONS:
        raise TemplateError(f"there is no function '{node.id}', {nearest(node.id, _FUNCTIONS)}")
