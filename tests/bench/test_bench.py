"""The measurements of docs/benchmarks.md can be repeated."""

from __future__ import annotations

import sys

import pytest
from support import REPOSITORY, run

# A line of each that only a measurement that came to its end prints.
LINES = {
    "claims": "a claim, 1,000 waiting",
    "handover": "handing over 300 tickets",
    "latency": "from handing over to the job's first instruction",
    "throughput": "jobs per second",
    "idle": "2 idle workers: metadata calls a second, each",
    "chaos": "jobs lost, or reported twice",
}


@pytest.mark.parametrize("name", LINES)
def test_a_benchmark_runs_and_prints_a_table(name, tmp_path):
    command = [sys.executable, "-m", "bench", name, "--quick", "--directory", str(tmp_path)]
    result = run(*command, cwd=REPOSITORY)
    assert result.returncode == 0
    assert f"| {LINES[name]}" in result.stdout
    assert "processor" in result.stdout and "filesystem" in result.stdout
    assert list(tmp_path.iterdir()) == [], "nothing is left"


def test_all_benchmarks_are_run_here():
    sys.path.insert(0, str(REPOSITORY))
    try:
        from bench.__main__ import BENCHES
    finally:
        sys.path.remove(str(REPOSITORY))
    assert list(BENCHES) == list(LINES)
