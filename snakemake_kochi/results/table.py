"""The table of a batch: one row per run, and one row per point over its duplicates."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.files import read_json
from snakemake_kochi.phases.run import RECORD_VERSION

# The columns of a run beside its parameters and metrics; no parameter may be called so.
SECONDS = "run_seconds"
_FIXED = {"run_node": "node", "run_started": "started", SECONDS: "seconds"}


def read_runs(
    records: Sequence[Path], captured: Sequence[Path], metrics: Mapping[str, str]
) -> pandas.DataFrame:
    """One row per run: its parameters as texts, `duplicate`, `run_node`, `run_started`,
    `run_seconds` and the metrics.

    `captured` are the runs' standard outputs in the order of `records`. A metric is a regular
    expression with one group; its last match counts, and a run without a match has no value.
    Metrics that are numbers in all runs are numeric; parameters stay the texts they are: 1.10 is
    not 1.1.
    """
    if metrics and not captured:
        raise ConfigError(
            "metrics are read from the runs' standard output, but no artifact keeps it",
            "Add an artifact of type stdout to the batch.",
        )
    compiled = {name: re.compile(expression, re.MULTILINE) for name, expression in metrics.items()}
    rows = []
    for index, path in enumerate(records):
        record = read_json(path, RECORD_VERSION)
        row: dict[str, Any] = {**record["parameters"], "duplicate": record["duplicate"]}
        row |= {column: record[key] for column, key in _FIXED.items()}
        if compiled:
            text = captured[index].read_bytes().decode("utf-8", "replace")
            for name, expression in compiled.items():
                found = expression.findall(text)
                row[name] = found[-1] if found else None
        rows.append(row)
    runs = pandas.DataFrame(rows)
    for name in metrics:
        runs[name] = as_numbers(runs[name])
    return runs


def as_numbers(column: pandas.Series[Any]) -> pandas.Series[Any]:
    """A column of texts as numbers if all of them are, else as it is."""
    try:
        return pandas.to_numeric(column)
    except (ValueError, TypeError):
        return column


def measurements(runs: pandas.DataFrame) -> list[str]:
    """The columns that were measured: `run_seconds`, then the metrics that are numbers."""
    position = list(runs.columns).index(SECONDS)
    return [
        name for name in runs.columns[position:] if pandas.api.types.is_numeric_dtype(runs[name])
    ]


def summarise(runs: pandas.DataFrame, varying: Sequence[str]) -> pandas.DataFrame:
    """One row per point: the parameters that vary, the number of runs, and of each measurement
    the median, minimum and maximum over the duplicates."""
    keys = list(varying)
    grouped = runs.groupby(keys, sort=False, dropna=False) if keys else runs.groupby(lambda _: 0)
    columns: dict[str, Any] = {"(runs)": grouped.size()}
    for name in measurements(runs):
        columns[f"{name} median"] = grouped[name].median()
        columns[f"{name} min"] = grouped[name].min()
        columns[f"{name} max"] = grouped[name].max()
    return pandas.DataFrame(columns).reset_index(drop=not keys)


def write_markdown(summary: pandas.DataFrame, title: str, path: Path) -> None:
    """Write a summary as a Markdown table under a heading."""
    # As texts, or six digits of a count of nanoseconds would be all that is shown of it.
    columns = {name: summary[name].map(_readable) for name in summary}
    table = pandas.DataFrame(columns).to_markdown(
        index=False, disable_numparse=True, stralign="right"
    )
    path.write_text(f"# {title}\n\n{table}\n", "utf-8")


def _readable(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1e5 else f"{value:.6g}"
    return str(value)
