"""Controllers, workers and supervisors are killed at any moment, with real processes and files."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from workers_site import QUEUE, Site, until

from snakemake_kochi.base.wake import Wake
from snakemake_kochi.processes import ProcessIdentity, is_gone, this_node
from snakemake_kochi.tickets.names import Layout, Name, wake_workers
from snakemake_kochi.tickets.run import Run

JOBS = 300
KILLS = 12


def control(layout: Layout, work: str, tickets: dict[str, bytes], reports: str) -> None:
    """A run that wants all of these done, and reports each end as a line "KEY TICKET"."""
    own = ProcessIdentity.of(os.getpid())
    assert own is not None
    facts = {"process": asdict(own), "node": asdict(this_node())}
    run = Run.begin(layout, work, facts, is_gone)
    while run.adopt():  # some may be alive
        time.sleep(0.1)
    wake = Wake(run.paths.wake)
    beaten = 0.0
    while True:
        done = {line.split()[0] for line in Path(reports).read_text().splitlines()}
        with open(reports, "a") as file:
            for end in run.collect():
                file.write(f"{end.key} {end.name}\n")
                file.flush()
                done.add(end.key)
        missing = tickets.keys() - done - {job.key for job in run.open}
        if missing:
            run.submit(QUEUE, {key: tickets[key] for key in sorted(missing)[:50]})
            wake_workers(layout, QUEUE)
        elif not run.open:
            break
        if time.monotonic() > beaten + 1.0:
            run.beat()
            run.look_after()
            run.fold()
            beaten = time.monotonic()
        wake.wait(0.2)
    run.look_after()
    run.end()


class Controllers:
    """One after the other."""

    def __init__(self, site: Site, tickets: dict[str, bytes], reports: Path) -> None:
        self._arguments = site.layout, str(site.work), tickets, str(reports)
        self.begin()

    def begin(self) -> None:
        context = multiprocessing.get_context("fork")
        self.process = context.Process(target=control, args=self._arguments)
        self.process.start()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.begin()


def kill_some(site: Site, run: Controllers, chance: random.Random) -> None:
    for _ in range(KILLS):
        time.sleep(chance.uniform(0.1, 0.8))
        victim = chance.choice(("run", "worker", "supervisor"))
        if victim == "run":
            run.kill()
            continue
        supervisor = chance.choice(site.workers)
        pid = supervisor.pid
        if victim == "worker":
            with suppress(OSError):
                children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                pid = int(children[0]) if children else pid
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        supervisor.wait()
        site.workers.remove(supervisor)
        site.worker()


def test_every_job_ends_once_whoever_is_killed(site: Site) -> None:
    site.run.end()
    reports = site.work / "reports"
    reports.touch()
    script = "echo $KOCHI_JOB_ID.$KOCHI_ATTEMPT begun >> trace; sleep 0.02; echo {} >> done"
    tickets = {f"k{n}": site.ticket(script.format(f"k{n}")) for n in range(JOBS)}
    run = Controllers(site, tickets, reports)
    site.worker()
    site.worker()
    seed = random.randrange(10**6)
    print("seed", seed)
    kill_some(site, run, random.Random(seed))
    until(lambda: not run.process.is_alive())
    assert run.process.exitcode == 0, site.logs()
    ends = [line.split() for line in reports.read_text().splitlines()]
    by_key = {key: {name for k, name in ends if k == key} for key, _ in ends}
    assert by_key.keys() == tickets.keys()
    # A job that was lost with three workers is made again, by the next run or this one.
    successes = {
        key: [n for n in names if Name.parse(n).state == "success"] for key, names in by_key.items()
    }
    assert [key for key, names in successes.items() if len(names) != 1] == []
    begun = Counter((site.work / "trace").read_text().splitlines())
    assert max(begun.values()) == 1
    assert site.running() == []
