"""What does a job cost with each runner?"""

from __future__ import annotations

import statistics
from datetime import datetime
from functools import partial
from pathlib import Path

from bench.measure import Row, Size, alternate
from bench.snakemake_runs import RUN, SCRIPT, SHELL, Runner, kochi_executor
from snakemake_kochi.queue.result import Result, read_result

# What a rule does, and the runners that its jobs may have, the fallback first.
_KINDS = {
    "shell": (SHELL, ("command", "zygote", "shell")),
    "script": (SCRIPT, ("command", "zygote")),
    "run": (RUN, ("command", "zygote")),
}
_LIMIT = 1 / 20


def measure(place: Path, size: Size) -> list[Row]:
    """One job at a time, from the making of its process to its end; the median of those of a run,
    so that the first, which may wait for a zygote, does not count.

    Raises RuntimeError when a job was executed by another runner than was asked for.
    """
    many, few = size.number(100, 2), 1 if size.quick else 10
    rows = []
    for kind, (body, names) in _KINDS.items():
        counts = [few if name == "command" else many for name in names]
        values, ratios = alternate(
            size.runs(3),
            *(
                partial(_job, place, body, name, count)
                for name, count in zip(names, counts, strict=True)
            ),
            scale=1000,
        )
        for name, own, ratio in zip(names, values, ratios, strict=True):
            # Most of a script's time is the start of its own Python, with each runner.
            limit = _LIMIT if name == "zygote" and kind != "script" else None
            compared = None if name == "command" else ratio
            rows.append(Row(f"a `{kind}:` job by {name}", own, "ms", compared, limit))
    return rows


def _job(place: Path, body: str, name: str, count: int) -> float:
    """Seconds."""
    runner = Runner(place)
    before = set(runner.machine.jobs.glob("*/*/result.json"))
    runner.time(body, count, kochi_executor(1, "--kochi-runner", name))
    paths = set(runner.machine.jobs.glob("*/*/result.json")) - before
    results = [read_result(path) for path in paths]
    by = {result.runner for result in results}
    if by != {name}:
        raise RuntimeError(f"jobs with --kochi-runner {name} were executed by {by}")
    return statistics.median(_seconds(result) for result in results)


def _seconds(result: Result) -> float:
    assert result.started is not None
    return (
        datetime.fromisoformat(result.ended) - datetime.fromisoformat(result.started)
    ).total_seconds()
