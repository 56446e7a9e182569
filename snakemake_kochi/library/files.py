"""The names of rules, and the files of a batch.

The destination of an artifact becomes a pattern of Snakemake's:
`fib/${batch_name}/n_${n_input}_${duplicate}.log` becomes
`results/local/fib/batch_test/n_{n_input}_{duplicate}.log`. From the wildcards, the rule finds the
point again.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from snakemake_kochi.errors import NameNotFoundError, for_snakemake, nearest
from snakemake_kochi.library.looks import Look, is_needed, read_looks
from snakemake_kochi.paths import WorkingPaths
from snakemake_kochi.project.expressions import Template
from snakemake_kochi.project.grid import Grid, Point
from snakemake_kochi.project.plots import stems
from snakemake_kochi.project.values import ABSENT, DEFAULT_BATCH, digest_component, encode_component

# Attributes of Snakemake's list of wildcards, which have a meaning already.
_TAKEN_NAMES = frozenset({*dir(list), "get", "items", "keys", "update"})
# Snakemake takes a value that ends in so many repetitions for an endless recursion of rules.
_ENDLESS = re.compile(r"(.+?)\1{18,}$", re.DOTALL)
# Above this many values an alternation makes every match slow; a general pattern is checked
# against all points instead (see `_tells_apart`).
_ALTERNATION_LIMIT = 64
# characters of a value in a file name, before its digest replaces the rest
_LONGEST = 64


# ---- names


def identifier(text: str) -> str:
    """A text as part of a rule's name: `v5.2.1` is `v5_2_1`."""
    return re.sub(r"\W", "_", text, flags=re.ASCII)


def batch_rule(experiment: str, batch: str) -> str:
    """The name of the rule that is the target of a batch: of `default`, the experiment's."""
    name = identifier(experiment)
    return name if batch == DEFAULT_BATCH else f"{name}_{identifier(batch)}"


def run_rule(batch: str, index: int) -> str:
    """The name of a rule that runs points of a batch, of which `batch_rule` is the target."""
    return f"run_{batch}" if index == 0 else f"run_{batch}_{index + 1}"


def install_rule(dependency: str, recipe: str) -> str:
    """The name of the rule that installs a recipe."""
    return f"install_{identifier(dependency)}_{identifier(recipe)}"


def collected(machine: str, experiment: str, batch: str) -> str:
    """The table of a batch, without its suffix, relative to the working directory."""
    return f"{WorkingPaths(Path(), machine).results}/{experiment}/{encode_component(batch)}"


def wildcard_name(parameter: str) -> str:
    """A parameter's name as a wildcard: `n-workers` is `n_workers`, `count` is `param_count`."""
    name = parameter.replace("-", "_")
    return f"param_{name}" if name in _TAKEN_NAMES or name.startswith("_") else name


def short_component(value: str) -> str:
    """A parameter's value as part of one of our file names: as in artifacts, but with a digest for
    the rest of a long one (a file name has 255 bytes), or of one that Snakemake would refuse."""
    encoded = encode_component(value, _LONGEST)
    return digest_component(value) if _looks_endless(encoded) else encoded


def component_of(parameters: Mapping[str, str], name: str) -> str:
    """As `short_component`, of a parameter that a point need not have."""
    return short_component(parameters[name]) if name in parameters else ABSENT


def _looks_endless(value: str) -> bool:
    """Whether Snakemake refuses the value of a wildcard as periodic ("00000000000000000000")."""
    return len(value) >= 19 and _ENDLESS.search(value) is not None


# ---- files


@dataclass(frozen=True)
class Place:
    """A point, its record, and its `files` in the order of its artifacts, all relative to the
    working directory."""

    point: Point
    record: Path
    files: tuple[Path, ...]

    @property
    def by_destination(self) -> dict[str, Path]:
        return dict(zip((each.dest for each in self.point.artifacts), self.files, strict=True))


@dataclass(frozen=True)
class RunGroup:
    """The points of a batch that one rule runs.

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


@dataclass(frozen=True)
class BatchFiles:
    """The files of a batch, relative to the working directory. `figures`: of each plot, the PNG and
    the SVG. `checks`: JUnit XML, with `references`. `look`: the pattern of its looks, with
    `repeat`; `looks`: after which of them `places` are those to run, None for all possible ones."""

    grid: Grid
    groups: tuple[RunGroup, ...]
    table: str
    markdown: str
    figures: tuple[tuple[str, str], ...]
    checks: str
    look: str
    looks: tuple[Look, ...] | None = None

    @classmethod
    def of(cls, experiment: str, grid: Grid) -> BatchFiles:
        """The files of a batch of an experiment, by name."""
        working = WorkingPaths(Path(), grid.machine)
        stem = collected(grid.machine, experiment, grid.batch)
        below = f"{working.results}/{experiment}"
        own = [f"{below}/{each}" for each in stems(grid.batch, grid.plots)]
        records = f"{working.records}/{experiment}/{grid.batch}/"
        return cls(
            grid=grid,
            groups=_run_groups(grid, f"{working.results}/", records),
            table=f"{stem}.csv",
            markdown=f"{stem}.md",
            figures=tuple((f"{each}.png", f"{each}.svg") for each in own),
            checks=f"{stem}_check.xml",
            look=f"{working.state}/looks/{experiment}/{grid.batch}/{{look}}.json",
        )

    def after(self, looks: Iterable[Look]) -> BatchFiles:
        """With the places to run after some looks."""
        return replace(self, looks=tuple(looks))

    def now(self, directory: Path = Path()) -> BatchFiles:
        """With the places to run after the looks that a working directory has."""
        return self if self.grid.repeat is None else self.after(read_looks(self.look, directory))

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """The points that are not skipped."""
        found = []
        is_all = self.looks is None or self.grid.repeat is None
        needed = {} if is_all else is_needed(self.grid, self.looks or ())
        for group in self.groups:
            for values, point in group.points.items():
                if is_all or needed[id(point)]:
                    wildcards = dict(zip(group.keys, values, strict=True))
                    files = tuple(Path(each.format(**wildcards)) for each in group.artifacts)
                    found.append(Place(point, Path(group.record.format(**wildcards)), files))
        return tuple(found)

    def below(self, top: Path) -> list[Place]:
        """The places in a directory."""
        return [
            Place(each.point, top / each.record, tuple(top / file for file in each.files))
            for each in self.places
        ]

    @property
    def records(self) -> list[str]:
        return [str(place.record) for place in self.places]

    @property
    def artifacts(self) -> list[str]:
        return [str(file) for place in self.places for file in place.files]

    @property
    def outputs(self) -> list[str]:
        """The files that metrics read: the standard output of the runs, in the order of `places`,
        if it is kept, and others."""
        read = {each.file for each in self.grid.metrics.values() if not isinstance(each, str)}
        artifacts = list(enumerate(self.grid.artifacts))
        kept = [n for n, each in artifacts if each.type == "stdout"][:1]
        kept += [n for n, each in artifacts if each.src in read]
        return [str(place.files[n]) for n in kept for place in self.places]


# ---- the patterns of a batch

_Points = Sequence[tuple[Point, Mapping[str, str]]]  # with encoded values


def _run_groups(grid: Grid, results: str, records: str) -> tuple[RunGroup, ...]:
    """Divide a batch into rules.

    All outputs of a rule must have the same wildcards, but destinations may name different
    parameters. Parameters that only some of them name are filled in as constants, with one rule for
    each combination of their values: nearly always a single rule. Where file names could be split
    into wildcards in two ways, each point gets a rule of its own.
    """
    own = [Template.parse(artifact.dest) for artifact in grid.artifacts]
    if not own:  # `n_input~38/n_workers~1/0`
        parameters = dict.fromkeys(name for point in grid.points for name in point.parameters)
        parts = [*filter(None, [grid.below]), *(f"{name}~${{{name}}}" for name in parameters)]
        record = Template.parse("/".join([*parts, "${duplicate}"]))
    templates = [_between(results, each, "") for each in own]
    # A directory for each: with our suffix, a name of full length would be too long.
    templates.append(_between(records, own[0] if own else record, "/record.json"))
    encode = encode_component if own else short_component
    names = [frozenset(each.names) for each in templates]
    absent = dict.fromkeys(frozenset.union(*names), ABSENT)
    points = []
    for point in grid.points:
        values = {name: encode(value) for name, value in point.parameters.items()}
        values |= {"batch_name": encode(grid.batch), "duplicate": str(point.duplicate)}
        points.append((point, {**absent, **values}))
    endless = any(_looks_endless(text) for _, values in points for text in values.values())
    common = frozenset.intersection(*names) - {"batch_name"}
    groups = None if endless else _divide(templates, points, common)
    return groups or _divide(templates, points, frozenset()) or ()


def _between(prefix: str, template: Template, suffix: str) -> Template:
    first, *rest = template.literals
    *most, last = (prefix + first, *rest)
    return replace(template, literals=(*most, last + suffix))


def _divide(
    templates: Sequence[Template], points: _Points, wildcards: frozenset[str]
) -> tuple[RunGroup, ...] | None:
    """Make the groups for a choice of wildcards; None when a file name would be ambiguous."""
    keys = tuple(sorted(wildcards))
    others = sorted({name for each in templates for name in each.names} - wildcards)
    members: dict[tuple[str, ...], list[tuple[Point, Mapping[str, str]]]] = defaultdict(list)
    for point, values in points:
        members[tuple(values[name] for name in others)].append((point, values))
    limits = {name: _constraint({values[name] for _, values in points}) for name in keys}

    def escape(text: str) -> str:
        return text.replace("{", "{{").replace("}", "}}")

    groups = []
    for texts, own in members.items():
        constants = dict(zip(others, texts, strict=True))
        if keys and not all(_tells_apart(each, constants, limits, own) for each in templates):
            return None
        fill = {name: f"{{{wildcard_name(name)}}}" for name in keys}
        fill |= {name: escape(text) for name, text in constants.items()}
        *artifacts, record = (_filled(each, escape, fill.__getitem__) for each in templates)
        groups.append(
            RunGroup(
                artifacts=tuple(artifacts),
                record=record,
                constraints={wildcard_name(name): limits[name] for name in keys},
                keys=tuple(map(wildcard_name, keys)),
                points={tuple(values[name] for name in keys): point for point, values in own},
            )
        )
    return tuple(groups)


def _filled(template: Template, literal: Callable[[str], str], value: Callable[[str], str]) -> str:
    parts = [literal(template.literals[0])]
    for name, text in zip(template.names, template.literals[1:], strict=True):
        parts += (value(name), literal(text))
    return "".join(parts)


def _constraint(values: Collection[str]) -> str:
    """A regular expression that matches each value of a wildcard, and little else."""
    if all(re.fullmatch(r"\d+", value, re.ASCII) for value in values):
        return r"[0-9]+"
    if len(values) <= _ALTERNATION_LIMIT:
        # Longest first: otherwise "a" would match where "ab" is meant.
        return "|".join(map(re.escape, sorted(values, key=lambda each: (-len(each), each))))
    return r"[^/]+"


def _tells_apart(
    template: Template,
    constants: Mapping[str, str],
    constraints: Mapping[str, str],
    points: _Points,
) -> bool:
    """Whether matching each point's file against the pattern gives back that point's values.

    `${a}${b}` with a and b in 1, 11 does not: 111 can be split in two ways.
    """
    seen: set[str] = set()

    def value(name: str) -> str:
        if name in constants:
            return re.escape(constants[name])
        if name in seen:
            return f"(?P={wildcard_name(name)})"
        seen.add(name)
        return f"(?P<{wildcard_name(name)}>{constraints[name]})"

    expression = re.compile(_filled(template, re.escape, value))
    for _, values in points:
        match = expression.fullmatch(_filled(template, str, {**values, **constants}.__getitem__))
        if match is None or any(match[wildcard_name(name)] != values[name] for name in seen):
            return False
    return True
