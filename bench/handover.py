"""How long does it take to submit many tickets, and how long is the queue locked meanwhile?"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from bench.measure import Row, Size, machine_at, make_tickets
from snakemake_kochi.queue import Queue, queue_lock
from snakemake_kochi.queue import queue as queue_module


def measure(directory: Path, size: Size) -> list[Row]:
    count, runs = size.number(10_000, 300), size.runs(5, 2)
    machine = machine_at(directory)
    tickets = make_tickets(directory, count)
    took: list[float] = []
    held: list[float] = []
    for run in range(runs):
        queue = Queue(machine, f"q{run}")
        with mock.patch.object(queue_module, "queue_lock", _timed(queue_lock, held)):
            began = time.perf_counter()
            queue.submit(tickets)
            took.append(time.perf_counter() - began)
    return [
        Row(f"submitting {count:,} tickets", took, "s"),
        Row("holding the lock of the queue", [1000 * seconds for seconds in held], "ms"),
    ]


def _timed(lock: Any, held: list[float]) -> Any:
    @contextlib.contextmanager
    def timed(*arguments: Any) -> Iterator[None]:
        with lock(*arguments):
            began = time.perf_counter()
            yield
            held.append(time.perf_counter() - began)

    return timed
