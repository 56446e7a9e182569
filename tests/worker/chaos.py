"""Runs, workers and supervisors are killed at any moment, with real processes and files."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from workers_site import QUEUE, Site

from snakemake_kochi.base.wake import Wake
from snakemake_kochi.processes import ProcessIdentity, is_gone, this_node
from snakemake_kochi.tickets.names import Layout, Name, wake_workers
from snakemake_kochi.tickets.run import SHARD, Run

_SCRIPT = "echo $KOCHI_JOB_ID.$KOCHI_ATTEMPT begun >> trace; sleep 0.02"


@dataclass(frozen=True)
class Outcome:
    """`deaths`: by what was killed; `begun`: attempts. `problems` are sentences, none if each job
    succeeded once."""

    seconds: float
    deaths: Counter[str]
    begun: int
    problems: tuple[str, ...]


def control(layout: Layout, work: str, tickets: dict[str, bytes], reports: str) -> None:
    """A run that wants all of these done, and reports each end as a line "KEY TICKET"."""
    own = ProcessIdentity.of(os.getpid())
    assert own is not None
    facts = {"process": asdict(own), "node": asdict(this_node())}
    run = Run.begin(layout, work, facts, is_gone)
    while run.adopt():  # some may be alive
        time.sleep(0.1)
    done = {line.split()[0] for line in Path(reports).read_text().splitlines()}
    wake = Wake(run.paths.wake)
    beaten = 0.0
    while True:
        with open(reports, "a") as file:
            for end in run.collect():
                file.write(f"{end.key} {end.name}\n")
                file.flush()
                done.add(end.key)
        missing = tickets.keys() - done - {job.key for job in run.open}
        if missing:
            run.submit(QUEUE, {key: tickets[key] for key in sorted(missing)[:SHARD]})
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


class _Runs:
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


def run_chaos(site: Site, jobs: int, workers: int, kills: int, pause: float, seed: int) -> Outcome:
    """Let it happen: so many kills, a random part of `pause` seconds apart."""
    site.run.end()
    reports = site.work / "reports"
    reports.touch()
    tickets = {f"k{number}": site.ticket(_SCRIPT) for number in range(jobs)}
    began = time.monotonic()
    run = _Runs(site, tickets, reports)
    for _ in range(workers):
        site.worker()
    chance, deaths = random.Random(seed), Counter[str]()
    while deaths.total() < kills and run.process.is_alive():
        time.sleep(chance.uniform(pause / 8, pause))
        victim = chance.choice(("run", "worker", "supervisor"))
        deaths[victim] += 1
        if victim == "run":
            run.kill()
        else:
            _kill(site, chance, victim)
    run.process.join()
    seconds = time.monotonic() - began
    problems = [] if run.process.exitcode == 0 else [f"the run ended with {run.process.exitcode}"]
    begun = Counter((site.work / "trace").read_text().splitlines())
    problems += [f"{what} {count} times" for what, count in begun.items() if count > 1]
    if left := site.running():
        problems.append(f"still held: {left}")
    problems += _of_reports(reports, tickets)
    return Outcome(seconds, deaths, begun.total(), tuple(problems))


def _kill(site: Site, chance: random.Random, victim: str) -> None:
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


def _of_reports(reports: Path, tickets: dict[str, bytes]) -> list[str]:
    ends: dict[str, set[str]] = defaultdict(set)
    for key, name in (line.split() for line in reports.read_text().splitlines()):
        ends[key].add(name)
    # A job that was lost with three workers is made again, by the next run or this one.
    successes = {
        key: [name for name in ends[key] if Name.parse(name).state == "success"]  # type: ignore[union-attr]
        for key in tickets
    }
    return [f"{key} succeeded as {names}" for key, names in successes.items() if len(names) != 1]
