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

from snakemake_kochi.paths import Root
from snakemake_kochi.tickets import history
from snakemake_kochi.tickets.names import Layout
from snakemake_kochi.tickets.ticket import Ticket


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
    layout = Layout(os.path.join(os.environ["KOCHI_ROOT"], "machines", "local"))
    if not Path(layout.runs).exists():
        return []
    runs = [int(path.name) for path in Path(layout.runs).iterdir() if path.name.isdecimal()]
    views = [*history.ended(layout), *(v for run in runs for v in history.in_inbox(layout, run))]
    found = {view.name.key: view for view in views}.values()
    reasons = {"memory": "out of memory", "node": "node failed"}
    return [
        {
            "job": f"{view.name.run}.{view.name.job}",
            "attempt": view.name.attempt,
            "worker": int(view.name.worker) if view.name.worker.isdecimal() else None,
            "log": layout.run(view.name.run).log(view.name),
            "reason": reasons.get(view.name.state, view.name.state),
            **(details := view.line.get("details") or {}),
            "node": {"host": details.get("node", "")},
        }
        for view in sorted(found, key=lambda view: view.name)
    ]


def waiting_tickets(queue: str) -> list[Ticket]:
    """The tickets that wait in a queue."""
    machine = Root.find().machine("local")
    found = history.places(machine.layout)
    paths = [Path(path) for name, of, path in sorted(found) if of == queue and not name.worker]
    lines = [path.read_bytes().partition(b"\n")[0] for path in paths]
    return [Ticket.from_dict(json.loads(line), paths[0]) for line in lines]


def nothing_is_left() -> bool:
    """Neither a process of the run, nor a queue, and each run is over."""
    machine = Path(os.environ["KOCHI_ROOT"]) / "machines" / "local"
    left = [*machine.glob("queues/*"), *machine.glob("runs/*/own*")]
    assert left == [], left
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
