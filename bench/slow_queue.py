"""Shell jobs that do nothing, on workers with 2 cores each, while each metadata operation below
KOCHI_ROOT takes longer: from their submission to the last result. Each worker has a mount of its
own, as on a node of its own. Then the operations of the workers, for each job. At last jobs of a
second on as many workers: as many a second as the workers have cores would be the best."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from pathlib import Path

from snakemake_kochi.queue.wakeup import notify

from bench.measure import (
    Row,
    Size,
    machine_at,
    require_success,
    shell_tickets,
    wait_until,
    workers,
)
from bench.slow_filesystem import Operations, SlowFilesystem, total
from snakemake_kochi.queue import Queue


def measure(directory: Path, size: Size) -> list[Row]:
    rows = []
    delays, counts = ((0.002,), (1, 2)) if size.quick else ((0.0, 0.002, 0.01), (1, 8))
    for delay in delays:
        for count in counts:
            own = directory / f"{delay}-{count}"
            jobs = size.number(100, 8)
            rates, operations = [], []
            for number in range(size.runs(1)):
                seconds, done = _run(own / str(number), count, jobs, delay)
                rates.append(jobs / seconds)
                operations += done
            what = f"{count} worker{'s' if count > 1 else ''}, {1000 * delay:.0f} ms an operation"
            rows.append(Row(f"{what}: jobs", rates, "1/s"))
            each = total(operations) / jobs / len(rates)
            rows.append(Row(f"{what}: {_types(operations, jobs * len(rates))}", [each], "a job"))
    # At least two rounds on each core, so that jobs follow others.
    jobs, script = size.number(160, 4 * counts[-1]), "true" if size.quick else "sleep 1"
    rates = []
    for number in range(size.runs(1)):
        seconds, _ = _run(directory / f"second-{number}", counts[-1], jobs, delays[-1], script)
        rates.append(jobs / seconds)
    what = f"{counts[-1]} workers, {1000 * delays[-1]:.0f} ms an operation: jobs of a second"
    rows.append(Row(what, rates, "1/s"))
    return rows


def _run(
    directory: Path, count: int, jobs: int, delay: float, script: str = "true"
) -> tuple[float, list[Operations]]:
    backing = directory / "backing"
    with contextlib.ExitStack() as stack:
        nodes = [
            stack.enter_context(SlowFilesystem(backing, directory / f"node{number}"))
            for number in range(count)
        ]
        for node in nodes:
            stack.enter_context(workers(node.path, 1, cores=2))
        machine = machine_at(backing)
        for node in nodes:
            node.set_delay(delay)
            node.count()  # not the starts
        began = time.perf_counter()
        submitted = Queue(machine, "q").submit(shell_tickets(directory, jobs, script))
        for worker, node in enumerate(nodes):
            notify(machine_at(node.path).worker(worker).wakeup)
        for ticket in reversed(submitted):
            wait_until(machine.job(ticket.job).result.exists)
        seconds = time.perf_counter() - began
        done = [each for node in nodes for each in node.count() if each.role == "worker"]
        for node in nodes:
            node.set_delay(0.0)  # so that the workers end soon
        require_success(machine, submitted)
    return seconds, done


def _types(operations: list[Operations], jobs: int) -> str:
    counted: Counter[str] = Counter()
    for each in operations:
        counted[each.operation] += each.count
    return ", ".join(f"{name} {count / jobs:.2g}" for name, count in counted.most_common())
