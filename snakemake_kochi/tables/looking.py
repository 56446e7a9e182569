"""A look at a batch with `repeat`: which points are known well enough, and how often others run."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas

from snakemake_kochi.artifacts.record import read_record
from snakemake_kochi.errors import DamagedFileError, PhaseError
from snakemake_kochi.files import is_there
from snakemake_kochi.library.batch import BatchRules
from snakemake_kochi.library.files import Place
from snakemake_kochi.library.looks import Look, LookedAt, key_of, read_looks
from snakemake_kochi.project.grid import Repeat
from snakemake_kochi.statistics import dependence, stopping
from snakemake_kochi.tables.collect import read_report
from snakemake_kochi.tables.compare import unknown
from snakemake_kochi.tables.report import Report

MAXIMUM, BUDGET = "the maximum", "the budget is spent"


def look(batch: BatchRules, number: int, top: Path, output: Path) -> None:
    """Write what look `number`, from 0, finds in a working directory, and tell it.

    Of each point it reads the runs that the looks before it asked for, and those after them that
    are there, up to the first missing one: less may be asked for now than before. Raises
    PhaseError for a metric without numbers, and as `collect` does.
    """
    grid, file = batch.grid, batch.experiment.file
    begin = f"{file}: batch {grid.batch}: "
    assert grid.repeat is not None
    looks = read_looks(batch.files.look, top)[:number]
    wanted = {run.record for run in batch.files.after(looks).below(top)}
    every = batch.files.below(top)
    missing = dict.fromkeys(batch.identities, grid.duplicates)
    for run in every:
        if run.record not in wanted and not _is_there(batch, run):
            key = key_of(run.point)
            missing[key] = min(missing[key], run.point.duplicate)
    runs = [run for run in every if run.point.duplicate < missing[key_of(run.point)]]
    report = read_report(begin, grid, runs, (), is_whole=True)
    metric = grid.repeat.metric
    column = report.runs[metric]
    if not pandas.api.types.is_numeric_dtype(column) or column.isna().all():
        count = int(pandas.to_numeric(column, errors="coerce").notna().sum())
        raise PhaseError(
            f"{begin}metric '{metric}' is a number in {count} of {len(column)} runs, so none is "
            "repeated",
            f"Correct it in {file}, or name another one: repeat: {{of: METRIC}}",
        )
    found = look_at(report, batch, grid.repeat, runs)
    found.write(output)
    print(f"kochi: {begin}" + "\n    ".join(found.told(grid)), file=sys.stderr)


def _is_there(batch: BatchRules, run: Place) -> bool:
    """Whether there is a result of what would run now."""
    try:
        is_of_now = read_record(run.record).get("run") == batch.identity(run.point)
    except (OSError, DamagedFileError):
        return False
    return is_of_now and all(map(is_there, run.by_destination.values()))


def look_at(report: Report, batch: BatchRules, repeat: Repeat, runs: Sequence[Place]) -> Look:
    """What the results so far say; `runs` are the rows of the report."""
    rows_of = report.points.rows
    states = (_medians if not repeat.by else _ratios)(report, repeat)
    # Of each run, in seconds of a node.
    times = ("seconds", "environment_seconds", "warmup_seconds")
    took = [sum(each[name] or 0.0 for name in times) for each in report.recorded]
    nodes = [int(run.point.request.of_rule.get("nodes") or 1) for run in runs]
    cost = [a * b for a, b in zip(took, nodes, strict=True)]
    means = [sum(cost[row] for row in rows) / len(rows) for rows in rows_of]
    left = [number for number, state in enumerate(states) if state.is_repeated]

    def rest(count: int) -> float:
        return sum(means[n] * max(0, count - len(rows_of[n])) for n in left)

    most = max((len(rows_of[number]) for number in left), default=0)
    following = next((n for n in stopping.looks(repeat.least, repeat.most) if n > most), most)
    why = MAXIMUM
    if repeat.budget is not None and rest(following) > (budget := repeat.budget - sum(cost)):
        following = max((n for n in range(following) if rest(n) <= budget), default=0)
        why = BUDGET
    points = []
    for state, rows in zip(states, rows_of, strict=True):
        wanted = max(len(rows), following) if state.is_repeated else len(rows)
        reason = state.why
        if state.is_repeated:
            reason = "" if wanted > len(rows) else f"{why}{reason and f'; {reason}'}"
        known = state.width if math.isfinite(state.width) else None
        point = runs[rows[0]].point
        which = (dict(point.parameters), batch.identities[key_of(point)])
        points.append(LookedAt(*which, len(rows), wanted, known, reason))
    return Look(points, rest(following))


@dataclass(frozen=True)
class _State:
    """A point at a look: whether it needs more runs, half of the width of its interval, and `why`
    it is not known, as far as more runs do not help."""

    is_repeated: bool
    width: float
    why: str = ""


def _medians(report: Report, repeat: Repeat) -> list[_State]:
    measured = report.points.measured(report.runs[repeat.metric])
    values = np.array(report.runs[repeat.metric], dtype=np.float64)
    how = (repeat.until, repeat.confidence, dependence.stretch(measured.alike))
    states = []
    for rows, interval in zip(report.points.rows, measured.intervals, strict=True):
        units = [report.points.units[row] for row in rows]
        is_enough = stopping.is_enough(values[rows], *how, units)
        few = 1 < len({*units}) < stopping.FEWEST_UNITS_TO_STOP
        why = f"of {len({*units})} allocations or nodes, {stopping.FEWEST_UNITS_TO_STOP} are needed"
        states.append(_State(not is_enough, interval.half_width, why if few else ""))
    return states


def _ratios(report: Report, repeat: Repeat) -> list[_State]:
    """Of each point the ratios in which it takes part."""
    others = [name for name in report.varying if name != repeat.by]
    keys = report.runs[others].astype(str).itertuples(index=False, name=None)
    of_row, missing = list(keys), unknown(report, repeat)
    states = []
    for rows in report.points.rows:
        width, why = missing.get(point := of_row[rows[0]], (0.0, ""))
        states.append(_State(point in missing and not why, width, why))
    return states
