"""The points of a batch that one rule of Snakemake runs, and the patterns of their files.

The destination of an artifact becomes a pattern of Snakemake's:
`fib/${batch_name}/n_${n_input}_${duplicate}.log` becomes
`results/local/fib/batch_test/n_{n_input}_{duplicate}.log`. From the wildcards, the rule finds the
point again.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from snakemake_kochi.errors import NameNotFoundError, for_snakemake, nearest
from snakemake_kochi.library.requested import Verbatim, verbatim
from snakemake_kochi.project.grid import Grid, Point
from snakemake_kochi.project.templates import Template as ParameterTemplate
from snakemake_kochi.project.values import ABSENT, digest_component, encode_component

# Attributes of Snakemake's list of wildcards, which have a meaning already.
_TAKEN_NAMES = frozenset({*dir(list), "get", "items", "keys", "update"})
# Snakemake takes a value that ends in so many repetitions for an endless recursion of rules.
_ENDLESS = re.compile(r"(.+?)\1{18,}$", re.DOTALL)
# Above this many values an alternation makes every match slow; a general pattern is checked
# against all points instead (see `_tells_apart`).
_ALTERNATION_LIMIT = 64
# characters of a value in a file name, before its digest replaces the rest
_LONGEST = 64


@dataclass(frozen=True)
class RunGroup:
    """One rule's share of a batch.

    `artifacts` are its output patterns in the order of the batch's artifacts, `record` the pattern
    of the point's record; all have the same wildcards. `constraints` maps a wildcard to a regular
    expression, `keys` is the order in which wildcard values index `points`.
    """

    artifacts: tuple[str, ...]
    record: str
    constraints: Mapping[str, str]
    keys: tuple[str, ...]
    points: Mapping[tuple[str, ...], Point]

    @property
    def duplicate(self) -> Verbatim:
        """The duplicate of a point, for `params:`."""
        found = {point.duplicate for point in self.points.values()}
        if len(found) == 1:
            return verbatim(found.pop())
        return lambda wildcards: self.point(wildcards).duplicate

    @for_snakemake
    def point(self, wildcards: Mapping[str, str]) -> Point:
        """The point of Snakemake's wildcards; NameNotFoundError if it is not in the batch."""
        key = tuple(wildcards[name] for name in self.keys)
        if key in self.points:
            return self.points[key]
        for position, (name, value) in enumerate(zip(self.keys, key, strict=True)):
            known = {values[position] for values in self.points}
            if value not in known:
                raise NameNotFoundError(
                    f"{name}={value} is not in the batch", nearest(value, known)
                )
        named = ", ".join(f"{n}={v}" for n, v in zip(self.keys, key, strict=True))
        raise NameNotFoundError(f"the combination {named} is not in the batch")


def _values(grid: Grid, point: Point, encode: Callable[[str], str]) -> dict[str, str]:
    """The values to which a destination may refer, encoded for file names."""
    values = {name: encode(value) for name, value in point.parameters.items()}
    return values | {"batch_name": encode(grid.batch), "duplicate": str(point.duplicate)}


def run_groups(grid: Grid, artifact_directory: str, record_directory: str) -> tuple[RunGroup, ...]:
    """Divide a batch into rules.

    All outputs of a rule must have the same wildcards, but destinations may name different
    parameters. Parameters that only some of them name are filled in as constants, with one rule for
    each combination of their values: nearly always a single rule. Where file names could be split
    into wildcards in two ways, each point gets a rule of its own.
    """
    templates = [(f"{artifact_directory}/", _parse_template(a.dest)) for a in grid.artifacts]
    whole = [(prefix, *template) for prefix, template in templates]
    record_end = templates[0][1] if templates else _canonical(grid)
    # A directory for each: with our suffix, a name of full length would be too long.
    whole.append((f"{record_directory}/", *record_end, "/record.json"))
    encode = encode_component if templates else short_component
    points = [_values(grid, point, encode) for point in grid.points]
    for values in points:
        for name in frozenset.union(*map(_references, whole)):
            values.setdefault(name, ABSENT)
    named = [_references(template) - {"batch_name"} for template in whole]
    common = frozenset.intersection(*named)
    endless = {value for values in points for value in values.values() if _looks_endless(value)}
    groups = None if endless else _divide(grid, whole, points, common)
    return groups or _divide(grid, whole, points, frozenset()) or ()


def _canonical(grid: Grid) -> Template:
    """A destination for points that keep no artifact: `n_input~38/n_workers~1/0`."""
    parts: list[str | Reference] = [f"{grid.below}/"] if grid.below else []
    for name in dict.fromkeys(name for point in grid.points for name in point.parameters):
        parts += [f"{name}~", Reference(name), "/"]
    return (*parts, Reference("duplicate"))


def _divide(
    grid: Grid,
    templates: Sequence[Template],
    points: Sequence[Mapping[str, str]],
    wildcards: frozenset[str],
) -> tuple[RunGroup, ...] | None:
    """Make the groups for a choice of wildcards; None when a file name would be ambiguous."""
    constant_names = sorted(frozenset.union(*map(_references, templates)) - wildcards)
    keys = tuple(sorted(wildcards))
    members: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, values in enumerate(points):
        members[tuple(values[name] for name in constant_names)].append(index)
    limits = {name: _constraint([values[name] for values in points]) for name in keys}
    groups = []
    for constant_values, indices in members.items():
        constants = dict(zip(constant_names, constant_values, strict=True))
        own = [points[index] for index in indices]
        if keys and not all(_tells_apart(t, constants, limits, own) for t in templates):
            return None
        patterns = [_snakemake_pattern(template, constants) for template in templates]
        groups.append(
            RunGroup(
                artifacts=tuple(patterns[:-1]),
                record=patterns[-1],
                constraints={wildcard_name(name): limits[name] for name in keys},
                keys=tuple(wildcard_name(name) for name in keys),
                points={
                    tuple(points[index][name] for name in keys): grid.points[index]
                    for index in indices
                },
            )
        )
    return tuple(groups)


def files_of(groups: Iterable[RunGroup], pattern_index: int | None) -> list[str]:
    """The files of all points: of the artifact with that index, or the records for None."""
    files = []
    for group in groups:
        pattern = group.record if pattern_index is None else group.artifacts[pattern_index]
        files += [pattern.format(**dict(zip(group.keys, key, strict=True))) for key in group.points]
    return files


def short_component(value: str) -> str:
    """A parameter's value as part of one of our file names: as in artifacts, but with a digest for
    the rest of a long one (a file name has 255 bytes), or of one that Snakemake would refuse."""
    encoded = encode_component(value, _LONGEST)
    return digest_component(value) if _looks_endless(encoded) else encoded


def component_of(parameters: Mapping[str, str], name: str) -> str:
    """As `short_component`, of a parameter that a point need not have."""
    return short_component(parameters[name]) if name in parameters else ABSENT


@dataclass(frozen=True)
class Reference:
    """A `$name` or `${name}` in a destination."""

    name: str


Template = tuple[str | Reference, ...]


def _parse_template(text: str) -> Template:
    """Split a destination into literal texts and references."""
    parsed = ParameterTemplate.parse(text)
    parts: list[str | Reference] = [parsed.literals[0]]
    for name, literal in zip(parsed.names, parsed.literals[1:], strict=True):
        parts += (Reference(name), literal)
    return tuple(part for part in parts if part != "")


def _references(template: Template) -> frozenset[str]:
    return frozenset(part.name for part in template if isinstance(part, Reference))


def wildcard_name(parameter: str) -> str:
    """A parameter's name as a wildcard: `n-workers` is `n_workers`, `count` is `param_count`."""
    name = parameter.replace("-", "_")
    return f"param_{name}" if name in _TAKEN_NAMES or name.startswith("_") else name


def _snakemake_pattern(template: Template, constants: Mapping[str, str]) -> str:
    """A template as Snakemake's pattern: constants filled in, other references as wildcards."""
    return "".join(
        _escape(part)
        if isinstance(part, str)
        else _escape(constants[part.name])
        if part.name in constants
        else f"{{{wildcard_name(part.name)}}}"
        for part in template
    )


def _fill(template: Template, values: Mapping[str, str]) -> str:
    """Fill in every reference."""
    return "".join(part if isinstance(part, str) else values[part.name] for part in template)


def _escape(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _looks_endless(value: str) -> bool:
    """Whether Snakemake refuses the value of a wildcard as periodic ("00000000000000000000")."""
    return len(value) >= 19 and _ENDLESS.search(value) is not None


def _constraint(values: Sequence[str]) -> str:
    """A regular expression that matches each value of a wildcard, and little else."""
    distinct = sorted(set(values))
    if all(re.fullmatch(r"\d+", value, re.ASCII) for value in distinct):
        return r"[0-9]+"
    if len(distinct) <= _ALTERNATION_LIMIT:
        # Longest first: otherwise "a" would match where "ab" is meant.
        ordered = sorted(distinct, key=len, reverse=True)
        return "|".join(map(re.escape, ordered))
    return r"[^/]+"


def _tells_apart(
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
        match = compiled.fullmatch(_fill(template, {**values, **constants}))
        if match is None or any(match[wildcard_name(name)] != values[name] for name in seen):
            return False
    return True
