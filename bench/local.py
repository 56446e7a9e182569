"""Our executor against Snakemake's local one: as many slots, the start of our worker included."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import median

from bench.measure import Row, Size, alternate
from bench.snakemake_runs import RUN, SCRIPT, SHELL, Runner, kochi_executor, local_executor

# As in our profile; the default keeps Snakemake busy with holding jobs back.
_NO_LIMIT = ("--max-jobs-per-timespan", "1000000/1s")


def shell(place: Path, size: Size) -> list[Row]:
    """How long do jobs take that are one line of shell, on this computer? The local executor is
    also measured with the setting of our profile that makes it faster."""
    count, slots = size.number(1000, 10), size.slots
    runner = Runner(place)
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
        Row("the same, compared with the second", values[2], "s", to_second),
    ]


def script(place: Path, size: Size) -> list[Row]:
    """How long do jobs take that are a Python script?"""
    return _compare(place, size, "`script:`", SCRIPT, size.number(1000, 2), size.runs(3), 1.0)


def run(place: Path, size: Size) -> list[Row]:
    """How long do jobs take that are Python in the Snakefile? The local executor starts a Snakemake
    for each."""
    return _compare(place, size, "`run:`", RUN, size.number(100, 2), size.runs(3), 0.1)


def _compare(
    place: Path, size: Size, kind: str, body: str, count: int, runs: int, limit: float
) -> list[Row]:
    runner = Runner(place)
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
