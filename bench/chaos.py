"""Thousands of short jobs while workers and their controller are killed: none is lost or doubled.

The harness of the tests compares the submitted, executed and reported jobs one by one.
"""

from __future__ import annotations

from pathlib import Path

from bench.measure import Row, Size, import_of_tests


def measure(directory: Path, size: Size) -> list[Row]:
    """Raises RuntimeError, with a line for each job that was lost or reported twice."""
    harness = import_of_tests("faults.chaos")
    jobs = size.number(10_000, 60)
    plan = (
        harness.Chaos(jobs=jobs, workers=2, controller_deaths=1)
        if size.quick
        else harness.Chaos(jobs=jobs)
    )
    outcome = harness.run_chaos(directory, plan, 1200.0)
    if outcome.problems:
        raise RuntimeError("\n".join(outcome.problems))
    return [
        Row(f"{plan.jobs:,} jobs, {plan.workers} workers", [outcome.seconds], "s"),
        Row("workers killed", [outcome.worker_deaths], ""),
        Row("controllers killed", [outcome.controller_deaths], ""),
        Row("attempts begun", [outcome.attempts], ""),
        Row("jobs lost, or reported twice", [0], ""),
    ]
