"""The output of jobs in the terminal of their worker."""

from __future__ import annotations

import io
import math
from functools import partial
from pathlib import Path

from file_calls import note_calls
from packing.stage import Stage

from snakemake_kochi.paths import SHARD
from snakemake_kochi.queue.jobs import packed_log
from snakemake_kochi.worker.output import Echo


def test_a_log_is_opened_less_often_while_it_does_not_grow(
    tmp_path: Path,
) -> None:
    shown, now = io.BytesIO(), 1000.0
    echo = Echo(jobs=True, stream=shown, clock=lambda: now)
    log = tmp_path / "log"
    log.write_text("a\n")
    with note_calls() as calls:
        echo.job_started(0, "first", log, 0)
        while now < 1060:
            echo.pump()
            now = echo.deadline
        assert 60 <= calls.opened.count(str(log)) < 70, "of a minute"
        with open(log, "a") as file:
            file.write("b\n")
        echo.pump()
        assert echo.deadline <= now + 0.1, "it grows again"
        echo.job_ended(0, "")
        echo.pump()
    assert b"\na\nb\n" in shown.getvalue()


def test_a_log_that_moved_into_a_pack_before_its_turn_is_shown(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.end(*["short"] * SHARD)
    shown = io.BytesIO()
    echo = Echo(jobs=True, stream=shown, packed_log=partial(packed_log, stage.machine))
    echo.job_started(7, "short", stage.machine.job(7).log, 0)
    echo.job_ended(7, "")
    stage.pack()
    assert not stage.machine.job(7).log.exists()
    echo.pump()
    assert b"short said so\n" in shown.getvalue() and echo.deadline == math.inf
