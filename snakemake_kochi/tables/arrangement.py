"""What a figure shows where: on its axis, as lines, in panels; and what its caption says.

No two points share a place: what is neither axis nor line has panels of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.project.plots import DUPLICATE, MOST_LINES, Plot, too_many_lines

# More would be too small to be read.
MOST_PANELS = 24
# With fewer runs no interval between two of them contains the median with this probability.
FEWEST_FOR_INTERVAL = 6
_CONFIDENCE = 0.95
_MOST_FIXED = 12  # parameters that a caption lists


@dataclass(frozen=True)
class Arrangement:
    """The places of a figure's runs: `runs` are those that `where` selects.

    `x` and `lines` are columns, None where there is nothing to tell apart; `panels` are the columns
    whose combinations have a panel each. `fixed`: the other parameters, with their one value.
    """

    runs: pandas.DataFrame
    x: str | None
    lines: str | None
    panels: tuple[str, ...]
    fixed: tuple[tuple[str, str], ...]


def arrange(runs: pandas.DataFrame, parameters: Sequence[str], plot: Plot) -> Arrangement:
    """Choose what a plot leaves open: x is the parameter with the most values, of the numeric ones
    if there are some; lines are the next one with 2 to 12 values, in the order of `parameters`.

    Parameters that follow from others are left out, unless the plot names them. Raises ConfigError
    for too many lines.
    """
    for name, wanted in plot.where.items():
        if name in runs:
            runs = runs[runs[name].fillna("").isin(wanted)]
    varying = [name for name in parameters if _count(runs, name) > 1]
    named = [name for name in (plot.x, plot.lines, *plot.panels) if name in varying]
    free = independent_parameters(runs, varying, named)
    fixed = [(each, str(runs[each].iloc[0])) for each in parameters if _count(runs, each) == 1]
    x = plot.x if plot.x in (*free, DUPLICATE) else None
    lines = plot.lines if plot.lines in free else None
    panels = [name for name in plot.panels if name in free]
    left = [name for name in free if name not in (x, lines, *panels)]
    if x is None and left:
        numeric = [name for name in left if numbers(runs[name]) is not None]
        x = max(numeric or left, key=lambda name: _count(runs, name))
        left.remove(x)
    if lines is None:
        lines = next((name for name in left if _count(runs, name) <= MOST_LINES), None)
        left = [name for name in left if name != lines]
    elif (count := _count(runs, lines)) > MOST_LINES:
        raise ConfigError(too_many_lines(lines, count))
    return Arrangement(runs, x, lines, (*panels, *left), tuple(fixed))


def independent_parameters(
    runs: pandas.DataFrame, varying: Sequence[str], kept: Sequence[str] = ()
) -> list[str]:
    """The parameters that tell the points apart, without those that follow from others; the `kept`
    ones stay."""
    chosen = list(varying)
    points = len(runs.drop_duplicates(chosen)) if chosen else 0
    for name in reversed(varying):
        rest = [other for other in chosen if other != name]
        if name not in kept and rest and len(runs.drop_duplicates(rest)) == points:
            chosen = rest
    return chosen


def numbers(column: pandas.Series[Any]) -> pandas.Series[float] | None:
    """The values of a parameter as numbers; None if one is no number, is missing, or if two
    different texts would be the same number."""
    found = pandas.to_numeric(column, errors="coerce").astype("float64")
    is_finite = found.map(math.isfinite)
    if not is_finite.all() or found.nunique() != column.nunique():
        return None
    return found


def values_of(runs: pandas.DataFrame, name: str) -> list[Any]:
    """The values of a parameter, numbers by size and texts as in the file; None for a missing
    one."""
    found = runs[name].drop_duplicates()
    as_numbers = numbers(found)
    ordered = found if as_numbers is None else found[as_numbers.sort_values().index]
    return [None if pandas.isna(value) else value for value in ordered]


def _count(runs: pandas.DataFrame, name: str) -> int:
    return int(runs[name].nunique(dropna=False)) if name in runs else 0


# ---- the median and its interval


@dataclass(frozen=True)
class Spread:
    """The runs of a point: how many, their median and its interval.

    With FEWEST_FOR_INTERVAL runs or more, the interval contains the median of all possible runs
    with a probability of 95 % or more. With fewer it is from the smallest to the largest run.
    """

    count: int
    median: float
    low: float
    high: float


def spread_of(values: Sequence[float]) -> Spread:
    """The median of some runs and its interval, for any distribution of independent runs.

    The interval lies between the k-th smallest and the k-th largest run, for the largest k for
    which P(B < k) <= 2.5 %, where B is binomial with n and 1/2 (W. J. Conover, Practical
    Nonparametric Statistics, 3.2; T. Hoefler and R. Belli, Scientific Benchmarking of Parallel
    Computing Systems, SC 2015, rule 5 ff.).
    """
    ordered = sorted(values)
    count = len(ordered)
    median = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    rank = _rank(count)
    return Spread(count, median, ordered[rank], ordered[-1 - rank])


def _rank(count: int) -> int:
    """How many of the smallest and of the largest runs are outside of the interval."""
    allowed = (1 - _CONFIDENCE) / 2
    # In logarithms: 2**-count is 0 for more than a thousand runs.
    total = 0.0
    for rank in range((count + 1) // 2):
        chance = math.lgamma(count + 1) - math.lgamma(rank + 1) - math.lgamma(count - rank + 1)
        total += math.exp(chance - count * math.log(2))
        if total > allowed:
            return max(rank - 1, 0)
    return 0


# ---- the caption


def caption(arranged: Arrangement, spreads: Sequence[Spread], lacking: int, panels: int) -> str:
    """The sentences below a figure; `lacking`: runs without a value, `panels`: of all panels, also
    those that are not shown."""
    said = [_about_intervals(spreads)]
    if lacking:
        said.append(f"{lacking} of {len(arranged.runs)} runs have no value.")
    if panels > MOST_PANELS:
        names = " and ".join(arranged.panels)
        said.append(
            f"Only {MOST_PANELS} of {panels} combinations of {names} are shown; choose some with "
            "where."
        )
    if arranged.fixed:
        shown = ", ".join(f"{name}={value}" for name, value in arranged.fixed[:_MOST_FIXED])
        more = len(arranged.fixed) - _MOST_FIXED
        said.append(f"The same everywhere: {shown}{f' and {more} more' if more > 0 else ''}.")
    return " ".join(filter(None, said))


def _about_intervals(spreads: Sequence[Spread]) -> str:
    counts = sorted({each.count for each in spreads})
    if not counts:
        return ""
    if counts == [1]:
        return "One run for each point."
    each = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    first = f"Symbols: median of {each} runs."
    interval = "95 % confidence interval of the median (order statistics)"
    extent = "from the smallest to the largest run"
    if counts[0] >= FEWEST_FOR_INTERVAL:
        bars = f"Bars: {interval}."
    elif counts[-1] < FEWEST_FOR_INTERVAL:
        bars = f"Bars: {extent}."
    else:
        bars = f"Bars: {interval}; with fewer than {FEWEST_FOR_INTERVAL} runs, {extent}."
    return f"{first} {bars} Dots: single runs."
