"""Whether neighbouring runs are alike, and whether runs drift.

A single point of ten runs cannot tell. So each test pools the points of a batch: sum(z) / sqrt(P).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from snakemake_kochi.statistics.intervals import Values

_ALIKE = 1.645  # 5 %, one side
_DRIFTS = 2.576  # 1 %, both sides
_MOST_ALIKE = 0.9
_FEWEST = 6


def likeness(points: Iterable[Values]) -> float:
    """The correlation of neighbouring runs within the points, 0 to 0.9; 0 if it is not shown at
    5 %. `points`: the values of each in the order in which they were measured.

    The test is the rank version of von Neumann's ratio (Bartels, JASA 77, 1982).
    """
    scores, correlations = [], []
    for values in points:
        ranks = ranked(values)
        n = len(ranks)
        spread = float(np.sum((ranks - np.mean(ranks)) ** 2)) if n >= _FEWEST else 0.0
        if not spread:
            continue
        ratio = float(np.sum(np.diff(ranks) ** 2)) / spread
        variance = 4 * (n - 2) * (5 * n * n - 2 * n - 9) / (5 * n * (n + 1) * (n - 1) ** 2)
        scores.append((2 - ratio) / math.sqrt(variance))
        centred = ranks - np.mean(ranks)
        r = float(np.sum(centred[1:] * centred[:-1])) / spread
        correlations.append(r + (1 + 3 * r) / n)  # short series look less alike than they are
    if not scores or sum(scores) / math.sqrt(len(scores)) <= _ALIKE:
        return 0.0
    return min(_MOST_ALIKE, max(0.0, float(np.mean(correlations))))


def stretch(r: float) -> float:
    """By which factor an interval is wider where neighbours correlate by `r`."""
    return math.sqrt((1 + r) / (1 - r))


def counts_as(n: int, r: float) -> int:
    """As how many independent runs `n` runs count."""
    return max(1, round(n * (1 - r) / (1 + r)))


def drifts(points: Iterable[Values]) -> bool:
    """Whether later runs are larger, or smaller, within the points: Kendall's test at 1 %."""
    scores = []
    for values in points:
        ranks = ranked(values)
        n = len(ranks)
        if n >= _FEWEST and np.ptp(ranks):
            # By their distance: all pairs at once would be gigabytes.
            rising = sum(float(np.sum(np.sign(ranks[k:] - ranks[:-k]))) for k in range(1, n))
            scores.append(rising / math.sqrt(n * (n - 1) * (2 * n + 5) / 18))
    return bool(scores) and abs(sum(scores)) / math.sqrt(len(scores)) > _DRIFTS


def ranked(values: Values) -> NDArray[np.float64]:
    """The ranks of values from 1, equal ones with their mean rank. NaN is no value."""
    found = np.asarray(values, dtype=float)
    found = found[~np.isnan(found)]
    _, inverse, counts = np.unique(found, return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return ranks
