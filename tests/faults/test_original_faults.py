"""What Kochi itself gets wrong in the files of its queue, and no other test shows."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest
from faults.stage import Stage

from snakemake_kochi.queue import find_job, find_worker


def test_the_environment_of_a_worker_is_in_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "not-to-be-written")
    stage = Stage(tmp_path / "stage")
    stage.submit("a", work='echo "$SECRET_TOKEN" > seen; ')
    stage.repair()
    assert (stage.directory / "seen").read_text() == "not-to-be-written\n"
    files = [path for path in stage.machine.directory.rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert b"not-to-be-written" not in path.read_bytes(), path
    stage.close()


def test_times_are_kept_to_the_microsecond(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "stage")
    stage.submit("a", "b")
    stage.repair()
    times = []
    for job in (0, 1):
        view = find_job(stage.machine, job)
        assert view.ticket is not None and view.result is not None and view.started is not None
        times += [view.ticket.submitted, view.started, view.result.ended]
    times += [find_worker(stage.machine, 0).started]
    times += [json.loads(stage.machine.job(0).attempt(1).read_text())["started"]]
    for time in times:
        moment = datetime.fromisoformat(time)
        assert moment.tzinfo is not None
        assert time == moment.isoformat(timespec="microseconds")
    fractions = {datetime.fromisoformat(time).microsecond for time in times}
    assert len(fractions) > 2, "they are not of whole seconds"
    stage.close()
