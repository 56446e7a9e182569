"""Which of two sides is larger, by how much, and how sure.

The ratio of a point is that of the second side to the first one: 0.97 is 3 % less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from snakemake_kochi.statistics.distributions import signed_rank_cdf, t_quantile, t_within
from snakemake_kochi.statistics.intervals import FEWEST_UNITS, Interval, Values

_MOST_PAIRS = 500  # above, neighbours are merged: there are n(n+1)/2 averages
_EXACT = 12  # rounds: up to 2**12 flips are all tried
_FLIPS = 4999
_AT_ONCE = 64  # points, each with all flips


@dataclass(frozen=True)
class Ratio(Interval):
    """A ratio with its interval; `p`: how likely one as far from 1 is without a difference."""

    p: float = 1.0

    @property
    def detectable(self) -> float:
        """The difference, as a fraction, that would have been shown 8 times in 10."""
        if self.lower is None or self.upper is None:
            return math.inf
        return math.exp(1.5 * (math.log(self.upper) - math.log(self.lower)) / 2) - 1


def logs(first: Values, second: Values) -> NDArray[np.float64]:
    """The logarithms of the ratios of pairs.

    A pair with a NaN is left out. Raises ValueError for values that have no ratio, and for sides of
    different lengths.
    """
    one, other = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if len(one) != len(other):
        raise ValueError(f"pairs were expected, not {len(one)} and {len(other)} values")
    known = ~(np.isnan(one) | np.isnan(other))
    one, other = one[known], other[known]
    for value in (*one, *other):
        if not 0 < value < math.inf:
            raise ValueError(f"a ratio needs values above 0, and one is {value:g}")
    found: NDArray[np.float64] = np.log(other) - np.log(one)
    return found


def paired(differences: Values, confidence: float = 0.95, stretch: float = 1.0) -> Ratio:
    """The ratio from the logarithms of those of independent pairs.

    The estimate is Hodges and Lehmann's, the interval that of Wilcoxon's signed ranks, which is
    exact where differences are symmetric (Hollander and Wolfe, 3.3). `stretch`: of
    `dependence.stretch`.
    """
    found = np.asarray(differences, dtype=float)
    n = len(found)
    if not n:
        return Ratio(math.nan, None, None, 0, "no pair")
    if n > _MOST_PAIRS:
        found = np.array([np.mean(each) for each in np.array_split(found, _MOST_PAIRS)])
    rows, columns = np.triu_indices(len(found))
    averages = np.sort((found[rows] + found[columns]) / 2)
    count, cdf = len(averages), signed_rank_cdf(len(found))
    estimate = math.exp(float(np.median(averages)))
    # Halves of equal ones: doubtful pairs count for no side.
    above = float(np.sum(averages > 0)) + float(np.sum(averages == 0)) / 2
    distance = abs(above - count / 2) / stretch
    p = min(1.0, 2 * float(cdf[math.ceil(count / 2 - distance)]))
    rank = int(np.searchsorted(cdf, (1 - confidence) / 2, side="right"))
    place = (count + 1) / 2 - stretch * ((count + 1) / 2 - rank)
    if not rank or (place < 1 and averages[0] != averages[-1]):
        why = ", because neighbours are alike" if rank else ""
        return Ratio(estimate, None, None, n, f"n = {n}: no interval{why}", p)
    lower, upper = np.interp([place, count + 1 - place], np.arange(1, count + 1), averages)
    note = "all equal at this resolution" if lower == upper else ""
    return Ratio(estimate, math.exp(float(lower)), math.exp(float(upper)), n, note, p)


def of_units(differences: Values, confidence: float = 0.95) -> Ratio:
    """The ratio from one logarithm for each allocation that both sides had: Student's t."""
    found = np.asarray(differences, dtype=float)
    n = len(found)
    if n < FEWEST_UNITS:
        mean = float(np.mean(found)) if n else math.nan
        return Ratio(math.exp(mean), None, None, n, _few_units(n))
    spread = float(np.std(found, ddof=1)) / math.sqrt(n)
    return _student(float(np.mean(found)), spread, n - 1, n, confidence)


def unpaired(first: Values, second: Values, confidence: float = 0.95) -> Ratio:
    """The ratio from the logarithms of two sides without pairs, such as allocations of their own:
    Welch's t, with its degrees of freedom rounded down."""
    sides = [np.asarray(each, dtype=float) for each in (first, second)]
    n = min(map(len, sides))
    mean = float(np.mean(sides[1]) - np.mean(sides[0])) if n else math.nan
    if n < FEWEST_UNITS:
        return Ratio(math.exp(mean), None, None, n, _few_units(n))
    parts = [float(np.var(each, ddof=1)) / len(each) for each in sides]
    spread, degrees = math.sqrt(sum(parts)), n - 1
    if spread:
        terms = (part**2 / (len(each) - 1) for part, each in zip(parts, sides, strict=True))
        degrees = int(sum(parts) ** 2 / sum(terms))
    return _student(mean, spread, degrees, n, confidence)


def of_medians(before: Interval, now: Interval) -> Interval:
    """The ratio of two medians that were measured apart, from their intervals.

    On logarithms, the distances of opposite ends add up as squares. Source: Zou and Donner,
    Statistics in Medicine 27 (2008). An end that is not above 0 is nowhere.
    """
    ratio, n = now.estimate / before.estimate, min(before.n, now.n)
    distances = []
    for one, other in ((before, now), (now, before)):
        if one.lower is None or one.upper is None or other.lower is None:
            return Interval(ratio, None, None, n, now.note if now.lower is None else before.note)
        above = math.log(one.upper / one.estimate)
        below = math.log(other.estimate / other.lower) if other.lower > 0 else math.inf
        distances.append(math.exp(math.hypot(above, below)))
    note = "all equal at this resolution" if distances == [1.0, 1.0] else ""
    return Interval(ratio, ratio / distances[0], ratio * distances[1], n, note)


def _few_units(n: int) -> str:
    return f"n = {n} of {FEWEST_UNITS} allocations or nodes: no interval"


def _student(mean: float, spread: float, degrees: int, n: int, confidence: float) -> Ratio:
    if not spread:
        note = "all equal at this resolution"
        return Ratio(*(math.exp(mean),) * 3, n, note, 1.0 if not mean else 0.0)
    half = t_quantile(confidence, degrees) * spread
    p = 1 - t_within(abs(mean) / spread, degrees)
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), n, "", p)


# ---- many points


def marked(chances: Sequence[float], rate: float = 0.05) -> list[bool]:
    """Which of many p are a difference, so that on average at most `rate` of those are none.
    Source: Benjamini and Hochberg, J. R. Stat. Soc. B 57 (1995)."""
    steps = enumerate(sorted(chances), 1)
    most = max((p for k, p in steps if p <= rate * k / len(chances)), default=-1.0)
    return [p <= most for p in chances]


def pairs_needed(points: int, confidence: float = 0.95) -> int:
    """The pairs that show one difference among so many points: 6 of one point, 10 of 20."""
    return math.ceil(math.log2(2 * points / (1 - confidence)))


def least_chance(rounds: int, stretch: float = 1.0) -> float:
    """The smallest p of `of_rounds`: as measured, and with all signs flipped."""
    return 2.0 ** (1 - _blocks(rounds, stretch))


def _blocks(rounds: int, stretch: float) -> int:
    return math.ceil(rounds / math.ceil(stretch**2))


def of_rounds(
    logs_of: NDArray[np.float64], stretch: float = 1.0, confidence: float = 0.95
) -> tuple[Ratio, float]:
    """The geometric mean of the ratios of all points; and p for "no point has a difference".

    `logs_of` has a row for each round and a column for each point, NaN where a pair is missing; the
    mean is over complete rounds, and NaN without one. p is from the largest |t| of the points when
    the signs of whole rounds are flipped, so that points of a round need not be independent
    (Westfall and Young). `stretch`, of `dependence.stretch`: where rounds are alike, neighbouring
    ones are flipped together.
    """
    complete = logs_of[~np.isnan(logs_of).any(axis=1)]
    mean = paired(np.mean(complete, axis=1), confidence, stretch)
    rounds, block = len(logs_of), math.ceil(stretch**2)
    blocks = _blocks(rounds, stretch)
    if blocks <= _EXACT:
        bits = np.arange(2**blocks)[:, None] >> np.arange(blocks) & 1
    else:
        bits = np.random.default_rng(1).integers(0, 2, (_FLIPS + 1, blocks))
        bits[0] = 0  # as measured
    signs = np.repeat(1.0 - 2 * bits, block, axis=1)[:, :rounds]
    counts = np.sum(~np.isnan(logs_of), axis=0)
    known = np.nan_to_num(logs_of)
    squares = np.sum(known**2, axis=0)
    used = (counts > 1) & (squares > 0)
    if not used.any():
        return mean, 1.0
    largest = np.zeros(len(signs))
    places = np.flatnonzero(used)
    for start in range(0, len(places), _AT_ONCE):
        own = places[start : start + _AT_ONCE]
        # The squared cosine between differences and signs, of which |t| is a function.
        share = np.minimum((signs @ known[:, own]) ** 2 / (counts * squares)[own], 1 - 1e-12)
        np.maximum(largest, np.max((counts[own] - 1) * share / (1 - share), axis=1), out=largest)
    return mean, float(np.mean(largest >= largest[0] * (1 - 1e-9)))
