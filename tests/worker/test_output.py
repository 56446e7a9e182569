"""The output of jobs in the terminal of their worker."""

from __future__ import annotations

import io
from pathlib import Path

from file_calls import note_calls

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
