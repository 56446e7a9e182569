"""What counts as a quiet node: the thresholds of the key `quiet` of kochi.yaml and of a machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from snakemake_kochi.frozen import FrozenDict

if TYPE_CHECKING:
    from snakemake_kochi.project.problems import KeyPath

ANY = "any"
Thresholds = Mapping[str, float | str]

# Numbers that a run must not exceed, and words that the node must have.
DEFAULTS: Thresholds = FrozenDict(
    {
        "load": 0.5,  # CPUs that other processes used on average
        "users": 0,  # busy processes of other users
        "memory_pressure": 1,  # percent of the time
        "throttled": 0,  # times during the run
        "throttled_since_boot": ANY,
        "governor": "performance",
        "turbo": ANY,
    }
)
_TURBO = ("on", "off", ANY)


class Noting(Protocol):
    """Problems of one file, or of several."""

    def add(self, path: KeyPath, message: str) -> None: ...

    def is_unknown(self, path: KeyPath) -> bool: ...


def read_threshold(key: str, text: str) -> float | str:
    """The value of a key of DEFAULTS. Raises ValueError, which says what was expected."""
    if text == ANY:
        return ANY
    if key == "governor":
        return text
    if key == "turbo":
        if text not in _TURBO:
            raise ValueError(f"on, off or {ANY} was expected, not '{text}'")
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
        text = str(value)
        if value.kind == "boolean" and key == "turbo":  # YAML 1.1 reads on and off as booleans
            text = "on" if value.is_true else "off"
        try:
            found[key] = read_threshold(key, text)
        except ValueError as error:
            problems.add((*path, key), str(error))
    return FrozenDict(found)
