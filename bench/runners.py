"""The cost of a job with each runner."""

from __future__ import annotations

import statistics
import sys
from datetime import datetime
from functools import partial
from pathlib import Path

from bench.measure import Row, Size, alternate
from bench.snakemake_runs import RUN, SCRIPT, SHELL, Runner, kochi_executor
from snakemake_kochi.queue.views import Attempt, list_jobs

# The body of a rule, and the runners that can execute its jobs, with the slowest first.
_KINDS = {
    "shell": (SHELL, ("command", "zygote", "shell")),
    "script": (SCRIPT, ("command", "zygote")),
    "run": (RUN, ("command", "zygote")),
}
_LIMIT = 1 / 20


def measure(directory: Path, size: Size) -> list[Row]:
    """One job at a time, from the start of its process to its end. A run counts by the median of
    its jobs, because the first one may wait for a zygote.

    Raises RuntimeError if another runner than the requested one executed a job.
    """
    many, few = size.number(100, 2), 1 if size.quick else 10
    rows = []
    for kind, (body, names) in _KINDS.items():
        counts = [few if name == "command" else many for name in names]
        values, ratios = alternate(
            size.runs(3),
            *(
                partial(_job, directory, body, name, count)
                for name, count in zip(names, counts, strict=True)
            ),
            scale=1000,
        )
        for name, own, ratio in zip(names, values, ratios, strict=True):
            # With every runner, a script takes most of its time to start its own Python.
            limit = _LIMIT if name == "zygote" and kind != "script" else None
            compared = None if name == "command" else ratio
            rows.append(Row(f"a `{kind}:` job by {name}", own, "ms", compared, limit))
    return rows


def _job(directory: Path, body: str, name: str, count: int) -> float:
    """The median of the seconds of `count` jobs."""
    runner = Runner(directory)
    before = {view.job for view in list_jobs(runner.machine, ended=True, limit=sys.maxsize)}
    runner.time(body, count, kochi_executor(1, "--kochi-runner", name))
    after = list_jobs(runner.machine, ended=True, limit=sys.maxsize)
    results = [view.result for view in after if view.result and view.job not in before]
    by = {result.runner for result in results}
    if by != {name}:
        raise RuntimeError(f"jobs with --kochi-runner {name} were executed by {by}")
    return statistics.median(_seconds(result) for result in results)


def _seconds(result: Attempt) -> float:
    assert result.started is not None and result.ended is not None
    return (
        datetime.fromisoformat(result.ended) - datetime.fromisoformat(result.started)
    ).total_seconds()
