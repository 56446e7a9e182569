"""Names of rules, directories that rules write to, and file patterns with wildcards.

The destination of an artifact becomes a pattern of Snakemake's:
`fib/${batch_name}/n_${n_input}_${duplicate}.log` becomes
`results/local/fib/batch_test/n_{n_input}_{duplicate}.log`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.paths import WorkingPaths
from snakemake_kochi.project.templates import Template as ParameterTemplate
from snakemake_kochi.project.values import encode_component

_LONGEST = 64
_MANIFEST = "manifest.json"
# a value of `params:`, or a function of the wildcards that ignores them
Verbatim = Any


def identifier(text: str) -> str:
    """A text as part of a rule's name: `v5.2.1` is `v5_2_1`."""
    return re.sub(r"\W", "_", text, flags=re.ASCII)


def short_component(value: str) -> str:
    """A parameter's value as part of one of our file names: as in artifacts, but with a digest for
    the rest of a long one (a file name has 255 bytes), or of one that Snakemake would refuse."""
    encoded = encode_component(value)
    if len(encoded) <= _LONGEST and not looks_endless(encoded):
        return encoded
    digest = hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()
    return f"{encoded[:16]}%{digest[:32]}"


def verbatim(value: Any) -> Verbatim:
    """A value for a rule's `params:` that Snakemake uses as it is: in plain text it would look for
    wildcards, and find the `${HOME}` of a script."""
    texts = value if isinstance(value, list) else [value]
    if all(isinstance(t, bool | int) or (isinstance(t, str) and "{" not in t) for t in texts):
        # Snakemake inspects the signature of a function again and again for each job: with the ten
        # functions of a run that took a fifth of the time of a large batch's DAG.
        return value
    return lambda wildcards: value


@dataclass
class RuleNames:
    """The rule names of one library, so that two rules never share one."""

    _owners: dict[str, str] = field(default_factory=dict)

    def take(self, name: str, owner: str) -> str:
        """Reserve a rule's name; ConfigError when another owner has it."""
        other = self._owners.setdefault(name, owner)
        if other != owner:
            raise ConfigError(
                f"{owner} and {other} would both become the rule '{name}'", "Rename one of them."
            )
        return name


def is_manifest(file: Path) -> bool:
    """Whether a file stands for an installation, not for a build."""
    return file.name == _MANIFEST


@dataclass(frozen=True)
class Directories:
    """The directories to which rules write, relative to the working directory."""

    machine: str

    @property
    def results(self) -> str:
        return str(self._paths.results)

    @property
    def _state(self) -> str:
        return str(self._paths.state)

    @property
    def _paths(self) -> WorkingPaths:
        return WorkingPaths(Path(), self.machine)

    def collected(self, experiment: str, batch: str) -> str:
        """The table and the plot of a batch, without their suffixes."""
        return f"{self.results}/{experiment}/{encode_component(batch)}"

    # Installations and builds are named by what determines them: a change that is undone leads to
    # the same names, whatever was tried in between.
    def manifest(self, dependency: str, recipe: str, key: str) -> str:
        return f"{self._state}/installs/{dependency}/{recipe}/{key}/{_MANIFEST}"

    def activation(self, dependency: str, recipe: str, key: str) -> str:
        return f"{self._state}/installs/{dependency}/{recipe}/{key}/activate.sh"

    @staticmethod
    def activation_beside(manifest: Path) -> Path:
        return manifest.with_name("activate.sh")

    def builds(self, rule: str, key: str) -> str:
        return f"{self._state}/builds/{rule}/{key}"

    def records(self, experiment: str, batch: str) -> str:
        return f"{self._paths.records}/{experiment}/{batch}"


# Attributes of Snakemake's list of wildcards, which have a meaning already.
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
    """A template as Snakemake's pattern: constants filled in, other references as wildcards."""
    return "".join(
        _escape(part)
        if isinstance(part, str)
        else _escape(constants[part.name])
        if part.name in constants
        else f"{{{wildcard_name(part.name)}}}"
        for part in template
    )


def fill(template: Template, values: Mapping[str, str]) -> str:
    """Fill in every reference."""
    return "".join(part if isinstance(part, str) else values[part.name] for part in template)


def _escape(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def looks_endless(value: str) -> bool:
    """Whether Snakemake refuses the value of a wildcard as periodic ("00000000000000000000")."""
    return len(value) >= 19 and _ENDLESS.search(value) is not None


def constraint(values: Sequence[str]) -> str:
    """A regular expression that matches each value of a wildcard, and little else."""
    distinct = sorted(set(values))
    if all(re.fullmatch(r"\d+", value, re.ASCII) for value in distinct):
        return r"[0-9]+"
    if len(distinct) <= _ALTERNATION_LIMIT:
        # Longest first: otherwise "a" would match where "ab" is meant.
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
