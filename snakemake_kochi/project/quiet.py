"""What counts as a quiet node: the thresholds of the key `quiet` of kochi.yaml and of a machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from snakemake_kochi.frozen import FrozenDict

if TYPE_CHECKING:
    from snakemake_kochi.project.problems import KeyPath

ANY = "any"
Thresholds = Mapping[str, float | str]

# The CPUs that other processes may use on average, and the governor that the node must have.
DEFAULTS: Thresholds = FrozenDict({"load": 0.5, "governor": "performance"})


class Noting(Protocol):
    """Problems of one file, or of several."""

    def add(self, path: KeyPath, message: str) -> None: ...

    def is_unknown(self, path: KeyPath) -> bool: ...


def read_threshold(key: str, text: str) -> float | str:
    """The value of a key of DEFAULTS. Raises ValueError, which says what was expected."""
    if text == ANY or key == "governor":
        return text
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e9:
        raise ValueError(f"a number from 0, or {ANY}, was expected, not '{text}'")
    return number


def read_quiet(data: Mapping[str, Any], path: KeyPath, problems: Noting) -> Thresholds:
    """The thresholds in a section `quiet` at a key path; notes its problems."""
    found: dict[str, float | str] = {}
    for key, value in data.items():
        if problems.is_unknown((*path, key)):
            continue
        try:
            found[key] = read_threshold(key, str(value))
        except ValueError as error:
            problems.add((*path, key), str(error))
    return FrozenDict(found)
