"""Levels and quantiles of the distributions that the intervals need."""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

# Above, the quantile of t is within 0.15 % of this one.
_MOST_DEGREES = 1000


@functools.lru_cache(maxsize=1024)
def sign_levels(n: int) -> tuple[float, ...]:
    """With which probability the k-th smallest and the k-th largest of `n` values have the median
    between them, for k = 1, 2, ...: 1 - 2 B(k - 1; n, 1/2). Holds for every distribution."""
    below, ways, levels = 0, 1, []
    for k in range(n // 2):
        below += ways
        levels.append(float(1 - 2 * below / 2**n) if n < 1000 else 1 - 2 * _ratio(below, n))
        ways = ways * (n - k) // (k + 1)
    return tuple(levels)


def _ratio(count: int, n: int) -> float:
    """count / 2**n, also where no float has 2**n."""
    shift = max(0, count.bit_length() - 64)
    return math.ldexp(float(count >> shift), shift - n)


@functools.lru_cache(maxsize=1024)
def signed_rank_cdf(n: int) -> NDArray[np.float64]:
    """P(T <= t) of Wilcoxon's signed-rank statistic of `n` differences, for t = 0 to n(n+1)/2."""
    chance = np.zeros(n * (n + 1) // 2 + 1)
    chance[0] = 1.0
    for rank in range(1, n + 1):
        chance[rank:] += chance[:-rank].copy()
        chance /= 2
    return np.minimum(np.cumsum(chance), 1.0)


@functools.lru_cache(maxsize=1024)
def t_quantile(confidence: float, degrees: int) -> float:
    """The t with P(-t <= T <= t) = `confidence`, of Student's T with `degrees` of freedom."""
    low, high = 0.0, 1.0
    while t_within(high, degrees) < confidence:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_within(middle, degrees) < confidence else (low, middle)
    return high


def t_within(t: float, degrees: int) -> float:
    """P(-t <= T <= t) of Student's T: Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    degrees = min(degrees, _MOST_DEGREES)
    angle = math.atan(t / math.sqrt(degrees))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    is_odd = degrees % 2 == 1
    term, total = (math.cos(angle), 0.0) if is_odd else (1.0, 0.0)
    for step in range(2 + is_odd, degrees + 1, 2):
        total += term
        term *= square * (step - 1) / step
    return 2 / math.pi * (angle + sine * total) if is_odd else sine * total
