"""A figure of one measurement: medians with their intervals, and the single runs beside them."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import pandas
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.transforms import ScaledTranslation

from snakemake_kochi.errors import shortened
from snakemake_kochi.project.metrics import Quantity
from snakemake_kochi.project.plots import Plot
from snakemake_kochi.tables.arrangement import (
    MOST_PANELS,
    Arrangement,
    Spread,
    arrange,
    caption,
    numbers,
    spread_of,
    values_of,
)
from snakemake_kochi.tables.axes import (
    CHARACTER,
    LONGEST,
    horizontal_axis,
    in_words,
    scale_vertical,
)

# M. Okabe and K. Ito, Color Universal Design, without yellow, which is invisible on white paper.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#000000", "#CC79A7", "#56B4E9", "#E69F00")
# With colours of the same lightness, markers and styles tell the lines apart in a grey print.
_MARKERS = ("o", "s", "^", "D", "v", "X", "<", "P", ">", "p", "*", "h")
_STYLES = ("-", "--", "-.", ":")
_FEWEST_IN_ORDER = 4  # lines with numbers, which get colours from dark to light
_POINT = 1 / 72  # inches
_SMALL = 7.5  # size of the caption's characters, in points
_MOST_PASSED = 5  # values that the caption names
_MANY = 50  # runs of a point, whose dots are fainter
_MOST_VECTORS = 2000  # runs; more are drawn as pixels in a vector graphic, which stays small
_STYLE: Any = {
    # What people write is not LaTeX: $5 stays $5.
    "text.parse_math": False,
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    # The same figure is the same file.
    "svg.hashsalt": "kochi",
}
_Line = tuple[Any, list[tuple[float, list[float]]]]


@dataclass(frozen=True)
class _Panel:
    """`lines`: for each value of the lines, its places and the measurements there."""

    title: str
    lines: Sequence[_Line]


def draw(
    runs: pandas.DataFrame,
    parameters: Sequence[str],
    plot: Plot,
    quantities: Mapping[str, Quantity],
    title: str,
    files: Sequence[Path],
    note: str = "",
) -> None:
    """Draw a plot of the runs of a batch, and write it to files, whose suffix is their format.

    `parameters`: the columns that are parameters; `note` ends the caption. PNG has
    150 dots per inch. Raises ConfigError for a parameter with too many lines; OSError.
    """
    arranged = arrange(runs, parameters, plot)
    with matplotlib.rc_context(_STYLE):
        quantity = quantities.get(plot.metric, Quantity())
        figure = _Drawing(arranged, plot, quantity, title).figure(note)
        for file in files:
            format_ = file.suffix.removeprefix(".")
            date = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(format_)
            figure.savefig(file, dpi=150, format=format_, metadata=date)
            # Arranged once, for all formats.
            figure.set_layout_engine(None)


class _Drawing:
    def __init__(self, arranged: Arrangement, plot: Plot, quantity: Quantity, title: str) -> None:
        self.arranged, self.plot, self.quantity, self.title = arranged, plot, quantity, title
        self.axis = horizontal_axis(arranged, plot)
        runs = arranged.runs
        measured = pandas.to_numeric(runs[plot.metric], errors="coerce").astype("float64")
        # Without infinite ones.
        self.measured = measured.where(measured.map(math.isfinite))
        self.line_values = values_of(runs, arranged.lines) if arranged.lines else [None]
        self.is_ordered = arranged.lines is not None and (
            numbers(runs[arranged.lines].drop_duplicates()) is not None
        )
        self.spreads: list[Spread] = []
        self.passed: set[float] = set()  # places where a line has no value
        combinations = _combinations(runs, arranged.panels)
        self.count = len(combinations)
        self.panels = [self._panel(each) for each in combinations[:MOST_PANELS]]

    def figure(self, note: str) -> Figure:
        count = max(len(self.panels), 1)
        columns = _columns(count)
        rows = math.ceil(count / columns)
        width = max(7.0, 1.2 + 2.7 * columns) + (1.4 if len(self.line_values) > 1 else 0.0)
        height = 4.3 if rows == 1 and columns == 1 else 0.6 + 2.5 * rows
        figure = Figure(figsize=(width, height))
        FigureCanvasAgg(figure)
        self.width = width
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        flat = list(grid.flat)
        for axes in flat[count:]:
            axes.set_axis_off()
        for index, axes in enumerate(flat[:count]):
            self._draw_panel(axes, index)
            if index + columns >= count:
                # Nothing is below it, though the grid may have a row there.
                axes.tick_params(labelbottom=True)
                axes.set_xlabel(shortened(self.arranged.x or "", LONGEST))
            if index % columns == 0:
                axes.set_ylabel(self._y_label(rows))
        scaled = scale_vertical(flat[0], self.measured, self.plot)
        remarks = (self._passed_over(), self.axis.remark, scaled, note)
        self._name_lines(figure)
        said = caption(self.arranged, self.spreads, int(self.measured.isna().sum()), self.count)
        _write_around(figure, self.title, " ".join(filter(None, (said, *remarks))))
        return figure

    # ---- the content

    def _panel(self, values: Sequence[Any]) -> _Panel:
        arranged = self.arranged
        runs = _where(arranged.runs, dict(zip(arranged.panels, values, strict=True)))
        lines: list[_Line] = []
        for value in self.line_values:
            of_line = _where(runs, {arranged.lines: value}) if arranged.lines else runs
            measured = self.measured[of_line.index]
            if arranged.x is None:
                found = [(0.0, list(measured.dropna()))]
            else:
                keys = of_line[arranged.x]
                groups = measured.groupby(keys.where(keys.notna(), None), dropna=False)
                places = self.axis.places
                found = [(places[_known(k)], list(each.dropna())) for k, each in groups]
            lines.append((value, sorted(found) if any(some for _, some in found) else []))
        named = zip(arranged.panels, values, strict=True)
        title = ", ".join(f"{name}={in_words(value)}" for name, value in named)
        return _Panel(title, lines)

    def _draw_panel(self, axes: Any, index: int) -> None:
        panel = self.panels[index] if self.panels else _Panel("", ())
        if panel.title:
            axes.set_title("\n".join(textwrap.wrap(panel.title, 48)), fontsize="medium")
        if not any(points for _, points in panel.lines):
            axes.text(
                *(0.5, 0.5, "no run has a number"), transform=axes.transAxes, ha="center", size=9
            )
        for number, (_, points) in enumerate(panel.lines):
            self._draw_line(axes, number, points)
        axes.grid(visible=True, axis="y", alpha=0.25)
        self.axis.scale(axes, self._panel_width)

    def _draw_line(self, axes: Any, number: int, points: Sequence[Any]) -> None:
        if not points:
            return
        # A gap would leave a point between two missing ones without a line; the caption names them.
        self.passed |= {place for place, values in points if not values}
        points = [(place, values) for place, values in points if values]
        spreads = [spread_of(values) for _, values in points]
        self.spreads += spreads
        places = [place for place, _ in points]
        look = self._look(number)
        medians = [each.median for each in spreads]
        below = [each.median - each.low for each in spreads]
        above = [each.high - each.median for each in spreads]
        beside = axes.transData + self._shift(axes, number, 0.0)
        axes.errorbar(
            *(places, medians),
            yerr=None if all(each.count <= 1 for each in spreads) else [below, above],
            **look,
            markersize=5.5,
            markeredgecolor="white",
            markeredgewidth=0.6,
            linewidth=1.2,
            elinewidth=1.0,
            capsize=2.5,
            transform=beside,
            zorder=3,
        )
        single = [(place, each) for place, some in points if len(some) > 1 for each in some]
        if single:
            axes.scatter(
                *zip(*single, strict=True),
                s=7,
                color=look["color"],
                alpha=0.45 if len(single) < _MANY * len(points) else 0.15,
                linewidths=0,
                transform=axes.transData + self._shift(axes, number, 4.5),
                zorder=2,
                rasterized=len(self.arranged.runs) > _MOST_VECTORS,
            )

    def _passed_over(self) -> str:
        if not self.passed or not self.axis.is_numeric:
            return ""
        values = [in_words(v) for v, place in self.axis.places.items() if place in self.passed]
        more = f" and {len(values) - _MOST_PASSED} more" if len(values) > _MOST_PASSED else ""
        shown = ", ".join(values[:_MOST_PASSED])
        return f"Lines pass over points without a value, at {self.axis.name}={shown}{more}."

    def _look(self, number: int) -> dict[str, Any]:
        count = len(self.line_values)
        colour: Any = _COLOURS[number % len(_COLOURS)]
        if self.is_ordered and count >= _FEWEST_IN_ORDER:
            colour = colormaps["viridis"](0.8 * number / (count - 1))
        style = _STYLES[number % len(_STYLES)] if self.axis.is_numeric else "none"
        return {"color": colour, "marker": _MARKERS[number % len(_MARKERS)], "linestyle": style}

    def _shift(self, axes: Any, number: int, right: float) -> Any:
        """Lines are drawn beside each other, by some points, and single runs beside the median."""
        count = len(self.line_values)
        if self.axis.is_numeric:
            step = min(3.0, 14 / count)
        else:
            room = 72 * self.width / (1.6 * max(len(self.axis.places), 1))
            step = min(14.0, 0.6 * room / count)
        distance = (number - (count - 1) / 2) * step
        return ScaledTranslation((distance + right) * _POINT, 0, axes.figure.dpi_scale_trans)

    @property
    def _panel_width(self) -> float:
        """About the width of a panel, in inches."""
        return (self.width - 1.2) / _columns(max(len(self.panels), 1)) - 0.3

    def _y_label(self, rows: int) -> str:
        name = self.quantity.label or self.plot.metric
        unit = f" ({self.quantity.unit})" if self.quantity.unit else ""
        return "\n".join(textwrap.wrap(f"{name}{unit}", 42 if rows == 1 else 28))

    def _name_lines(self, figure: Figure) -> None:
        if self.arranged.lines is None:
            return
        from matplotlib.lines import Line2D

        handles = [
            Line2D(
                *((), ()),
                **self._look(number),
                markersize=5.5,
                linewidth=1.2,
                label=shortened(in_words(value), LONGEST),
            )
            for number, value in enumerate(self.line_values)
        ]
        figure.legend(
            handles=handles,
            title=shortened(self.arranged.lines, LONGEST),
            loc="outside right upper",
            frameon=False,
            handlelength=3,
        )


def _combinations(runs: pandas.DataFrame, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """The combinations of values that some run has, in the order of the values."""
    if not names:
        return [()]
    ranks = {
        name: {value: rank for rank, value in enumerate(values_of(runs, name))} for name in names
    }
    there = runs[list(names)].drop_duplicates().itertuples(index=False, name=None)
    found = [tuple(map(_known, each)) for each in there]
    return sorted(
        found,
        key=lambda each: [ranks[name][v] for name, v in zip(names, each, strict=True)],
    )


def _columns(panels: int) -> int:
    return panels if panels <= 3 else {4: 2, 5: 3, 6: 3, 9: 3}.get(panels, 4)


def _where(runs: pandas.DataFrame, values: Mapping[Any, Any]) -> pandas.DataFrame:
    for name, value in values.items():
        column = runs[name]
        runs = runs[column.isna() if value is None else column == value]
    return runs


def _known(value: Any) -> Any:
    return None if pandas.isna(value) else value


def _write_around(figure: Figure, title: str, said: str) -> None:
    """The title above, and the caption below, with as many lines as they need."""
    width, height = figure.get_size_inches()
    above = textwrap.wrap(title, int(width * 72 / (11 * CHARACTER)))
    below = textwrap.wrap(said, int((width - 0.3) * 72 / (_SMALL * CHARACTER * 0.92)))
    top = (len(above) * 11 * 1.3 + 8) * _POINT / height
    bottom = (len(below) * _SMALL * 1.35 + 8) * _POINT / height if below else 0.0
    margin = 4 * _POINT / height
    figure.text(0.01, 1 - margin, "\n".join(above), size=11, weight="bold", va="top", ha="left")
    figure.text(
        0.01, margin, "\n".join(below), size=_SMALL, color="#444444", va="bottom", ha="left"
    )
    figure.set_layout_engine(ConstrainedLayoutEngine(rect=(0, bottom, 1, 1 - top - bottom)))
