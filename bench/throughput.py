"""Short jobs per second of one worker, compared with starting the same programs directly."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from bench.measure import (
    Row,
    Size,
    alternate,
    machine_at,
    make_tickets,
    require_success,
    wait_until,
    workers,
)
from snakemake_kochi.queue import Queue


def measure(directory: Path, size: Size) -> list[Row]:
    count, runs = size.number(1000, 20), size.runs(5, 2)
    machine = machine_at(directory)
    queue = Queue(machine, "q")

    def plain() -> float:
        began = time.perf_counter()
        for _ in range(count):
            subprocess.run(["true"], check=True)
        return (time.perf_counter() - began) / count

    def jobs() -> float:
        began = time.perf_counter()
        submitted = queue.submit(make_tickets(directory, count, "true"))
        results = [machine.job(ticket.job).result for ticket in submitted]
        for result in reversed(results):
            wait_until(result.exists)
        seconds = time.perf_counter() - began
        require_success(machine, submitted)
        return seconds / count

    with workers(directory, 1, cores=2):
        values, ratios = alternate(runs, plain, jobs, scale=1000)
    return [
        Row("a `true` process, one after another", values[0], "ms"),
        Row("a `true` job, on a worker of 2 cores", values[1], "ms", ratios[1]),
        Row("jobs per second", [1000 / value for value in values[1]], "1/s"),
    ]
