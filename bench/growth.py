"""Does the cost of a job depend on the number of jobs?"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.measure import Row, Size, alternate
from bench.snakemake_runs import SHELL, Runner, kochi_executor, local_executor

_LIMIT = 1.3  # of the largest number of jobs to the second largest, per job


def measure(directory: Path, size: Size) -> list[Row]:
    """Runs of one-line jobs: the time per job. The time of a run of a single job is subtracted
    before the division, because it would dominate the small runs."""
    counts = size.numbers((100, 1000, 10_000), (10,))
    runner = Runner(directory)
    executors = {"kochi": kochi_executor(size.slots), "local executor": local_executor(size.slots)}
    rows = []
    measures: list[Callable[[], float]] = [
        partial(runner.time, SHELL, count, executor)
        for executor in executors.values()
        for count in (1, *counts)
    ]
    values, _ = alternate(size.runs(3), *measures)
    for name in executors:
        start, *own = values[: 1 + len(counts)]
        values = values[1 + len(counts) :]
        rows.append(Row(f"{name}: a run of one job", start, "s"))
        rows += _per_job(name, counts, start, own)
    return rows


def _per_job(
    name: str, counts: tuple[int, ...], start: list[float], runs: list[list[float]]
) -> list[Row]:
    rows = []
    before: list[float] | None = None
    for count, seconds in zip(counts, runs, strict=True):
        each = [1000 * (own - one) / (count - 1) for own, one in zip(seconds, start, strict=True)]
        ratio = None
        if before is not None:
            ratio = statistics.median(own / old for own, old in zip(each, before, strict=True))
        limit = _LIMIT if name == "kochi" and count == counts[-1] and before else None
        rows.append(Row(f"{name}: one of {count:,} jobs", each, "ms", ratio, limit))
        before = each
    return rows
