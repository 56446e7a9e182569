"""Thousands of short jobs while workers and their controller are killed: nothing lost, or twice.

The harness is that of the tests. It compares job by job what was handed over, executed and
reported.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from bench.measure import Row

_TESTS = Path(__file__).resolve().parent.parent / "tests"


def measure(place: Path, quick: bool) -> list[Row]:
    """Raises RuntimeError, with a line for each job with which something is wrong."""
    if str(_TESTS) not in sys.path:
        sys.path.append(str(_TESTS))
    harness = importlib.import_module("faults.chaos")
    plan = (
        harness.Chaos(jobs=60, workers=2, controller_deaths=1)
        if quick
        else harness.Chaos(jobs=10_000)
    )
    outcome = harness.run_chaos(place, plan, 1200.0)
    if outcome.problems:
        raise RuntimeError("\n".join(outcome.problems))
    return [
        Row(f"{plan.jobs:,} jobs, {plan.workers} workers", [outcome.seconds], "s"),
        Row("workers killed", [outcome.worker_deaths], ""),
        Row("controllers killed", [outcome.controller_deaths], ""),
        Row("attempts begun", [outcome.attempts], ""),
        Row("jobs lost, or reported twice", [0], ""),
    ]
