"""The figures of `kochi compare` and `kochi history`: ratios with intervals, medians over code."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from snakemake_kochi.errors import KochiError, shortened
from snakemake_kochi.quantities import percent
from snakemake_kochi.tables.compare import Comparison
from snakemake_kochi.tables.figure import COLOURS, DATES, STYLE
from snakemake_kochi.tables.history import History

_MOST = 60  # points, or versions with a name
_LONGEST = 40


def draw_ratios(found: Sequence[Comparison], title: str, file: Path) -> None:
    """The ratio of each point, with its interval, and 1 as a line; one panel for each comparison.

    Raises KochiError where no point has a ratio; OSError.
    """
    rows = [
        [(_named(each.point), each.ratio) for each in one.points if each.ratio is not None][:_MOST]
        for one in found
    ]
    if not any(rows):
        raise KochiError("no point has a ratio, so there is nothing to draw")
    height = 1.5 + 0.3 * max(map(len, rows))
    with matplotlib.rc_context(STYLE):
        figure, grid = _figure(len(found), (3 + 4 * len(found), height), title)
        for axes, one, ratios in zip(grid, found, rows, strict=True):
            axes.axvline(1, color="grey", linewidth=0.8)
            for place, (_, ratio) in enumerate(ratios):
                if ratio.lower is not None and ratio.upper is not None:
                    axes.plot([ratio.lower, ratio.upper], [place, place], color=COLOURS[0])
                axes.plot(ratio.estimate, place, "o", color=COLOURS[0])
            axes.set_yticks(range(len(ratios)), [name for name, _ in ratios])
            axes.invert_yaxis()
            axes.set_xlabel(f"{one.metric}: {one.values[1]} / {one.values[0]}")
        level = percent(found[0].confidence)
        _save(figure, f"{level} intervals, each for its own point.", file)


def draw_histories(found: Sequence[History], metric: str, title: str, file: Path) -> None:
    """The median of each version, one panel for each point, and its changes as lines. Raises
    OSError."""
    found = found[:_MOST]
    with matplotlib.rc_context(STYLE):
        figure, grid = _figure(len(found), (8, 1.5 + 2.2 * len(found)), title, is_column=True)
        for axes, each in zip(grid, found, strict=True):
            axes.plot(each.values, "o-", color=COLOURS[0], markersize=3)
            for change in each.changes:
                axes.axvline(each.codes.index(change.begins) - 0.5, color=COLOURS[1])
            axes.set_title(_named(each.point), fontsize="medium")
            axes.set_ylabel(metric)
            if len(each.codes) <= _MOST:
                names = [shortened(code, 12) for code in each.codes]
                axes.set_xticks(range(len(names)), names, rotation=90, fontsize=6)
        _save(figure, "Medians of each version of the code. Lines: changes of the level.", file)


def _figure(
    panels: int, size: tuple[float, float], title: str, is_column: bool = False
) -> tuple[Figure, list[matplotlib.axes.Axes]]:
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    rows, columns = (panels, 1) if is_column else (1, panels)
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    figure.suptitle(textwrap.fill(title, int(size[0] * 8)), weight="bold")
    return figure, grid


def _save(figure: Figure, caption: str, file: Path) -> None:
    figure.supxlabel(caption, x=0.01, ha="left", fontsize=8)
    figure.savefig(file, dpi=150, format=file.suffix[1:], metadata=DATES.get(file.suffix))


def _named(point: Mapping[str, str]) -> str:
    return shortened(", ".join(f"{name}={value}" for name, value in point.items()), _LONGEST)
