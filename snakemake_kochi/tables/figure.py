"""A figure of one measurement: what is where, medians with their intervals, single runs, a caption.

On its axis, as lines, in panels: no two points share a place, so what is neither axis nor line has
panels of its own. How it looks is left to matplotlib.
"""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import pandas
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from snakemake_kochi.errors import ConfigError, shortened
from snakemake_kochi.project.plots import DUPLICATE, MOST_LINES, Plot, Quantity, too_many_lines
from snakemake_kochi.tables.intervals import Measured

# More would be too small to be read.
MOST_PANELS = 24
_MOST_NAMED = 12  # parameters in a caption, and values at an axis
_LONGEST = 32  # characters of a name or value
# M. Okabe and K. Ito, Color Universal Design, without yellow, which is invisible on white paper.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#000000", "#CC79A7", "#56B4E9", "#E69F00")
# Markers and styles tell the lines apart in a grey print.
_MARKERS = ("o", "s", "^", "D", "v", "X", "<", "P", ">", "p", "*", "h")
_STYLES = ("-", "--", "-.", ":")
_MOST_VECTORS = 2000  # runs; more are drawn as pixels in a vector graphic, which stays small
# What people write is not LaTeX: $5 stays $5. And the same figure is the same file.
STYLE: Any = {"text.parse_math": False, "svg.hashsalt": "kochi"}
DATES: Mapping[str, Any] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def draw(
    runs: pandas.DataFrame,
    parameters: Sequence[str],
    plot: Plot,
    quantities: Mapping[str, Quantity],
    title: str,
    files: Sequence[Path],
    note: str = "",
    measured: Measured | None = None,
) -> None:
    """Draw a plot of the runs of a batch, and write it to files, whose suffix is their format.

    `parameters`: the columns that are parameters; `note` ends the caption; `measured` has the
    intervals of the points, by the numbers of the rows. PNG has 150 dots per inch. Raises
    ConfigError for a parameter with too many lines; OSError.
    """
    drawing = _Drawing(arrange(runs, parameters, plot), plot, measured)
    with matplotlib.rc_context(STYLE):
        figure = drawing.figure(quantities.get(plot.metric, Quantity()), title, note)
        for file in files:
            figure.savefig(file, dpi=150, format=file.suffix[1:], metadata=DATES.get(file.suffix))
            # Arranged once, for all formats.
            figure.set_layout_engine(None)


# rows and their values
_Runs = list[tuple[Any, float]]


# ---- what is where


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
    counts = {name: int(runs[name].nunique(dropna=False)) for name in parameters}
    fixed = [(name, str(runs[name].iloc[0])) for name, count in counts.items() if count == 1]
    free = independent_parameters(
        runs,
        [name for name, count in counts.items() if count > 1],
        (plot.x, plot.lines, *plot.panels),
    )
    x = plot.x if plot.x in (*free, DUPLICATE) else None
    lines = plot.lines if plot.lines in free else None
    panels = [name for name in plot.panels if name in free]
    left = [name for name in free if name not in (x, lines, *panels)]
    if x is None and left:
        numeric = [name for name in left if numbers(runs[name]) is not None]
        x = max(numeric or left, key=counts.__getitem__)
        left.remove(x)
    if lines is None:
        lines = next((name for name in left if counts[name] <= MOST_LINES), None)
        left = [name for name in left if name != lines]
    elif counts[lines] > MOST_LINES:
        raise ConfigError(too_many_lines(lines, counts[lines]))
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
    if not found.map(math.isfinite).all() or found.nunique() != column.nunique():
        return None
    return found


def values_of(runs: pandas.DataFrame, name: str | None) -> list[Any]:
    """The values of a parameter, numbers by size and texts as in the file; None for a missing
    one."""
    if name is None:
        return [None]
    found = runs[name].drop_duplicates()
    as_numbers = numbers(found)
    ordered = found if as_numbers is None else found[as_numbers.sort_values().index]
    return [None if pandas.isna(value) else value for value in ordered]


# ---- the drawing


class _Drawing:
    def __init__(self, arranged: Arrangement, plot: Plot, of_points: Measured | None) -> None:
        self.arranged, self.plot, self.of_points = arranged, plot, of_points
        runs, self.x = arranged.runs, arranged.x
        measured = pandas.to_numeric(runs[plot.metric], errors="coerce").astype("float64")
        self.finite = [value for value in measured if math.isfinite(value)]
        self.spreads: list[Spread] = []
        # The measurements and their rows, by the values of the panels, of the lines and of x.
        self.panels: dict[tuple[Any, ...], dict[Any, dict[Any, _Runs]]] = {}
        names = (*arranged.panels, arranged.lines, self.x)
        columns = [
            runs[n].astype(object).where(runs[n].notna(), None) if n else None for n in names
        ]
        keys = [[None] * len(runs) if column is None else column for column in columns]
        for *panel, line, x, (row, value) in zip(*keys, measured.items(), strict=True):
            own = self.panels.setdefault(tuple(panel), {}).setdefault(line, {}).setdefault(x, [])
            own += [(row, value)] if math.isfinite(value) else []
        self.lines = values_of(runs, arranged.lines)
        values = values_of(runs, self.x)
        self.is_numeric = self.x is not None and numbers(runs[self.x].drop_duplicates()) is not None
        # Categories are side by side.
        self.places: dict[Any, float] = {
            value: float(value if self.is_numeric else index) for index, value in enumerate(values)
        }

    def figure(self, quantity: Quantity, title: str, note: str) -> Figure:
        arranged = self.arranged
        ranks = [{v: n for n, v in enumerate(values_of(arranged.runs, p))} for p in arranged.panels]
        order = lambda panel: [rank[v] for rank, v in zip(ranks, panel, strict=True)]  # noqa: E731
        panels = sorted(self.panels, key=order)[:MOST_PANELS] or [()]
        columns = math.ceil(math.sqrt(len(panels)))
        rows = math.ceil(len(panels) / columns)
        width = 4.2 + 2.8 * columns
        figure = Figure(figsize=(width, 2.0 + 2.6 * rows), layout="constrained")
        FigureCanvasAgg(figure)
        grid = list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        unit = f" ({quantity.unit})" if quantity.unit else ""
        label = textwrap.fill(f"{quantity.label or self.plot.metric}{unit}", 40)
        for index, (axes, values) in enumerate(zip(grid, panels, strict=False)):
            pairs = zip(arranged.panels, values, strict=False)
            named = ", ".join(f"{name}={in_words(value)}" for name, value in pairs)
            axes.set_title(textwrap.fill(named, 40), fontsize="medium")
            self._draw_panel(axes, self.panels.get(values, {}))
            if index % columns == 0:
                axes.set_ylabel(label)
            if index + columns >= len(panels):
                # Nothing is below it, though the grid may have a row there.
                axes.tick_params(labelbottom=True)
                axes.set_xlabel(shortened(self.x or "", _LONGEST))
        lacking = len(arranged.runs) - len(self.finite)
        said = [caption(arranged, self.spreads, lacking, len(self.panels))]
        said += [*self._scale(grid[0], columns), note]
        figure.suptitle(textwrap.fill(title, int(width * 8)), weight="bold")
        text = textwrap.fill(" ".join(filter(None, said)), int(width * 15))
        figure.supxlabel(text, x=0.01, ha="left", fontsize=8)
        if arranged.lines is not None:
            handles = [
                Line2D([], [], **self._look(number), label=shortened(in_words(value), _LONGEST))
                for number, value in enumerate(self.lines)
            ]
            name = shortened(arranged.lines, _LONGEST)
            figure.legend(handles=handles, title=name, loc="outside right upper")
        return figure

    def _draw_panel(self, axes: Any, lines: Mapping[Any, Mapping[Any, _Runs]]) -> None:
        if not any(values for line in lines.values() for values in line.values()):
            axes.text(0.5, 0.5, "no run has a number", transform=axes.transAxes, ha="center")
        for number, line in enumerate(self.lines):
            points = sorted((self.places[x], v) for x, v in lines.get(line, {}).items() if v)
            if not points:
                continue
            # A gap would leave a point between two missing ones without a line.
            spreads = [self._spread(runs) for _, runs in points]
            self.spreads += spreads
            look = self._look(number)
            bars = [[s.median - s.low for s in spreads], [s.high - s.median for s in spreads]]
            is_several = any(each.count > 1 for each in spreads)
            places, medians = [place for place, _ in points], [each.median for each in spreads]
            axes.errorbar(places, medians, bars if is_several else None, **look, capsize=3)
            single = [(place, each) for place, some in points if len(some) > 1 for _, each in some]
            if single:
                pixels = len(self.arranged.runs) > _MOST_VECTORS
                dots: Any = {"s": 7, "color": look["color"], "alpha": 0.4, "rasterized": pixels}
                axes.scatter(*zip(*single, strict=True), **dots)
        axes.grid(visible=True, axis="y", alpha=0.25)

    def _spread(self, runs: _Runs) -> Spread:
        values = [value for _, value in runs]
        median = statistics.median(values)
        if self.of_points is not None and self.x != DUPLICATE:
            interval = self.of_points.intervals[self.of_points.points.of_row[runs[0][0]]]
            if interval.lower is not None and interval.upper is not None:
                return Spread(len(runs), interval.estimate, interval.lower, interval.upper, True)
        return Spread(len(runs), median, min(values), max(values), False)

    def _look(self, number: int) -> dict[str, Any]:
        style = _STYLES[number % len(_STYLES)] if self.is_numeric else "none"
        colour, marker = COLOURS[number % len(COLOURS)], _MARKERS[number % len(_MARKERS)]
        return {"color": colour, "marker": marker, "linestyle": style}

    def _scale(self, axes: Any, columns: int) -> Iterator[str]:
        """Set the scales and ticks, which all panels share. Yields what cannot be as the plot
        wants it, which is not done silently in another way."""
        places, plot = list(self.places.values()), self.plot
        low, high = min(self.finite, default=0.0), max(self.finite, default=0.0)
        is_wide = self.is_numeric and (100 * places[0] <= places[-1] or is_geometric(places))
        for axis, wanted, least, fits, set_scale in (
            ("horizontal", plot.x_scale, places[0], is_wide, axes.set_xscale),
            ("vertical", plot.scale, low, 100 * low <= high, axes.set_yscale),
        ):
            is_there = self.is_numeric if axis == "horizontal" else bool(self.finite)
            if is_there and (wanted == "log" or (not wanted and fits)):
                if least > 0:
                    set_scale("log")
                elif wanted:
                    yield f"The {axis} axis is linear, because some values are 0 or negative."
        if self.x and (not self.is_numeric or len(places) <= _MOST_NAMED):
            texts = [shortened(in_words(value), _LONGEST) for value in self.places]
            is_long = sum(map(len, texts)) > 60 / columns
            turned: Any = {"rotation": 40, "ha": "right"} if is_long else {}
            axes.set_xticks(places, texts, **turned)
            axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
        if axes.get_yscale() == "linear" and plot.y_from_zero and low >= 0:
            axes.set_ylim(bottom=0)


def is_geometric(values: Sequence[float]) -> bool:
    """Whether numbers, in their order, grow by a factor rather than by a difference: 1, 2, 4, 8."""
    if len(values) < 3 or values[0] <= 0:
        return False
    # Three values say less: 1, 2, 3 must not be one.
    tolerance = 1.5 if len(values) > 3 else 1.1
    factors = [after / before for before, after in pairwise(values)]
    return min(factors) >= 1.5 and max(factors) / min(factors) <= tolerance


def in_words(value: Any) -> str:
    """The value of a parameter in a figure; None is that of a parameter that a point lacks."""
    return "none" if value is None else str(value) or "''"


# ---- the median and its interval, and the caption


@dataclass(frozen=True)
class Spread:
    """The runs of a point: how many, their median, and the ends of its bar: of the interval, or,
    where there is none (`is_interval`), the smallest and the largest run."""

    count: int
    median: float
    low: float
    high: float
    is_interval: bool


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
        shown = ", ".join(f"{name}={value}" for name, value in arranged.fixed[:_MOST_NAMED])
        more = len(arranged.fixed) - _MOST_NAMED
        said.append(f"The same everywhere: {shown}{f' and {more} more' if more > 0 else ''}.")
    return " ".join(filter(None, said))


def _about_intervals(spreads: Sequence[Spread]) -> str:
    if not spreads:
        return ""
    counts = sorted({each.count for each in spreads})
    if counts == [1]:
        return "One run for each point."
    runs = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    bars = "from the smallest to the largest run"
    if any(each.is_interval for each in spreads):
        few = "" if all(each.is_interval for each in spreads) else f"; where there is none, {bars}"
        bars = f"interval of the median, as in the table{few}"
    return f"Symbols: median of {runs} runs. Bars: {bars}. Dots: single runs."
