"""What may be deleted: ages, sizes, and names that are kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from snakemake_kochi.quantities import memory_of, seconds_of

DAY = 86400.0
NEVER = "never"


@dataclass(frozen=True)
class Rules:
    """How many seconds files stay that nothing needs (infinity: for ever): since the end of a job,
    the last sign of a run, the last use of a build, an installation or a snapshot. `builds_above`:
    the bytes above which the least used builds go earlier. `keep`: patterns of names that stay, or
    KIND:PATTERN."""

    jobs: float = 30 * DAY
    runs: float = 30 * DAY
    builds: float = 30 * DAY
    installs: float = 30 * DAY
    snapshots: float = 7 * DAY
    builds_above: float = math.inf
    keep: tuple[str, ...] = ()

    def keeps(self, kind: str, names: Sequence[str]) -> bool:
        """Whether a rule keeps a thing of that kind with these names."""
        for rule in self.keep:
            of_kind, separator, pattern = rule.partition(":")
            if not separator or of_kind not in KINDS:
                of_kind, pattern = kind, rule
            if of_kind == kind and any(fnmatchcase(name, pattern) for name in names):
                return True
        return False

    def changed_by(self, values: Mapping[str, Any]) -> Rules:
        """These rules with the values that a person has given, as `read_rule` has them; None: not
        given. `after` is the age of all kinds."""
        given = {key: value for key, value in values.items() if value is not None}
        after = given.pop("after", None)
        every = {} if after is None else dict.fromkeys(AGES, after)
        return replace(self, **(every | given | {"keep": (*self.keep, *given.get("keep", ()))}))


# The kinds of things that are deleted and counted, and the key of `Rules` with their age.
KINDS: Mapping[str, str] = {
    "jobs": "jobs",
    "runs": "runs",
    "launches": "runs",
    "workers": "runs",
    "workspaces": "",
    "builds": "builds",
    "prepared": "builds",
    "installs": "installs",
    "versions": "installs",
    "freezes": "snapshots",
    "snapshots": "snapshots",
    "leftovers": "",
}
AGES = tuple(dict.fromkeys(filter(None, KINDS.values())))
assert {*AGES, "builds_above", "keep"} == {field.name for field in fields(Rules)}


def read_rule(key: str, written: Any) -> Any:
    """A value as a person has written it. Raises ValueError."""
    if key == "keep":
        return tuple(map(_pattern, written))
    text, is_size = str(written).strip(), key == "builds_above"
    if not is_size and text in (NEVER, "0"):
        return math.inf if text == NEVER else 0.0
    try:
        return memory_of(text) * 2.0**20 if is_size else seconds_of(text)
    except ValueError as error:
        said = f"a time like 12h, 30d or 0 was expected, at most a year, or '{NEVER}'"
        size = "an amount of disk space like 512M or 50G was expected"
        raise ValueError(size if is_size else said) from error


def _pattern(rule: str) -> str:
    kind, separator, pattern = rule.partition(":")
    if not (pattern if separator else rule).strip():
        raise ValueError("the pattern of a name was expected")
    # DEPENDENCY:RECIPE is a name itself.
    if separator and kind not in KINDS and (near := get_close_matches(kind, KINDS, 1, 0.8)):
        raise ValueError(f"there is no kind '{kind}' to keep, did you mean '{near[0]}'?")
    return rule
