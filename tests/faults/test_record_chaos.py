"""A batch while its workers, runs and controllers die: each point has the record of one run."""

from __future__ import annotations

from pathlib import Path

from faults.record_chaos import run_record_chaos


def test_records_and_files_are_those_of_what_ran_while_everything_dies(
    tmp_path: Path, mark: str
) -> None:
    outcome = run_record_chaos(tmp_path, 30, kill_every=0.7)
    print((tmp_path / "said").read_text()[-8000:], outcome, sep="\n")
    assert outcome.problems == ()
    assert outcome.worker_deaths + outcome.run_deaths + outcome.controller_deaths >= 3
    assert outcome.executions >= 30
