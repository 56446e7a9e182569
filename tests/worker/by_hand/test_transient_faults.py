"""Transient faults and lost answers end no worker and no job of it, and hold up no ticket."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faulty_filesystem import FaultyFilesystem

from snakemake_kochi.files import write_exclusively
from tests.worker.by_hand.conftest import Site

UNTIL_GO = "until [ -e go ]; do sleep 0.1; done"
SOON = {"idle_wait": 0.1}


@pytest.fixture
def few_files(site: Site) -> Iterator[Callable[[], list[Path]]]:
    """Puts the site's root on a filesystem with few inodes; a call uses up the free ones."""
    directory = site.root.directory
    directory.mkdir()
    options = ["-t", "tmpfs", "-o", "size=4m,nr_inodes=60,mode=700", "kochi-test"]
    subprocess.run(["mount", *options, str(directory)], check=True)

    def take() -> list[Path]:
        taken: list[Path] = []
        try:
            while True:
                path = directory / f"taken{len(taken)}"
                path.touch()
                taken.append(path)
        except OSError:
            return taken

    yield take
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


def test_a_worker_that_leaves_when_all_is_done_does_not_while_that_cannot_be_seen(
    site: Site, faulty: FaultyFilesystem
) -> None:
    site.submit("true")
    with faulty.fault("readdir", errno.EIO, "*/queues/q/running*") as fault:
        worker = site.start(cores=1, stderr=-3, **SOON)
        site.wait_until(lambda: faulty.count(fault) >= 3)
        assert worker.poll() is None
    assert worker.wait() == 0
    assert site.job(0).result.ok  # type: ignore[union-attr]


@pytest.mark.parametrize("error", [errno.EEXIST, errno.EIO])
def test_a_job_whose_attempt_was_made_though_the_answer_was_lost_is_executed(
    site: Site, faulty: FaultyFilesystem, error: int
) -> None:
    site.submit("echo ran >> ran")
    with faulty.fault("create", error, "*/attempt-1*", done=True) as fault:
        assert site.start(cores=1, stderr=-3, **SOON).wait() == 0
        assert faulty.count(fault) == 1
    # The empty file shows that nothing was executed, and uses the number up.
    result = site.job(0).result
    assert result is not None and (result.ok, result.attempt) == (True, 2)
    assert (site.directory / "ran").read_text() == "ran\n"


def test_a_second_file_with_the_same_content_does_not_count_as_the_first(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert write_exclusively(path, b"same")
    assert not write_exclusively(path, b"same")
    assert [found.name for found in tmp_path.iterdir()] == ["file"]
