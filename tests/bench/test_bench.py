"""The benchmarks of docs/benchmarks.md run and print their tables."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support import REPOSITORY, run

# For each benchmark the beginning of a row that it prints only at its end.
LINES = {
    "local": "10 one-line jobs, 2 at a time: kochi",
    "script": "2 `script:` jobs, 2 at a time: kochi",
    "run": "2 `run:` jobs, 2 at a time: kochi",
    "slurm": "2 one-line jobs, 8 at a time: kochi",
    "generic": "2 one-line jobs, 2 at a time: kochi",
    "runners": "a `run:` job by zygote",
    "growth": "local executor: one of 10 jobs",
    "batches": "run with nothing to do: one of 2 points",
    "latency": "from submission to the job's first instruction",
    "throughput": "jobs per second",
    "claims": "a claim, 1,000 tickets waiting",
    "handover": "submitting 300 tickets",
    "commits": "4 processes that journal and commit one by one",
    "idle": "2 idle workers: metadata calls per worker",
    "watching": "the same: calls per worker",
    "chaos": "jobs lost, or reported twice",
    "nodes": "jobs lost, or done twice",
    "filesystems": "NFS-like: its content",
    "sizing": "200 jobs of 1 minute: requested by kochi",
    "site": "of these while it holds the lock of the queue",
    "tables": "200 records",
    "cleaning": "inodes left",
    "files": "inodes after packing",
    "remote": "`artifact sync` without new results",
    "slow-queue": "2 workers, 2 ms an operation: jobs",
    "slow-runs": "6 one-line jobs, 1 ms an operation: kochi",
    "metadata": "cluster-generic: Snakemake, in the project",
    "waiting": "a worker without jobs",
}


def bench(*arguments: str, directory: Path) -> str:
    """Run benchmarks with two cores. Returns their output."""
    command = (sys.executable, "-m", "bench", *arguments, "--cores", "2")
    result = run(*command, "--directory", str(directory), cwd=REPOSITORY)
    assert result.returncode == 0
    return result.stdout


@pytest.mark.parametrize("name", LINES)
def test_a_benchmark_runs_and_prints_a_table(name, tmp_path):
    printed = bench(name, "--quick", directory=tmp_path)
    assert f"| {LINES[name]}" in printed
    assert "processor" in printed and "filesystem" in printed
    assert list(tmp_path.iterdir()) == [], "nothing is left"


def test_jobs_and_rounds_can_be_chosen_and_the_tables_written_for_a_page(tmp_path):
    directory = tmp_path / "measured"
    directory.mkdir()
    page = tmp_path / "page.md"
    chosen = ("--quick", "--jobs", "40", "--rounds", "3", "--write", str(page))
    printed = bench("handover", "latency", *chosen, directory=directory)
    (row,) = [line for line in printed.splitlines() if "submitting 40 tickets" in line]
    assert row.split("|")[-2].strip() == "3"
    text = page.read_text()
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert headings == ["### `handover`", "### `latency`"]
    assert row in text


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY))


@pytest.mark.usefixtures("importable")
def test_all_benchmarks_are_run_here():
    from bench.__main__ import BENCHES

    assert list(BENCHES) == list(LINES)


@pytest.mark.usefixtures("importable")
def test_a_run_requests_at_most_twice_the_used_core_hours_by_at_most_ten_submissions():
    from bench import sizing

    found = {mix: sizing.outcome_of(mix) for mix in sizing.MIXES}
    for mix, outcome in found.items():
        assert sizing.plugin_ratio(mix) == pytest.approx(1.2), mix
        missed = {
            "submissions": outcome.submissions > sizing.MOST_SUBMISSIONS,
            "ratio": outcome.ratio > sizing.MOST_RATIO,
        }
        told = sizing.MISSES.get(mix)
        assert [what for what, is_so in missed.items() if is_so] == ([told] if told else []), mix
        assert mix in (REPOSITORY / "docs" / "benchmarks.md").read_text()
