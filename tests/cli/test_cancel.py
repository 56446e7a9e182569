"""`kochi cancel`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Outcome, make_repository

Kochi = Callable[..., Outcome]
Worker = Callable[..., object]


def submit(kochi: Kochi, *words: str) -> None:
    assert kochi("enqueue", "-q", "test", "--", *words).status == 0


def state(kochi: Kochi, job: int) -> tuple[str, str | None]:
    data = kochi("show", "job", job, "--json").data
    return data["state"], data["reason"]


def wait_for(kochi: Kochi, job: int, wanted: str) -> None:
    while state(kochi, job)[0] != wanted:
        time.sleep(0.02)


def test_waiting_and_running_jobs_are_cancelled_and_ended_ones_are_left(
    kochi: Kochi, worker: Worker
) -> None:
    submit(kochi, "true")
    worker()
    wait_for(kochi, 0, "succeeded")
    submit(kochi, "sleep", "300")
    submit(kochi, "true")
    wait_for(kochi, 1, "running")
    outcome = kochi("cancel", 0, 2, 1)
    assert outcome.status == 0
    assert outcome.out.splitlines() == [
        "Job 0 had ended already.",
        "Job 2 was cancelled.",
        "Job 1 is being cancelled by its worker.",
    ]
    wait_for(kochi, 1, "cancelled")
    assert [state(kochi, job)[1] for job in range(3)] == ["success", "cancelled", "cancelled"]


def test_an_unknown_job_is_an_error_after_the_others_were_cancelled(kochi: Kochi) -> None:
    submit(kochi, "true")
    outcome = kochi("cancel", 7, 0)
    assert outcome.status == 1
    assert "there is no job 7" in outcome.err
    assert outcome.out == "Job 0 was cancelled.\n"
    assert kochi("cancel", "x").status == 2
    assert kochi("cancel").status == 2
    assert kochi("cancel", "-a", 0).status == 2


def test_all_jobs_of_the_project_are_cancelled_and_no_others(
    project: Path, tmp_path: Path, kochi: Kochi, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_repository(tmp_path / "other", {"kochi.yaml": ""})
    monkeypatch.chdir(other)
    submit(kochi, "true")
    monkeypatch.chdir(project)
    submit(kochi, "true")
    submit(kochi, "true")
    outcome = kochi("cancel", "-a", "-y", "--json")
    assert outcome.status == 0
    assert outcome.data == [
        {"job": 2, "outcome": "cancelled"},
        {"job": 1, "outcome": "cancelled"},
    ]
    assert state(kochi, 0)[0] == "waiting"
    assert kochi("cancel", "-a").out == "This project has no waiting or running jobs.\n"


def test_all_jobs_are_cancelled_only_after_asking(
    project: Path, shell: Kochi, kochi: Kochi
) -> None:
    submit(kochi, "true")
    for answer in ("n\n", ""):
        outcome = shell("cancel", "-a", stdin=answer)
        assert outcome.status == 1
        assert "Cancel 1 jobs: 0?" in outcome.err
        assert state(kochi, 0)[0] == "waiting"
    # Without an answer, as without a terminal.
    assert "no answer was given; nothing was changed\nTo agree in advance, add: -y" in outcome.err
    assert shell("cancel", "-a", stdin="y\n").status == 0
    assert state(kochi, 0) == ("cancelled", "cancelled")


def test_all_jobs_of_no_project_is_an_error(kochi: Kochi) -> None:
    submit(kochi, "true")
    outcome = kochi("cancel", "-a", "-y")
    assert outcome.status == 1
    assert "git init" in outcome.err
    assert state(kochi, 0)[0] == "waiting"


def test_quietly_nothing_is_said(kochi: Kochi) -> None:
    submit(kochi, "true")
    outcome = kochi("cancel", 0, "--quiet")
    assert (outcome.status, outcome.out, outcome.err) == (0, "", "")
