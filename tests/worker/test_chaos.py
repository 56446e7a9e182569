"""Runs, workers and supervisors are killed at any moment, with real processes and files."""

from __future__ import annotations

import random

from worker.chaos import run_chaos
from workers_site import Site

JOBS = 300
KILLS = 12


def test_every_job_ends_once_whoever_is_killed(site: Site) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    outcome = run_chaos(site, JOBS, workers=2, kills=KILLS, pause=0.8, seed=seed)
    assert outcome.problems == (), site.logs()
    assert outcome.begun >= JOBS
