"""The axes of a figure: their scales, ticks and labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas
from matplotlib.ticker import (
    FixedFormatter,
    FixedLocator,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)

from snakemake_kochi.errors import shortened
from snakemake_kochi.project.plots import Plot
from snakemake_kochi.tables.arrangement import Arrangement, numbers, values_of
from snakemake_kochi.tables.ticks import Numbers, exact_labels, is_geometric, spans_decades, thinned

CHARACTER = 0.6  # width of an average character, in units of its size
# Characters of a name or value in the figure, and of a value below an axis.
LONGEST, _LONGEST_BELOW = 32, 22
_STEPS = (1, 2, 2.5, 5, 10)  # between the ticks of a linear axis
_MOST_DECADES = 300.0  # of a float, less a margin
_MOST_TICKS = 12  # values of a parameter with a tick for each
_LINEAR = "The {} axis is linear, because some values are 0 or negative."


@dataclass(frozen=True)
class HorizontalAxis:
    """The horizontal axis: its name, and the `places` of its values, in their order.

    `remark`: a sentence for the caption if it cannot be as the plot wants it.
    """

    name: str
    values: Sequence[Any]
    places: Mapping[Any, float]
    is_numeric: bool = False
    is_log: bool = False
    remark: str = ""

    def scale(self, axes: Any, width: float) -> None:
        """Set the scale, the ticks and their labels of a panel with about this width in inches."""
        if not self.is_numeric:
            axes.set_xlim(-0.6, max(len(self.values) - 0.4, 0.6))
            step = math.ceil(len(self.values) / 60)
            names = self.values if self.name else [" "]
            shown = [shortened(in_words(value), _LONGEST_BELOW) for value in names][::step]
            room = width * 72 / max(len(shown), 1)
            is_long = max(map(len, shown), default=0) * 9 * CHARACTER > room
            size = 9.0 if len(shown) <= 20 else 6.0
            axes.set_xticks(
                range(0, len(self.values), step),
                shown,
                size=size,
                rotation=(40 if len(shown) <= 12 else 90) if is_long else 0,
                ha="right" if is_long and len(shown) <= 12 else "center",
                rotation_mode="anchor" if len(shown) <= 12 else "default",
            )
            return
        places = list(self.places.values())
        if self.is_log:
            axes.set_xscale("log")
        axes.xaxis.set_major_formatter(Numbers())
        if len(places) <= _MOST_TICKS:
            texts = dict(zip(places, exact_labels([*map(str, self.values)]), strict=True))
            kept = thinned(texts, self.is_log, width * 65, 9 * CHARACTER)
            axes.xaxis.set_major_locator(FixedLocator(list(kept)))
            axes.xaxis.set_major_formatter(FixedFormatter(list(kept.values())))
        elif self.is_log:
            axes.xaxis.set_major_locator(LogLocator(numticks=8))
        else:
            axes.xaxis.set_major_locator(MaxNLocator(7, steps=_STEPS))
        axes.set_xlim(*_limits(places[0], places[-1], self.is_log, 0.06))
        axes.xaxis.set_minor_locator(NullLocator())


def horizontal_axis(arranged: Arrangement, plot: Plot) -> HorizontalAxis:
    """The axis of a plot: of numbers, or of categories side by side."""
    if arranged.x is None:
        return HorizontalAxis("", [""], {})
    values = values_of(arranged.runs, arranged.x)
    if numbers(arranged.runs[arranged.x].drop_duplicates()) is None:
        return HorizontalAxis(arranged.x, values, {v: float(i) for i, v in enumerate(values)})
    places = {value: float(value) for value in values}
    ordered = list(places.values())
    fits = spans_decades(ordered[0], ordered[-1]) or is_geometric(ordered)
    is_log = ordered[0] > 0 and (plot.x_scale == "log" or (not plot.x_scale and fits))
    remark = _LINEAR.format("horizontal") if plot.x_scale == "log" and not is_log else ""
    return HorizontalAxis(arranged.x, values, places, True, is_log, remark)


def scale_vertical(axes: Any, measured: pandas.Series[float], plot: Plot) -> str:
    """Set the scale and the ticks of the vertical axis, which all panels share. Returns a sentence
    for the caption if it cannot be as the plot wants it."""
    if not measured.notna().any():
        axes.yaxis.set_major_locator(NullLocator())
        return ""
    low, high = float(measured.min()), float(measured.max())
    wants_log = plot.scale == "log" or (not plot.scale and spans_decades(low, high))
    is_log = wants_log and low > 0
    bottom, top = _limits(low, high, is_log, 0.05)
    if is_log:
        axes.set_yscale("log")
        decades = math.log10(top) - math.log10(bottom)
        subs = (1.0,) if decades > 4 else (1.0, 3.0) if decades > 2 else (1.0, 2.0, 5.0)
        fits = LogLocator(subs=subs, numticks=12) if decades > 0.8 else MaxNLocator(5, steps=_STEPS)
        axes.yaxis.set_major_locator(fits)
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=_STEPS))
        if plot.y_from_zero and low >= 0:
            # The margin is a part of the axis as it is then, for markers on its upper edge.
            bottom, top = 0.0, _limits(0.0, high, False, 0.05)[1]
    axes.set_ylim(bottom, top)
    axes.yaxis.set_major_formatter(Numbers())
    # What the plot asked for is not done silently in another way.
    return _LINEAR.format("vertical") if plot.scale == "log" and not is_log else ""


def _limits(low: float, high: float, is_log: bool, margin: float) -> tuple[float, float]:
    """The ends of an axis, a part of its length beyond the values."""
    # Not left to matplotlib, which does not know values of artists that are shifted by points.
    if is_log:
        decades = math.log10(high) - math.log10(low)
        beyond = decades * margin or 0.3
        least, most = math.log10(low) - beyond, math.log10(high) + beyond
        return 10 ** max(least, -_MOST_DECADES), 10 ** min(most, _MOST_DECADES)
    extent = (high - low) * margin or abs(high) * margin or 1.0
    return low - extent, high + extent


def in_words(value: Any) -> str:
    """The value of a parameter in a figure; None is that of a parameter that a point lacks."""
    return "none" if value is None else str(value) or "''"
