"""Rules that stay valid although one looks several times: when to stop, when to decide."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from snakemake_kochi.statistics.intervals import (
    Interval,
    Values,
    interpolated_interval,
    mean_interval,
    median_interval,
    medians_of,
)

# With fewer allocations the interval over them is narrow by chance too often: with three of them, 6
# to 7 % of the points missed the true value.
FEWEST_UNITS_TO_STOP = 5

# The sizes of effects, in median differences, that the martingale bets on, in both directions.
_BETS = np.array([0.25, 0.5, 1.0, 1.5])
_CLIPPED = 3.0


def looks(least: int, most: int) -> Iterator[int]:
    """The numbers of runs at which to look: 10, 15, 23, 35, 53, 60 for 10 to 60 runs.

    Looking after each run would find a narrow interval by chance. Below 10 nothing is promised.
    """
    n = least
    while n < most:
        yield n
        n = math.ceil(1.5 * n)
    yield most


def median_confidence(confidence: float = 0.95) -> float:
    """That of the interval of a median at a look, so that it holds with `confidence` at the look
    that stops."""
    return 1 - 0.6 * (1 - confidence)


def interval_so_far(
    values: Values,
    confidence: float = 0.95,
    stretch: float = 1.0,
    units: Sequence[Hashable] = (),
) -> Interval:
    """The interval of the median at a look: wider than that of a fixed number of runs, so that it
    holds with `confidence` at the look that stops. Of several units, see `intervals.interval_of`,
    that of the mean of their medians."""
    medians, level = medians_of(values, units) if units else {}, median_confidence(confidence)
    if len(medians) > 1:
        return mean_interval([*medians.values()], level)
    return interpolated_interval(values, level, stretch)


def is_enough(
    values: Values,
    until: float,
    confidence: float = 0.95,
    stretch: float = 1.0,
    units: Sequence[Hashable] = (),
) -> bool:
    """Whether the runs of a point are enough: half of the width of `interval_so_far` is at most
    `until` of the median, and a wider interval, which would see a rare second mode, is at most
    twice as wide. Never because of a significance. Of several units, at least
    FEWEST_UNITS_TO_STOP are needed."""
    so_far = interval_so_far(values, confidence, stretch, units)
    if units and (several := len(medians_of(values, units))) > 1:
        return several >= FEWEST_UNITS_TO_STOP and so_far.half_width <= until
    guard = median_interval(values, 1 - 0.1 * (1 - confidence), stretch)
    return so_far.half_width <= until and guard.half_width <= 2 * until


def ratio_confidence(confidence: float = 0.95) -> float:
    """That of the interval of a ratio at a look, so that it holds with `confidence` at the look
    that stops."""
    return 1 - 0.8 * (1 - confidence)


def ratio_alpha(confidence: float = 0.95) -> float:
    """That of a `decision` at looks at whose end a ratio has `ratio_confidence`."""
    return 0.2 * (1 - confidence)


def decision(differences: Sequence[float], alpha: float) -> int:
    """The first number of differences at which their sign is decided, 0 if it is not.

    Without a difference, at any of infinitely many looks, it is decided with at most `alpha`: the
    mean over bets b of prod(exp(b d) / cosh(b d)) is a martingale where d is as often positive as
    negative, of every size. Each d is scaled by the median of the sizes so far. Source: Howard and
    Ramdas, and Ville's inequality.
    """
    wealth = np.zeros(2 * len(_BETS))
    bets = np.concatenate([_BETS, -_BETS])
    sizes = np.abs(np.asarray(differences, dtype=float))
    for n, difference in enumerate(differences, 1):
        scale = float(np.median(sizes[:n]))
        step = max(-_CLIPPED, min(_CLIPPED, difference / scale)) if scale else 0.0
        wealth += bets * step - np.log(np.cosh(bets * step))
        if float(np.mean(np.exp(wealth))) >= 1 / alpha:
            return n
    return 0
