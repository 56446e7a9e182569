"""How long from handing over a ticket to the first instruction of its job, on an idle worker?"""

from __future__ import annotations

import time
from pathlib import Path

from bench.measure import Row, Size, machine_at, make_tickets, wait_until, workers
from snakemake_kochi.queue import Queue


def measure(place: Path, size: Size) -> list[Row]:
    machine = machine_at(place)
    queue = Queue(machine, "q")
    values = []
    with workers(place, 1):
        # A little later than the first instruction: `date` has to be loaded.
        for _ in range(size.number(40, 3)):
            time.sleep(0.1)
            began = time.time()
            (ticket,) = queue.submit(make_tickets(place, 1, "date", "+%s.%N"))
            job = machine.job(ticket.job)
            wait_until(job.result.exists, 0.002)
            values.append(1000 * (float(job.log.read_text()) - began))
    return [Row("from handing over to the job's first instruction", values, "ms")]
