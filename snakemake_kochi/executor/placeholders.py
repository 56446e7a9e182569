"""The placeholders of a shell command, and the resources that its params depend on."""

from __future__ import annotations

import dis
import inspect
import re
import string
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

_ROOT = re.compile(r"[^.\[]*")
_RESOURCE = re.compile(r"resources\.([A-Za-z_]\w*)")
# With these formats a path that needs no quotes stays as it is.
_AS_IT_IS = ("", "q", "u")
# Methods of a job's resources object through which a function may read any resource.
_METHODS = frozenset(dir(list)) | frozenset(dir(dict))


class UnclearError(Exception):
    """Something about a command is not certain; the text names it in a few words."""


@dataclass(frozen=True)
class Placeholders:
    """The placeholders of a command.

    `names`: the beginnings of the fields, as `input` in `{input.first}`. `resources`: the resources
    among them, by name.
    """

    names: frozenset[str]
    resources: frozenset[str]


def find_placeholders(template: str) -> Placeholders:
    """The placeholders of a command.

    Raises UnclearError for fields whose value could depend on more than the named object.
    """
    names, resources = set(), set()
    for field, spec, conversion in _fields(template):
        match = _ROOT.match(field)
        name = match[0] if match else ""
        if not name.isidentifier():
            raise UnclearError("unnamed {}")
        names.add(name)
        if name == "resources":
            found = _RESOURCE.fullmatch(field)
            if found is None:
                raise UnclearError("all resources in {}")
            if found[1] == "tmpdir" and (spec not in _AS_IT_IS or conversion not in (None, "s")):
                raise UnclearError("tmpdir")
            resources.add(found[1])
    return Placeholders(frozenset(names), frozenset(resources))


def _fields(template: str) -> Iterator[tuple[str, str, str | None]]:
    """Field, format and conversion of each placeholder, also of those within formats."""
    try:
        for _, field, spec, conversion in string.Formatter().parse(template):
            if field is not None:
                yield field, spec or "", conversion
                yield from _fields(spec or "")
    except ValueError as error:
        raise UnclearError("unbalanced {}") from error


def resources_taken(
    params: Iterable[Any], parameters_of: Callable[[Any], Collection[str]]
) -> frozenset[str]:
    """The resources, by name, that functions among a rule's params read.

    `parameters_of` gives the arguments that Snakemake passes to a function. Raises UnclearError if
    they are not certain.
    """
    taken: set[str] = set()
    for value in params:
        function = getattr(value, "callable", None) or value
        if callable(function) and _takes_resources(parameters_of(function)):
            taken |= _attributes_of_resources(function)
    return frozenset(taken)


def _takes_resources(parameters: Collection[str]) -> bool:
    kinds = parameters.values() if isinstance(parameters, Mapping) else ()
    return "resources" in parameters or any(kind.kind == kind.VAR_KEYWORD for kind in kinds)


def _attributes_of_resources(function: Callable[..., Any]) -> set[str]:
    """The attributes that a function uses of the argument, if it uses it for nothing else.

    Raises UnclearError otherwise.
    """
    if (
        not isinstance(function, FunctionType)
        or function.__code__.co_flags & inspect.CO_VARKEYWORDS
    ):
        raise UnclearError("params of resources")
    taken = set()
    instructions = list(dis.get_instructions(function))
    for instruction, following in zip(instructions, [*instructions[1:], None], strict=True):
        if not _names_resources(instruction.argval):
            continue
        attribute = following.argval if following and following.opname == "LOAD_ATTR" else None
        is_plain = instruction.opname.startswith("LOAD_FAST") and instruction.argval == "resources"
        if not is_plain or not isinstance(attribute, str) or attribute in _METHODS:
            raise UnclearError("params of resources")
        taken.add(attribute)
    return taken


def _names_resources(argument: object) -> bool:
    return argument == "resources" or (isinstance(argument, tuple) and "resources" in argument)
