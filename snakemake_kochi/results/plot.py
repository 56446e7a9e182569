"""The plot of a batch: a measurement over a parameter, with the spread of the duplicates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from snakemake_kochi.results.table import measurements

# More values than this would print over each other; then matplotlib chooses.
_MOST_TICKS = 12


def draw(runs: pandas.DataFrame, varying: Sequence[str], title: str, path: Path) -> None:
    """Draw the first metric (`seconds` if there is none) of each point: median, with bars from
    minimum to maximum. The axis is the varying parameter with the most values, a line stands for
    each combination of the others. PNG, 150 dots per inch."""
    measured = measurements(runs)
    metric = measured[1] if len(measured) > 1 else measured[0]
    # No pyplot: it keeps global state and looks for a display.
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axis = max(varying, key=lambda name: runs[name].nunique(), default="duplicate")
    others = [name for name in varying if name != axis]
    for key, part in runs.groupby(others, sort=False) if others else [((), runs)]:
        spread = part.groupby(axis)[metric].agg(["median", "min", "max"])
        places = spread.index
        if not pandas.api.types.is_numeric_dtype(places):
            places = places.astype(str)
        label = ", ".join(f"{n}={v}" for n, v in zip(others, key, strict=True))
        errors = [spread["median"] - spread["min"], spread["max"] - spread["median"]]
        axes.errorbar(places, spread["median"], yerr=errors, marker="o", capsize=3, label=label)
    if pandas.api.types.is_numeric_dtype(runs[axis]) and runs[axis].nunique() <= _MOST_TICKS:
        axes.set_xticks(runs[axis].dropna().unique())
    axes.set(title=title, xlabel=axis, ylabel=metric)
    if not runs[metric].min() < 0:
        axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if others:
        axes.legend()
    figure.savefig(path, dpi=150, format="png")
