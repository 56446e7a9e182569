"""Intervals of a median and of a mean, and which values they are of."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from snakemake_kochi.quantities import percent
from snakemake_kochi.statistics.distributions import sign_levels, t_quantile

Values = Sequence[float] | NDArray[np.float64]
FEWEST_UNITS = 3  # two are apart by a ninth of the width of their t interval


@dataclass(frozen=True)
class Interval:
    """An estimate and the ends of its interval, in the unit of the values.

    `n`: how many independent values it is made of, runs or units such as allocations. Both ends are
    None where there is no interval, and `note` says why. `note` also says what to know of one.
    """

    estimate: float
    lower: float | None
    upper: float | None
    n: int
    note: str = ""

    def ends(self, form: str) -> str:
        """Both ends in a format such as ".3f", for people; empty without an interval."""
        if self.lower is None or self.upper is None:
            return ""
        return f"{self.lower:{form}} to {self.upper:{form}}"

    @property
    def half_width(self) -> float:
        """Half of the width as a fraction of the estimate; infinite without an interval."""
        if self.lower is None or self.upper is None or not self.estimate:
            return math.inf if self.lower is None or self.lower != self.upper else 0.0
        return (self.upper - self.lower) / 2 / abs(self.estimate)


def median_interval(values: Values, confidence: float = 0.95, stretch: float = 1.0) -> Interval:
    """The median of a fixed number of values, between two order statistics.

    It covers the median of every continuous distribution with at least `confidence`, if the values
    are independent. `stretch`: of `dependence.stretch`. NaN is no value. Source: Hahn and Meeker,
    Statistical Intervals, 5.2.
    """
    ordered = _ordered(values)
    n = len(ordered)
    if n < 2:
        return Interval(float(ordered[0]) if n else math.nan, None, None, n, _none(n))
    levels = sign_levels(n)
    rank = sum(level >= confidence for level in levels)
    if not rank:
        note = f"{_none(n)}; all values cover {percent(levels[0])}"
        return Interval(float(np.median(ordered)), None, None, n, note)
    return _between(ordered, rank, stretch)


def runs_needed(confidence: float = 0.95) -> int:
    """The least number of values of whose median there is an interval: 6 at 95 %."""
    return math.ceil(math.log2(2 / (1 - confidence)))


def interpolated_interval(values: Values, confidence: float, stretch: float = 1.0) -> Interval:
    """The median, with an interval between order statistics that are interpolated to the exact
    level: for `stopping`, where plain ones would stop late. Source: Hettmansperger and Sheather,
    Statistics and Probability Letters 4 (1986)."""
    ordered = _ordered(values)
    n = len(ordered)
    levels = sign_levels(n)
    rank = sum(level >= confidence for level in levels)
    if not rank:
        return median_interval(ordered, confidence)
    above = levels[rank - 1]
    beneath = levels[rank] if rank < len(levels) else 0.0
    share = (above - confidence) / (above - beneath)
    place = rank + (n - rank) * share / (rank + (n - 2 * rank) * share)
    return _between(ordered, place, stretch)


def _between(ordered: NDArray[np.float64], place: float, stretch: float) -> Interval:
    """The median, between a smallest and a largest value, from 1, as far as `stretch` moves them
    from the middle; between two values it interpolates."""
    n = len(ordered)
    median = float(np.median(ordered))
    place = (n + 1) / 2 - stretch * ((n + 1) / 2 - place)
    if place < 1 and ordered[0] != ordered[-1]:
        return Interval(median, None, None, n, f"{_none(n)}, because neighbours are alike")
    lower, upper = np.interp([place, n + 1 - place], np.arange(1, n + 1), ordered)
    return _noted(median, float(lower), float(upper), n)


def mean_interval(values: Values, confidence: float = 0.95) -> Interval:
    """The mean and Student's t interval. Of fewer than 3 values there is no interval."""
    known = _ordered(values)
    n = len(known)
    mean = float(np.mean(known)) if n else math.nan
    if n < FEWEST_UNITS:
        return Interval(mean, None, None, n, _none(n))
    half = t_quantile(confidence, n - 1) * float(np.std(known, ddof=1)) / math.sqrt(n)
    return _noted(mean, mean - half, mean + half, n)


def interval_of(
    values: Values, units: Sequence[Hashable], confidence: float = 0.95, stretch: float = 1.0
) -> Interval:
    """The interval of some runs; `units`: the allocation (or node) of each.

    Of several units it is that of the mean of their medians: runs in one allocation share its
    effect, and count as one. Source: Kalibera and Jones, Rigorous Benchmarking in Reasonable Time.
    """
    medians = medians_of(values, units)
    if len(medians) < 2:
        return median_interval(values, confidence, stretch)
    return mean_interval(list(medians.values()), confidence)


def medians_of(values: Values, units: Sequence[Hashable]) -> dict[Hashable, float]:
    """The median of the values of each unit that has one."""
    groups: dict[Hashable, list[float]] = {}
    for value, unit in zip(values, units, strict=True):
        if not math.isnan(value):
            groups.setdefault(unit, []).append(float(value))
    return {unit: float(np.median(group)) for unit, group in groups.items()}


def _ordered(values: Values) -> NDArray[np.float64]:
    found = np.asarray(values, dtype=float)
    return np.sort(found[~np.isnan(found)])


def _none(n: int) -> str:
    return f"n = {n}: no interval"


def _noted(estimate: float, lower: float, upper: float, n: int) -> Interval:
    note = "all equal at this resolution" if lower == upper else ""
    return Interval(estimate, lower, upper, n, note)
