"""A benchmark runs and prints its table; what a run requests is what the documentation says."""

from __future__ import annotations

import sys

import pytest
from support import REPOSITORY, run


def test_a_benchmark_runs_with_the_jobs_and_rounds_chosen_and_writes_its_table_for_a_page(tmp_path):
    directory = tmp_path / "measured"
    directory.mkdir()
    page = tmp_path / "page.md"
    chosen = ("--quick", "--jobs", "40", "--rounds", "3", "--write", str(page), "--cores", "2")
    command = (sys.executable, "-m", "bench", "claims", *chosen, "--directory", str(directory))
    done = run(*command, cwd=REPOSITORY)
    assert done.returncode == 0
    (row,) = [line for line in done.stdout.splitlines() if "40 tickets waiting" in line]
    assert row.split("|")[5].strip() == "3"
    assert "processor" in done.stdout and "filesystem" in done.stdout
    text = page.read_text()
    assert [line for line in text.splitlines() if line.startswith("#")] == ["### `claims`"]
    assert row in text
    assert list(directory.iterdir()) == [], "nothing is left"


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY))


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
