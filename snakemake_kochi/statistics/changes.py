"""Where the level of a series changes: of a metric over commits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from snakemake_kochi.statistics.dependence import ranked
from snakemake_kochi.statistics.intervals import Values

FEWEST = 5  # values on each side of a change
NEEDED = 2 * FEWEST + 2
_SURE = 0.05
_PERMUTATIONS = 399
_MOST_ALIKE = 0.9


def changes(values: Values) -> list[int]:
    """The indices at which a new level begins, in ascending order.

    A split is one if the largest CUSUM of the ranks is larger than that of 95 % of random orders;
    then both parts are searched. Values that only resemble their neighbours are no level: their
    correlation is taken out before. NaN is not allowed.
    """
    return _changes(np.asarray(values, dtype=float), np.random.default_rng(1))


def _changes(values: NDArray[np.float64], random: np.random.Generator) -> list[int]:
    n = len(values)
    if n < NEEDED or not np.ptp(values):
        return []
    r = _likeness(values)
    ranks = ranked(values[1:] - r * values[:-1])
    orders = np.vstack([ranks, random.permuted(np.tile(ranks, (_PERMUTATIONS, 1)), axis=1)])
    largest = np.max(_cusum(orders), axis=1)
    if np.mean(largest >= largest[0]) > _SURE:
        return []
    at = FEWEST + int(np.argmax(_cusum(ranks[None])[0])) + 1
    at = _located(values, min(max(at, FEWEST), n - FEWEST))
    return [*_changes(values[:at], random), at, *(at + k for k in _changes(values[at:], random))]


def _likeness(values: NDArray[np.float64]) -> float:
    """The correlation of neighbours, the smaller one of two estimates: of what is left beside the
    most probable change, which a second change raises; and from differences, of which those over
    two steps are larger by sqrt(1 + r) than those over one, and which a change raises in short
    series."""
    at = FEWEST + int(np.argmax(_cusum(ranked(values)[None])[0]))
    ranks = ranked(_beside(values, at))
    centred = ranks - np.mean(ranks)
    spread = float(np.sum(centred**2))
    beside = float(np.sum(centred[1:] * centred[:-1])) / spread if spread else 0.0
    steps = (np.abs(values[k:] - values[:-k]) for k in (1, 2))
    one, two = (float(np.mean(np.minimum(d, np.quantile(d, 0.75)) ** 2)) for d in steps)
    r = min(beside * (1 + 3 / len(values)), two / one - 1 if one else 0.0)
    # More than it probably is, the more so the less is known: else flat series show changes.
    return min(_MOST_ALIKE, max(0.0, r + 0.05 + 6 / len(values)))


def _beside(values: NDArray[np.float64], at: int) -> NDArray[np.float64]:
    """What is left of values without the levels before and after a change."""
    return np.concatenate([part - np.median(part) for part in np.split(values, [at])])


def _cusum(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far the mean of the first k values is from that of the others, in units of its spread,
    for each row and each k that leaves FEWEST values on both sides."""
    n = rows.shape[1]
    k = np.arange(FEWEST, n - FEWEST + 1)
    sums = np.cumsum(rows - np.mean(rows, axis=1, keepdims=True), axis=1)[:, k - 1]
    found: NDArray[np.float64] = np.abs(sums) / np.sqrt(k * (n - k) / n)
    return found


def _located(values: NDArray[np.float64], at: int) -> int:
    """The most probable place of a change near `at`: outliers are clipped around both levels."""
    levels = sorted((float(np.median(values[:at])), float(np.median(values[at:]))))
    rest = _beside(values, at)
    spread = 1.5 * float(np.median(np.abs(rest))) / 0.6745
    clipped = np.clip(values, levels[0] - spread, levels[1] + spread)
    return FEWEST + int(np.argmax(_cusum(clipped[None])[0]))
