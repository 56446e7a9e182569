"""Many jobs, while workers and controllers die: each is done and reported once."""

from __future__ import annotations

from pathlib import Path

from faults.chaos import Chaos, run_chaos


def test_no_job_is_lost_or_reported_twice_while_workers_and_controllers_die(
    tmp_path: Path, mark: str
) -> None:
    chaos = Chaos(jobs=500, kill_every=25)
    outcome = run_chaos(tmp_path, chaos)
    print(outcome)
    assert outcome.problems == ()
    assert outcome.controller_deaths == chaos.controller_deaths
    assert outcome.worker_deaths >= 10, "it was over before anything happened"
    assert outcome.attempts >= outcome.executions >= chaos.jobs
