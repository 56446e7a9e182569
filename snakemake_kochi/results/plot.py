"""The plot of a batch: a measurement over a parameter, with the spread of the duplicates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from snakemake_kochi.results.table import as_numbers, measurements

# More values than this would overlap; then matplotlib chooses.
_MOST_TICKS = 12
# A column of our own; no name of a parameter has a space.
_PLACE = "place on the axis"


def draw(runs: pandas.DataFrame, varying: Sequence[str], title: str, path: Path) -> None:
    """Draw the first metric (`run_seconds` if there is none) of each point: median, with bars from
    minimum to maximum.

    The axis is the varying parameter with the most values; each combination of the others is a
    line. PNG, 150 dots per inch.
    """
    measured = measurements(runs)
    metric = measured[1] if len(measured) > 1 else measured[0]
    # No pyplot: it keeps global state and looks for a display.
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    free = _independent(runs, varying)
    axis = max(free, key=lambda name: runs[name].nunique(), default="duplicate")
    others = [name for name in free if name != axis]
    runs = runs.assign(**{_PLACE: as_numbers(runs[axis])})
    numeric = pandas.api.types.is_numeric_dtype(runs[_PLACE])
    for key, part in runs.groupby(others, sort=False) if others else [((), runs)]:
        spread = part.groupby(_PLACE, sort=numeric)[metric].agg(["median", "min", "max"])
        label = ", ".join(f"{n}={v}" for n, v in zip(others, key, strict=True))
        errors = [spread["median"] - spread["min"], spread["max"] - spread["median"]]
        axes.errorbar(
            spread.index, spread["median"], yerr=errors, marker="o", capsize=3, label=label
        )
    axes.set(title=title, xlabel=axis, ylabel=metric)
    if numeric and _spans_decades(runs[_PLACE]):
        axes.set_xscale("log")
    elif numeric and runs[_PLACE].nunique() <= _MOST_TICKS:
        axes.set_xticks(runs[_PLACE].dropna().unique())
    if _spans_decades(runs[metric]):
        axes.set_yscale("log")
    elif not runs[metric].min() < 0:
        axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if others:
        axes.legend()
    figure.savefig(path, dpi=150, format="png")


def _independent(runs: pandas.DataFrame, varying: Sequence[str]) -> list[str]:
    """The parameters that tell the points apart, without those that follow from others."""
    chosen = list(varying)
    points = len(runs.drop_duplicates(chosen)) if chosen else 0
    for name in reversed(varying):
        rest = [other for other in chosen if other != name]
        if rest and len(runs.drop_duplicates(rest)) == points:
            chosen = rest
    return chosen


def _spans_decades(column: pandas.Series[float]) -> bool:
    """Whether small values would be lost on a linear axis."""
    return bool(column.min() > 0 and column.max() / column.min() >= 100)
