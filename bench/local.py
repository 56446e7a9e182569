"""The kochi executor compared with the local executor, with equal slots; worker start included."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import median

from bench.measure import Row, Size, alternate
from bench.snakemake_runs import RUN, SCRIPT, SHELL, Runner, kochi_executor, local_executor

# As in the profiles. With the default, Snakemake spends time on holding jobs back.
_NO_LIMIT = ("--max-jobs-per-timespan", "1000000/1s")


def shell(directory: Path, size: Size) -> list[Row]:
    """Jobs of one line of shell. The local executor is also measured with the rate limit of the
    profiles, which makes it faster."""
    count, slots = size.number(1000, 10), size.slots
    runner = Runner(directory)
    values, ratios = alternate(
        size.runs(5),
        partial(runner.time, SHELL, count, local_executor(slots)),
        partial(runner.time, SHELL, count, local_executor(slots, *_NO_LIMIT)),
        partial(runner.time, SHELL, count, kochi_executor(slots)),
    )
    to_second = median(own / peer for own, peer in zip(values[2], values[1], strict=True))
    what = f"{count:,} one-line jobs, {slots} at a time"
    return [
        Row(f"{what}: local executor", values[0], "s"),
        Row(f"{what}: local executor, {' '.join(_NO_LIMIT)}", values[1], "s", ratios[1]),
        Row(f"{what}: kochi", values[2], "s", ratios[2], 0.5),
        Row("the same, compared with the second row", values[2], "s", to_second),
    ]


def script(directory: Path, size: Size) -> list[Row]:
    """Jobs of one Python script, which both executors run in a Python of its own."""
    return _compare(directory, size, "`script:`", SCRIPT, size.number(1000, 2), size.runs(3), 1.0)


def run(directory: Path, size: Size) -> list[Row]:
    """Jobs of Python code in the Snakefile. The local executor starts a Snakemake for each."""
    return _compare(directory, size, "`run:`", RUN, size.number(100, 2), size.runs(3), 0.1)


def _compare(
    directory: Path, size: Size, kind: str, body: str, count: int, runs: int, limit: float
) -> list[Row]:
    runner = Runner(directory)
    values, ratios = alternate(
        runs,
        partial(runner.time, body, count, local_executor(size.slots)),
        partial(runner.time, body, count, kochi_executor(size.slots)),
    )
    what = f"{count:,} {kind} jobs, {size.slots} at a time"
    return [
        Row(f"{what}: local executor", values[0], "s"),
        Row(f"{what}: kochi", values[1], "s", ratios[1], limit),
    ]
