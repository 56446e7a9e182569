"""Does the cost of a claim depend on the number of waiting tickets, or on their controllers?"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from snakemake_kochi.queue.claiming import Answer

from bench.measure import Row, Size, alternate, machine_at, make_tickets
from snakemake_kochi.queue import Queue
from snakemake_kochi.tickets.ticket import Ticket

_CLAIMS = 15  # per run, which has their median as its value
_SETTLED = 3.5  # seconds until a worker no longer lists unchanged shards of foreign tickets


def _take(_: Ticket) -> Answer:
    return "take"


def measure(directory: Path, size: Size) -> list[Row]:
    few, many, runs = 100, size.number(100_000, 1000), size.runs(5, 2)
    machine = machine_at(directory)
    small, large = Queue(machine, "small"), Queue(machine, "large")
    small.submit(make_tickets(directory, few))
    large.submit(make_tickets(directory, many))
    mine = Queue(machine, "large", controller="me")
    mine.submit(make_tickets(directory, few, controller="me"))
    first = _claim(mine)
    if not size.quick:
        time.sleep(_SETTLED)
    _claim(mine)
    values, ratios = alternate(
        runs, lambda: _claims(small), lambda: _claims(large), lambda: _claims(mine), scale=1000
    )
    return [
        Row(f"a claim, {few:,} tickets waiting", values[0], "ms"),
        Row(f"a claim, {many:,} tickets waiting", values[1], "ms", ratios[1]),
        Row(f"a claim behind {many:,} tickets of other controllers", values[2], "ms", ratios[2]),
        Row("the first claim behind them", [first * 1000], "ms"),
    ]


def _claim(queue: Queue) -> float:
    began = time.perf_counter()
    (_,) = queue.claim(0, _take)
    return time.perf_counter() - began


def _claims(queue: Queue) -> float:
    return statistics.median(_claim(queue) for _ in range(_CLAIMS))
