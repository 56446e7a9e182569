"""Helpers for tests of whole runs: their processes, results, and what they leave."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from support import Process, start


def our_processes() -> list[psutil.Process]:
    """Every living process that has this test's KOCHI_ROOT in its environment, but ourselves."""
    found = []
    for process in psutil.process_iter():
        try:
            root = process.environ().get("KOCHI_ROOT")
        except psutil.Error:
            continue
        if root == os.environ["KOCHI_ROOT"] and process.pid != os.getpid():
            found.append(process)
    return found


def results() -> list[dict[str, Any]]:
    """The results of all jobs, as other programs read them."""
    root = Path(os.environ["KOCHI_ROOT"])
    return [
        json.loads(path.read_text())
        for path in sorted(root.glob("machines/local/jobs/*/*/result.json"))
    ]


def nothing_is_left() -> bool:
    """Neither a process of the run, nor its inbox, nor a queue."""
    machine = Path(os.environ["KOCHI_ROOT"]) / "machines" / "local"
    left = [*machine.glob("controllers/*"), *machine.glob("queues/*")]
    assert left == []
    return our_processes() == []


@contextmanager
def background(*command: str, cwd: Path) -> Iterator[Process]:
    process = start(*command, cwd=cwd, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
