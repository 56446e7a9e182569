"""The time from submitting a ticket to the first instruction of its job, on an idle worker."""

from __future__ import annotations

import time
from pathlib import Path

from bench.measure import Row, Size, machine_at, make_tickets, wait_until, workers
from snakemake_kochi.queue import Queue


def measure(directory: Path, size: Size) -> list[Row]:
    machine = machine_at(directory)
    queue = Queue(machine, "q")
    values = []
    with workers(directory, 1):
        # `date` prints the time a little after its first instruction, because it is loaded first.
        for _ in range(size.number(40, 3)):
            time.sleep(0.1)
            began = time.time()
            (ticket,) = queue.submit(make_tickets(directory, 1, "date", "+%s.%N"))
            job = machine.job(ticket.job)
            wait_until(job.result.exists, 0.002)
            values.append(1000 * (float(job.log.read_text()) - began))
    return [Row("from submission to the job's first instruction", values, "ms")]
