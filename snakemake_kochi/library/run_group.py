"""The points of a batch that one Snakemake rule runs, and how a rule finds a point again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from snakemake_kochi.errors import NameNotFoundError, for_snakemake, nearest
from snakemake_kochi.library.names import (
    Reference,
    Template,
    constraint,
    looks_endless,
    parse_template,
    references,
    short_component,
    snakemake_pattern,
    tells_apart,
    wildcard_name,
)
from snakemake_kochi.project.grid import Grid, Point
from snakemake_kochi.project.values import encode_component


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
    templates = [(f"{artifact_directory}/", parse_template(a.dest)) for a in grid.artifacts]
    whole = [(prefix, *template) for prefix, template in templates]
    record_end = templates[0][1] if templates else _canonical(grid)
    # A directory for each: with our suffix, a name of full length would be too long.
    whole.append((f"{record_directory}/", *record_end, "/record.json"))
    encode = encode_component if templates else short_component
    points = [_values(grid, point, encode) for point in grid.points]
    named = [references(template) - {"batch_name"} for template in whole]
    common = frozenset.intersection(*named)
    endless = {value for values in points for value in values.values() if looks_endless(value)}
    groups = None if endless else _divide(grid, whole, points, common)
    return groups or _divide(grid, whole, points, frozenset()) or ()


def _canonical(grid: Grid) -> Template:
    """A destination for points that keep no artifact: `n_input~38/n_workers~1/0`."""
    parts: list[str | Reference] = []
    for name in grid.points[0].parameters:
        parts += [f"{name}~", Reference(name), "/"]
    return (*parts, Reference("duplicate"))


def _divide(
    grid: Grid,
    templates: Sequence[Template],
    points: Sequence[Mapping[str, str]],
    wildcards: frozenset[str],
) -> tuple[RunGroup, ...] | None:
    """Make the groups for a choice of wildcards; None when a file name would be ambiguous."""
    constant_names = sorted(frozenset.union(*map(references, templates)) - wildcards)
    keys = tuple(sorted(wildcards))
    members: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, values in enumerate(points):
        members[tuple(values[name] for name in constant_names)].append(index)
    limits = {name: constraint([values[name] for values in points]) for name in keys}
    groups = []
    for constant_values, indices in members.items():
        constants = dict(zip(constant_names, constant_values, strict=True))
        own = [points[index] for index in indices]
        if keys and not all(tells_apart(t, constants, limits, own) for t in templates):
            return None
        patterns = [snakemake_pattern(template, constants) for template in templates]
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
