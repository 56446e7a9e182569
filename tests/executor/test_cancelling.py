"""Cancelling the jobs of a run on a filesystem that does not answer."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any

import pytest
from faulty_filesystem import FaultyFilesystem

from snakemake_kochi.executor.shutdown import Cancelling
from snakemake_kochi.paths import Root
from snakemake_kochi.queue import Queue, Ticket

LOGGER: Any = logging.getLogger("test")


def test_jobs_that_cannot_be_cancelled_are_named_once_and_not_awaited(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with FaultyFilesystem(tmp_path / "backing", tmp_path / "shared") as filesystem:
        machine = Root(filesystem.path).machine("local")
        tickets = Queue(machine, "q").submit([Ticket("x", ("x",), "/")] * 3)
        jobs = [ticket.job for ticket in tickets]
        with filesystem.fault("readdir", errno.EIO, "*/queues*"):
            cancelling = Cancelling(machine, jobs, LOGGER)
            asked: list[bool] = []
            cancelling.wait(lambda: asked.append(True) or False)
            cancelling.report()
        assert asked == []
    assert caplog.text.count("could not be cancelled") == 1
    assert "kochi jobs 0 1 2 could not be cancelled: Input/output error" in caplog.text
    assert "Cancelled, but not ended yet: kochi jobs 0 1 2" in caplog.text
