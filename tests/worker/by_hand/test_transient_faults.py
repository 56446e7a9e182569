"""Transient faults and lost answers end no worker and no job of it, and hold up no ticket."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from faulty_filesystem import FaultyFilesystem

from snakemake_kochi.files import write_exclusively
from tests.worker.by_hand.conftest import Site

SOON = {"idle_wait": 0.1}


def test_a_worker_that_leaves_when_all_is_done_does_not_while_that_cannot_be_seen(
    site: Site, faulty: FaultyFilesystem
) -> None:
    site.submit("true")
    with faulty.fault("readdir", errno.EIO, "*/queues/q/waiting*") as fault:
        worker = site.start(cores=1, stderr=-3, **SOON)
        site.wait_until(lambda: faulty.count(fault) >= 3)
        assert worker.poll() is None
    assert worker.wait() == 0
    assert site.job(0).result.ok  # type: ignore[union-attr]


@pytest.mark.parametrize("error", [errno.ENOENT, errno.EIO])
@pytest.mark.parametrize("moved", ["*/waiting/*", "*/running/*"])
def test_a_job_that_was_claimed_or_ended_though_the_answer_was_lost_is_executed_once(
    site: Site, faulty: FaultyFilesystem, error: int, moved: str
) -> None:
    site.submit("echo ran >> ran")
    with faulty.fault("rename", error, moved, done=True, times=1) as fault:
        assert site.start(cores=1, stderr=-3, **SOON).wait() == 0
        assert faulty.count(fault) == 1
    result = site.job(0).result
    assert result is not None and (result.ok, result.attempt) == (True, 1)
    assert (site.directory / "ran").read_text() == "ran\n"


def test_a_second_file_with_the_same_content_does_not_count_as_the_first(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert write_exclusively(path, b"same")
    assert not write_exclusively(path, b"same")
    assert [found.name for found in tmp_path.iterdir()] == ["file"]
