"""A machine with jobs, and what was long ago."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

from faults.stage import dead_process

from snakemake_kochi.cleaning.clean import Report, clean
from snakemake_kochi.files import make_directory, to_json
from snakemake_kochi.next import IS_NEXT
from snakemake_kochi.next.by_hand import submit
from snakemake_kochi.next.views import list_jobs
from snakemake_kochi.paths import MachinePaths, ProjectPaths, Root
from snakemake_kochi.processes import this_node
from snakemake_kochi.project.clean_rules import Rules
from snakemake_kochi.queue import Capacity, Queue, Ticket, WorkerState, allocate_ids
from snakemake_kochi.queue.result import Result, new_nonce
from snakemake_kochi.queue.ticket import now
from snakemake_kochi.tickets.claims import Claims, WorkerLife
from snakemake_kochi.tickets.names import Layout, numbers_in

DAY = 86400.0


def make_old(path: Path, days: float = 40) -> None:
    """Give a file, or all files of a directory, a time long ago."""
    moment = time.time() - days * DAY
    for parent, _, names in os.walk(path):
        for each in (parent, *(f"{parent}/{name}" for name in names)):
            os.utime(each, (moment, moment), follow_symlinks=False)
    os.utime(path, (moment, moment), follow_symlinks=False)


@dataclass
class Stage:
    directory: Path
    root: Root = field(init=False)
    machine: MachinePaths = field(init=False)
    queue: Queue = field(init=False)
    _lives: dict[int, WorkerLife] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.root = Root(make_directory(self.directory / "root"))
        self.machine = self.root.machine("local")
        self.queue = Queue(self.machine, "q")

    def clean(self, is_dry: bool = False, **rules: object) -> Report:
        return clean(self.root, self.machine, Rules(**rules), is_dry)  # type: ignore[arg-type]

    def submit(self, *names: str, controller: str | None = None, **given: object) -> list[Ticket]:
        tickets = [
            Ticket(
                name=name,
                command=("true",),
                directory=str(self.directory),
                controller=controller,
                **given,  # type: ignore[arg-type]
            )
            for name in names
        ]
        return self.submit_tickets(*tickets)

    def submit_tickets(self, *tickets: Ticket) -> list[Ticket]:
        """By hand."""
        if IS_NEXT:
            make_directory(self.machine.directory)
            return [submit(self.machine, "q", ticket) for ticket in tickets]
        return self.queue.submit(tickets)

    def worker(self, **given: object) -> int:
        """A worker that has died, unless `given` differs."""
        if IS_NEXT:
            return self._next_worker(**given)
        number = allocate_ids(self.machine, "worker", 1)[0]
        state = WorkerState(**self._facts(worker=number, updated=now(), **given))
        make_directory(self.machine.worker(number).directory)
        self.machine.worker(number).state.write_bytes(to_json(state.to_dict()))
        return number

    def _facts(self, **given: object) -> dict[str, Any]:
        fields = {
            "state": "running",
            "process": dead_process(),
            "node": this_node(),
            "queues": ("q",),
            "capacity": Capacity(100, 1000),
            "started": now(),
        }
        return {**fields, **given}

    def _next_worker(self, state: str = "", **given: object) -> int:
        make_directory(self.machine.workers)
        number = 1 + max(numbers_in(os.listdir(self.machine.workers)), default=0)
        facts = self._facts(until=None, controller=None, allocation=None, **given)
        told = {name: vars(each) if is_dataclass(each) else each for name, each in facts.items()}
        life = WorkerLife(self.layout, str(number), told)
        if state == "left":
            Path(life.paths.left).write_text('{"reason": "done", "ended": "now"}')
        self._lives[number] = life
        return number

    @property
    def layout(self) -> Layout:
        return Layout(str(self.machine.directory))

    def end(self, count: int, worker: int) -> None:
        """End the next jobs of the queue."""
        if IS_NEXT:
            claims = Claims(self.layout, "q", self._lives[worker])
            for name in claims.claim(lambda name, read, held: len(held) < count or None):
                Path(self.layout.run(name.run).log(name)).write_text("said\n")
                claims.finish(name, "success", {"exit_status": 0})
            list_jobs(self.machine, ended=True)  # notes ends
            return
        for claim in self.queue.claim(worker, lambda _: "take", limit=count):
            job = claim.ticket.job
            paths = self.machine.job(job)
            make_directory(paths.directory)
            paths.log.write_text("said\n")
            result = Result(
                *(job, claim.ticket.attempt, new_nonce(), worker, "node", "success", 0, None),
                *(now(), now(), str(paths.log)),
            )
            self.queue.finish(claim, result)

    def jobs(self) -> list[int]:
        """The jobs that have files, from 0 in the order of their submission."""
        if IS_NEXT:
            return sorted(int(each.name.run) - 1 for each in list_jobs(self.machine, ended=True))
        return sorted(int(path.name) for path in self.machine.jobs.glob("*/[0-9]*"))

    def make_jobs_old(self) -> None:
        next_ = (self.machine.runs, Path(self.layout.history))
        for path in next_ if IS_NEXT else (self.machine.jobs,):
            make_old(path)

    def names(self) -> list[str]:
        """Everything below KOCHI_ROOT except locks."""
        found = (path.relative_to(self.root.directory) for path in self.directory.glob("root/**/*"))
        return sorted(str(path) for path in found if "locks" not in path.parts)

    def project(self) -> ProjectPaths:
        repository = make_directory(self.directory / "project")
        return self.root.project(repository)
