"""From a batch's artifact destinations to Snakemake file patterns with wildcards.

`fib/${batch_name}/n_${n_input}_${duplicate}.log` becomes
`results/local/fib/batch_test/n_{n_input}_{duplicate}.log`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from snakemake_kochi.project.templates import Template as ParameterTemplate

# Wildcards are attributes of a list of Snakemake's, where these mean something already.
_TAKEN_NAMES = frozenset({*dir(list), "get", "items", "keys", "update"})
# Snakemake takes a value that ends in so many repetitions for an endless recursion of rules.
_ENDLESS = re.compile(r"(.+?)\1{18,}$", re.DOTALL)
# Above this many values an alternation makes every match slow; a general pattern is checked
# against all points instead (see `tells_apart`).
_ALTERNATION_LIMIT = 64


@dataclass(frozen=True)
class Reference:
    """A `$name` or `${name}` in a destination."""

    name: str


Template = tuple[str | Reference, ...]


def parse_template(text: str) -> Template:
    """Split a destination into literal texts and references."""
    parsed = ParameterTemplate.parse(text)
    parts: list[str | Reference] = [parsed.literals[0]]
    for name, literal in zip(parsed.names, parsed.literals[1:], strict=True):
        parts += (Reference(name), literal)
    return tuple(part for part in parts if part != "")


def references(template: Template) -> frozenset[str]:
    return frozenset(part.name for part in template if isinstance(part, Reference))


def wildcard_name(parameter: str) -> str:
    """A parameter's name as a wildcard: `n-workers` is `n_workers`, `count` is `param_count`."""
    name = parameter.replace("-", "_")
    return f"param_{name}" if name in _TAKEN_NAMES or name.startswith("_") else name


def snakemake_pattern(template: Template, constants: Mapping[str, str]) -> str:
    """Write a template for Snakemake: constants filled in, other references as wildcards."""
    return "".join(
        _escape(part)
        if isinstance(part, str)
        else _escape(constants[part.name])
        if part.name in constants
        else f"{{{wildcard_name(part.name)}}}"
        for part in template
    )


def fill(template: Template, values: Mapping[str, str]) -> str:
    """Fill every reference in."""
    return "".join(part if isinstance(part, str) else values[part.name] for part in template)


def _escape(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def looks_endless(value: str) -> bool:
    """Whether Snakemake refuses the value of a wildcard as periodic ("00000000000000000000")."""
    return len(value) >= 19 and _ENDLESS.search(value) is not None


def constraint(values: Sequence[str]) -> str:
    """A regular expression that matches each of the values of a wildcard, and little else."""
    distinct = sorted(set(values))
    if all(re.fullmatch(r"\d+", value, re.ASCII) for value in distinct):
        return r"[0-9]+"
    if len(distinct) <= _ALTERNATION_LIMIT:
        # Longest first, or "a" would win where "ab" was meant.
        ordered = sorted(distinct, key=len, reverse=True)
        return "|".join(map(re.escape, ordered))
    return r"[^/]+"


def tells_apart(
    template: Template,
    constants: Mapping[str, str],
    constraints: Mapping[str, str],
    points: Sequence[Mapping[str, str]],
) -> bool:
    """Whether matching each point's file against the pattern gives back that point's values.

    `${a}${b}` with a and b in 1, 11 does not: 111 can be split in two ways.
    """
    seen: set[str] = set()
    expression = ""
    for part in template:
        if isinstance(part, str):
            expression += re.escape(part)
        elif part.name in constants:
            expression += re.escape(constants[part.name])
        elif part.name in seen:
            expression += f"(?P={wildcard_name(part.name)})"
        else:
            seen.add(part.name)
            name = wildcard_name(part.name)
            expression += f"(?P<{name}>{constraints[part.name]})"
    compiled = re.compile(expression)
    for values in points:
        match = compiled.fullmatch(fill(template, {**values, **constants}))
        if match is None or any(match[wildcard_name(name)] != values[name] for name in seen):
            return False
    return True
