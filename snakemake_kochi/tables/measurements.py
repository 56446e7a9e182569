"""The measurements of a batch: a table of its runs, and a summary of its points.

The table has one row per run. The summary has one row per point: the median, the minimum and the
maximum over its duplicates.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas

from snakemake_kochi.artifacts.record import read_record
from snakemake_kochi.errors import ConfigError
from snakemake_kochi.phases.printed import own_output
from snakemake_kochi.project.metrics import SECONDS, Quantity
from snakemake_kochi.project.plots import DUPLICATE

# The columns of a run beside its parameters and metrics; reserved names of parameters.
_FIXED = {
    "run_machine": "machine",
    "run_node": "node",
    "run_started": "started",
    SECONDS: "seconds",
}
_OTHERS = {DUPLICATE: None, **dict.fromkeys(_FIXED)}
WARNINGS = "run_warnings"
_NOISE = "noise"
_SHOWN = 3  # lines


@dataclass(frozen=True)
class Surroundings:
    """What is known of the other processes beside a run; None: not known.

    `seconds`: how long they were watched. `is_known`: whether there are warnings about them.
    `cpu_seconds`: their CPU time. `jobs`: those of Kochi among them. `load`: the load average when
    the run began, `cpus`: of the node. `limit`: the threshold `load` of the run, None for any.
    """

    seconds: float
    is_known: bool
    cpu_seconds: float | None
    jobs: int | None
    load: float | None
    cpus: int | None
    limit: float | None

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Surroundings:
        noise, system, hardware = (record.get(key) or {} for key in (_NOISE, "system", "hardware"))
        return cls(
            record["seconds"] + (record.get("environment_seconds") or 0.0),
            noise.get("other_cpus") is not None,
            noise.get("other_cpu_seconds"),
            noise.get("other_jobs"),
            system.get("load"),
            hardware.get("threads"),
            noise.get("load_limit"),
        )


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
) -> tuple[pandas.DataFrame, list[Unmatched], list[str], list[Surroundings]]:
    """One row per run, the metrics that some runs lack, what else is to be remarked, and what was
    beside each run, in the order of their starts.

    The columns are the parameters as texts, `duplicate`, `run_machine`, `run_node`, `run_started`,
    `run_seconds`, and the metrics; and `run_warnings`, if a node was not quiet.

    `captured` are the artifacts with the runs' standard outputs, in the order of `records`. A
    metric is a regular expression with one group. Its last match in the run's own output counts; a
    run without a match has no value. `as_numbers` says which metrics are numeric; parameters stay
    texts: 1.10 is not 1.1.
    """
    if metrics and not captured:
        raise ConfigError(
            "metrics are read from the runs' standard output, but no artifact keeps it",
            "Add an artifact of type stdout to the batch.",
        )
    compiled = {name: re.compile(expression, re.MULTILINE) for name, expression in metrics.items()}
    rows, found = [], []
    for index, path in enumerate(records):
        record = read_record(path)
        rows.append(row_of(record))
        text = own_output(record, captured[index]) if compiled else ""
        matches = ((name, expression.findall(text)) for name, expression in compiled.items())
        found.append({name: last[-1] for name, last in matches if last})
    without = {
        name: [index for index, matches in enumerate(found) if name not in matches]
        for name in metrics
    }
    runs, remarks = table_of(rows, found, list(metrics), captured)
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
    beside = sorted(rows, key=lambda row: row["run_started"])
    return runs, unmatched, remarks, [row[_NOISE] for row in beside]


def row_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a table has of a record, which may be long: `parameters`, and the columns after them."""
    row = {column: record[key] for column, key in _FIXED.items()}
    warnings = (record.get("noise") or {}).get("warnings", ())
    row |= {DUPLICATE: record["duplicate"], WARNINGS: "; ".join(warnings)}
    row[_NOISE] = Surroundings.of(record)
    return {"parameters": record["parameters"], **row}


def table_of(
    rows: Sequence[Mapping[str, Any]],
    found: Sequence[Mapping[str, str]],
    metrics: Sequence[str],
    files: Sequence[object],
) -> tuple[pandas.DataFrame, list[str]]:
    """The table with these rows, as `read_runs` describes it, and remarks; `found`: what the
    metrics of each match in its output, which `files` name."""
    names = list(dict.fromkeys(name for row in rows for name in row["parameters"]))
    whole = [
        {**row["parameters"], **{name: row[name] for name in _OTHERS}, **matches}
        for row, matches in zip(rows, found, strict=True)
    ]
    runs = pandas.DataFrame(whole, columns=[*names, *_OTHERS, *metrics])
    if any(row[WARNINGS] for row in rows):
        runs[WARNINGS] = [row[WARNINGS] for row in rows]
    # Of a sub-parameter that only some points have.
    runs[names] = runs[names].fillna("")
    remarks = []
    for name in metrics:
        runs[name], said = as_numbers(name, [matches.get(name) for matches in found], files)
        remarks += said
    return runs, remarks


def parameters_in(runs: pandas.DataFrame) -> list[str]:
    """The columns that are parameters."""
    return list(runs.columns[: runs.columns.get_loc(DUPLICATE)])


def _last_lines(record: Path, captured: Path) -> tuple[str, ...]:
    text = own_output(read_record(record), captured)
    return tuple([line for line in text.splitlines() if line.strip()][-_SHOWN:])


def as_numbers(
    name: str, matches: Sequence[str | None], files: Sequence[object]
) -> tuple[pandas.Series[Any], list[str]]:
    """What a metric matches in each run as a column, and remarks; `files` name the outputs.

    If at least half of the texts are numbers, the column is numeric, and each other text is a
    missing value with a remark: one misprint must not hide all other measurements. Else the texts
    stay.
    """
    texts = pandas.Series(list(matches), dtype=object)
    found = pandas.to_numeric(texts, errors="coerce")
    lost = found.isna() & texts.notna() & (texts.astype(str).str.lower() != "nan")
    count = int(lost.sum())
    if 2 * count > texts.notna().sum():
        return texts, []
    if not count:
        return found, []
    shown = [f"{texts[index][:60]!r} in {files[index]}" for index in texts.index[lost][:_SHOWN]]
    more = f" and {count - _SHOWN} more" if count > _SHOWN else ""
    are = "is no number, so its value is" if count == 1 else "are no numbers, so their values are"
    return found, [f"metric '{name}': {', '.join(shown)}{more} {are} missing"]


def measurements(runs: pandas.DataFrame) -> list[str]:
    """The measured columns: `run_seconds`, and the metrics that are numbers in some run."""
    position = list(runs.columns).index(SECONDS)
    return [
        name
        for name in runs.columns[position:]
        if pandas.api.types.is_numeric_dtype(runs[name]) and runs[name].notna().any()
    ]


def summarise(
    runs: pandas.DataFrame, varying: Sequence[str], quantities: Mapping[str, Quantity]
) -> pandas.DataFrame:
    """One row per point.

    The columns are the varying parameters, the number of runs, and the median, the minimum and the
    maximum of each measurement over the duplicates, with its unit: `time median (ms)`.
    """
    keys = list(varying)
    grouped = runs.groupby(keys, sort=False, dropna=False) if keys else runs.groupby(lambda _: 0)
    columns: dict[str, Any] = {"(runs)": grouped.size()}
    for name in measurements(runs):
        # The name of SECONDS says its unit.
        unit = quantities[name].unit if name in quantities and name != SECONDS else ""
        after = f" ({unit})" if unit else ""
        columns[f"{name} median{after}"] = grouped[name].median()
        columns[f"{name} min{after}"] = grouped[name].min()
        columns[f"{name} max{after}"] = grouped[name].max()
    return pandas.DataFrame(columns).reset_index(drop=not keys)


def as_markdown(summary: pandas.DataFrame) -> str:
    """A summary as a Markdown table."""
    # As texts: numbers would be cut to six digits, also a count of nanoseconds.
    # A bar in a unit would begin another column.
    columns = {str(name).replace("|", "\\|"): summary[name].map(_readable) for name in summary}
    table: str = pandas.DataFrame(columns).to_markdown(
        index=False, disable_numparse=True, stralign="right"
    )
    return table


def _readable(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1e5 else f"{value:.6g}"
    return str(value)
