"""What counts as a quiet node: the thresholds of the key `quiet` of kochi.yaml and of a machine."""

from __future__ import annotations

from collections.abc import Mapping

from snakemake_kochi.frozen import FrozenDict

ANY = "any"
Thresholds = Mapping[str, float | str]

# The CPUs that other processes may use on average, and the governor that the node must have.
DEFAULTS: Thresholds = FrozenDict({"load": 0.5, "governor": "performance"})


def threshold_of(text: str) -> float | str:
    """A number, or ANY. Raises ValueError, which says what was expected."""
    if text == ANY:
        return ANY
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e9:
        raise ValueError(f"a number from 0, or {ANY}, was expected")
    return number
