"""The measurements of a batch: a table of its runs, a summary of its points, and a plot.

The table has one row per run. The summary and the plot have one row or one mark per point: the
median, the minimum and the maximum over its duplicates.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from snakemake_kochi.artifacts.record import read_record
from snakemake_kochi.errors import ConfigError
from snakemake_kochi.phases.run import own_output

# The columns of a run beside its parameters and metrics; reserved names of parameters.
SECONDS = "run_seconds"
_FIXED = {"run_node": "node", "run_started": "started", SECONDS: "seconds"}
_SHOWN = 3  # lines
# Beyond this number ticks would overlap, and matplotlib chooses them.
_MOST_TICKS = 12
# A column of our own; no name of a parameter has a space.
_POSITION = "position on the axis"


@dataclass(frozen=True)
class Unmatched:
    """A metric that matches nothing in `runs` of the `of` runs.

    `example`: the output of one of them. `lines`: the last lines of that file.
    """

    metric: str
    expression: str
    runs: int
    of: int
    example: Path
    lines: tuple[str, ...]

    @property
    def is_all(self) -> bool:
        return self.runs == self.of


def read_runs(
    records: Sequence[Path], captured: Sequence[Path], metrics: Mapping[str, str]
) -> tuple[pandas.DataFrame, list[Unmatched]]:
    """One row per run, and the metrics that some runs lack.

    The columns are the parameters as texts, `duplicate`, `run_node`, `run_started`, `run_seconds`,
    and the metrics.

    `captured` are the artifacts with the runs' standard outputs, in the order of `records`. A
    metric is a regular expression with one group. Its last match in the run's own output counts; a
    run without a match has no value. Metrics that are numbers in all runs are numeric; parameters
    stay texts: 1.10 is not 1.1.
    """
    if metrics and not captured:
        raise ConfigError(
            "metrics are read from the runs' standard output, but no artifact keeps it",
            "Add an artifact of type stdout to the batch.",
        )
    compiled = {name: re.compile(expression, re.MULTILINE) for name, expression in metrics.items()}
    rows = []
    without: dict[str, list[int]] = {name: [] for name in metrics}
    for index, path in enumerate(records):
        record = read_record(path)
        row: dict[str, Any] = {**record["parameters"], "duplicate": record["duplicate"]}
        row |= {column: record[key] for column, key in _FIXED.items()}
        if compiled:
            text = own_output(record, captured[index])
            for name, expression in compiled.items():
                found = expression.findall(text)
                row[name] = found[-1] if found else None
                if not found:
                    without[name].append(index)
        rows.append(row)
    runs = pandas.DataFrame(rows)
    for name in metrics:
        runs[name] = as_numbers(runs[name])
    unmatched = [
        Unmatched(
            metric=name,
            expression=metrics[name],
            runs=len(indices),
            of=len(rows),
            example=captured[indices[0]],
            lines=_last_lines(records[indices[0]], captured[indices[0]]),
        )
        for name, indices in without.items()
        if indices
    ]
    return runs, unmatched


def _last_lines(record: Path, captured: Path) -> tuple[str, ...]:
    text = own_output(read_record(record), captured)
    return tuple([line for line in text.splitlines() if line.strip()][-_SHOWN:])


def as_numbers(column: pandas.Series[Any]) -> pandas.Series[Any]:
    """A column of texts as numbers if all of them are numbers, else unchanged."""
    try:
        return pandas.to_numeric(column)
    except (ValueError, TypeError):
        return column


def measurements(runs: pandas.DataFrame) -> list[str]:
    """The measured columns: `run_seconds`, and the metrics that are numbers in some run."""
    position = list(runs.columns).index(SECONDS)
    return [
        name
        for name in runs.columns[position:]
        if pandas.api.types.is_numeric_dtype(runs[name]) and runs[name].notna().any()
    ]


def summarise(runs: pandas.DataFrame, varying: Sequence[str]) -> pandas.DataFrame:
    """One row per point.

    The columns are the varying parameters, the number of runs, and the median, the minimum and the
    maximum of each measurement over the duplicates.
    """
    keys = list(varying)
    grouped = runs.groupby(keys, sort=False, dropna=False) if keys else runs.groupby(lambda _: 0)
    columns: dict[str, Any] = {"(runs)": grouped.size()}
    for name in measurements(runs):
        columns[f"{name} median"] = grouped[name].median()
        columns[f"{name} min"] = grouped[name].min()
        columns[f"{name} max"] = grouped[name].max()
    return pandas.DataFrame(columns).reset_index(drop=not keys)


def as_markdown(summary: pandas.DataFrame) -> str:
    """A summary as a Markdown table."""
    # As texts: numbers would be cut to six digits, also a count of nanoseconds.
    columns = {name: summary[name].map(_readable) for name in summary}
    table: str = pandas.DataFrame(columns).to_markdown(
        index=False, disable_numparse=True, stralign="right"
    )
    return table


def _readable(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1e5 else f"{value:.6g}"
    return str(value)


def draw(runs: pandas.DataFrame, varying: Sequence[str], title: str, path: Path) -> None:
    """Draw the first metric of each point, or `run_seconds` if there is no metric.

    A mark is the median, with bars from the minimum to the maximum.

    The axis is the varying parameter with the most values; each combination of the others is a
    line. PNG, 150 dots per inch.
    """
    measured = measurements(runs)
    metric = measured[1] if len(measured) > 1 else measured[0]
    # No pyplot: it keeps global state and looks for a display.
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    free = independent_parameters(runs, varying)
    axis = max(free, key=lambda name: runs[name].nunique(), default="duplicate")
    others = [name for name in free if name != axis]
    runs = runs.assign(**{_POSITION: as_numbers(runs[axis])})
    numeric = pandas.api.types.is_numeric_dtype(runs[_POSITION])
    for key, part in runs.groupby(others, sort=False) if others else [((), runs)]:
        spread = part.groupby(_POSITION, sort=numeric)[metric].agg(["median", "min", "max"])
        label = ", ".join(f"{n}={v}" for n, v in zip(others, key, strict=True))
        errors = [spread["median"] - spread["min"], spread["max"] - spread["median"]]
        axes.errorbar(
            spread.index, spread["median"], yerr=errors, marker="o", capsize=3, label=label
        )
    axes.set(title=title, xlabel=axis, ylabel=metric)
    if numeric and _spans_decades(runs[_POSITION]):
        axes.set_xscale("log")
    elif numeric and runs[_POSITION].nunique() <= _MOST_TICKS:
        axes.set_xticks(runs[_POSITION].dropna().unique())
    if _spans_decades(runs[metric]):
        axes.set_yscale("log")
    elif not runs[metric].min() < 0:
        axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if others:
        axes.legend()
    figure.savefig(path, dpi=150, format="png")


def independent_parameters(runs: pandas.DataFrame, varying: Sequence[str]) -> list[str]:
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
