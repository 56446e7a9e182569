"""A machine with jobs, and what was long ago."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from faults.stage import dead_process

from snakemake_kochi.cleaning.clean import Report, clean
from snakemake_kochi.files import make_directory, to_json
from snakemake_kochi.paths import MachinePaths, ProjectPaths, Root
from snakemake_kochi.processes import this_node
from snakemake_kochi.project.clean_rules import Rules
from snakemake_kochi.queue import Capacity, Queue, Ticket, WorkerState, allocate_ids
from snakemake_kochi.queue.result import Result, new_nonce
from snakemake_kochi.queue.ticket import now

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
        return self.queue.submit(tickets)

    def worker(self, **given: object) -> int:
        """A worker that has died, unless `given` differs."""
        number = allocate_ids(self.machine, "worker", 1)[0]
        fields = {
            "worker": number,
            "state": "running",
            "process": dead_process(),
            "node": this_node(),
            "queues": ("q",),
            "capacity": Capacity(100, 1000),
            "started": now(),
            "updated": now(),
        }
        state = WorkerState(**{**fields, **given})  # type: ignore[arg-type]
        make_directory(self.machine.worker(number).directory)
        self.machine.worker(number).state.write_bytes(to_json(state.to_dict()))
        return number

    def end(self, count: int, worker: int) -> None:
        """End the next jobs of the queue."""
        claims = self.queue.claim(worker, lambda _: "take", limit=count)
        for claim in claims:
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
        """The jobs that have files."""
        return sorted(int(path.name) for path in self.machine.jobs.glob("*/[0-9]*"))

    def names(self) -> list[str]:
        """Everything below KOCHI_ROOT except locks."""
        found = (path.relative_to(self.root.directory) for path in self.directory.glob("root/**/*"))
        return sorted(str(path) for path in found if "locks" not in path.parts)

    def project(self) -> ProjectPaths:
        repository = make_directory(self.directory / "project")
        return self.root.project(repository)
