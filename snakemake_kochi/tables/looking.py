"""A look at a batch with `repeat`: which points are known well enough, and how often others run."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas

from snakemake_kochi.errors import PhaseError
from snakemake_kochi.library.looks import Look, LookedAt
from snakemake_kochi.project.grid import Grid, Repeat
from snakemake_kochi.statistics import dependence, stopping
from snakemake_kochi.tables.collect import Run, read_report
from snakemake_kochi.tables.compare import unknown
from snakemake_kochi.tables.report import Report

MAXIMUM, BUDGET = "the maximum", "the budget is spent"


def look(grid: Grid, file: str, runs: Sequence[Run], output: Path) -> None:
    """Write what is found, and tell it. `file`: of the experiment.

    Raises PhaseError for a metric without numbers, and as `collect` does.
    """
    begin = f"{file}: batch {grid.batch}: "
    assert grid.repeat is not None
    report = read_report(begin, grid, runs, (), is_whole=True)
    metric = grid.repeat.metric
    column = report.runs[metric]
    if not pandas.api.types.is_numeric_dtype(column) or column.isna().all():
        raise PhaseError(
            f"{begin}metric '{metric}' has no number in any run, so none is repeated",
            f"Correct it in {file}, or name another one: repeat: {{of: METRIC}}",
        )
    found = look_at(report, grid, grid.repeat, runs)
    found.write(output)
    print(f"kochi: {begin}" + "\n    ".join(found.told(grid)), file=sys.stderr)


def look_at(report: Report, grid: Grid, repeat: Repeat, runs: Sequence[Run]) -> Look:
    """What the results so far say; `runs` are the rows of the report."""
    rows_of = report.points.rows
    enough, widths = (_medians if not repeat.by else _ratios)(report, repeat)
    # Of each run, in seconds of a node.
    took = [
        (each["seconds"] or 0.0) + (each["environment_seconds"] or 0.0) for each in report.recorded
    ]
    nodes = [int(run.point.request.of_rule.get("nodes") or 1) for run in runs]
    cost = [a * b for a, b in zip(took, nodes, strict=True)]
    means = [sum(cost[row] for row in rows) / len(rows) for rows in rows_of]
    left = [number for number, is_enough in enumerate(enough) if not is_enough]
    most = max((len(rows_of[number]) for number in left), default=0)
    following = next((n for n in stopping.looks(repeat.least, repeat.most) if n > most), most)
    why = MAXIMUM
    if repeat.budget is not None and following > most:
        rounds = int((repeat.budget - sum(cost)) / max(sum(means[n] for n in left), 1e-9))
        if most + rounds < following:
            following, why = max(most, most + rounds), BUDGET
    points = []
    for number, rows in enumerate(rows_of):
        wanted = len(rows) if enough[number] else following
        reason = "" if enough[number] or wanted > len(rows) else why
        known = widths[number] if math.isfinite(widths[number]) else None
        parameters = dict(runs[rows[0]].point.parameters)
        points.append(LookedAt(parameters, len(rows), wanted, known, reason))
    return Look(points, sum(means[n] * (following - len(rows_of[n])) for n in left))


def _medians(report: Report, repeat: Repeat) -> tuple[list[bool], list[float]]:
    """Whether each point is known well enough, and half of the width of its interval."""
    measured = report.points.measured(report.runs[repeat.metric])
    values = np.array(report.runs[repeat.metric], dtype=np.float64)
    stretch = dependence.stretch(measured.alike)
    enough = [
        stopping.is_enough(
            values[rows],
            repeat.until,
            repeat.confidence,
            stretch,
            [report.points.units[row] for row in rows],
        )
        for rows in report.points.rows
    ]
    return enough, [interval.half_width for interval in measured.intervals]


def _ratios(report: Report, repeat: Repeat) -> tuple[list[bool], list[float]]:
    """The same of the ratios in which a point takes part."""
    others = [name for name in report.varying if name != repeat.by]
    keys = report.runs[others].astype(str).itertuples(index=False, name=None)
    of_row, missing = list(keys), unknown(report, repeat)
    points = [of_row[rows[0]] for rows in report.points.rows]
    return [p not in missing for p in points], [missing.get(p, 0.0) for p in points]
