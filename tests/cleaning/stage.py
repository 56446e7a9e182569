"""A machine with jobs, and what was long ago."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

from snakemake_kochi.cleaning.clean import Report, clean
from snakemake_kochi.files import make_directory
from snakemake_kochi.paths import MachinePaths, ProjectPaths, Root
from snakemake_kochi.processes import ProcessIdentity, this_node
from snakemake_kochi.project.clean_rules import Rules
from snakemake_kochi.queue.by_hand import submit
from snakemake_kochi.queue.runs import facts_of_run
from snakemake_kochi.queue.views import list_jobs
from snakemake_kochi.tickets.capacity import Capacity
from snakemake_kochi.tickets.claims import Claims, WorkerLife
from snakemake_kochi.tickets.names import Layout, numbers_in
from snakemake_kochi.tickets.run import Run
from snakemake_kochi.tickets.ticket import Ticket, now

DAY = 86400.0


def dead_process() -> ProcessIdentity:
    """One that has been there and is gone."""
    process = subprocess.Popen(["true"], start_new_session=True)
    identity = ProcessIdentity.of(process.pid)
    process.wait()
    assert identity is not None
    return identity


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
    _lives: dict[int, WorkerLife] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.root = Root(make_directory(self.directory / "root"))
        self.machine = self.root.machine("local")

    def clean(self, is_dry: bool = False, **rules: object) -> Report:
        return clean(self.root, self.machine, Rules(**rules), is_dry)  # type: ignore[arg-type]

    def submit(self, *names: str, **given: object) -> list[Ticket]:
        tickets = [
            Ticket(
                name=name,
                command=("true",),
                directory=str(self.directory),
                **given,  # type: ignore[arg-type]
            )
            for name in names
        ]
        return self.submit_tickets(*tickets)

    def submit_tickets(self, *tickets: Ticket) -> list[Ticket]:
        """By hand."""
        make_directory(self.machine.directory)
        return [submit(self.machine, "q", ticket) for ticket in tickets]

    def worker(self, **given: object) -> int:
        """A worker that has died, unless `given` differs."""
        return self._next_worker(**given)

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
        return self.machine.layout

    def end(self, count: int, worker: int) -> None:
        """End the next jobs of the queue."""
        claims = Claims(self.layout, "q", self._lives[worker])
        for name in claims.claim(lambda name, read, held: len(held) < count or None):
            Path(self.layout.run(name.run).log(name)).write_text("said\n")
            claims.finish(name, "success", {"exit_status": 0})
        list_jobs(self.machine, ended=True)  # notes ends

    def jobs(self) -> list[int]:
        """The jobs that have files, from 0 in the order of their submission."""
        views = list_jobs(self.machine, ended=True)
        return sorted(view.name.run - 1 for view in views if view.state == "ended")

    def make_jobs_old(self) -> None:
        for path in (self.layout.runs, self.layout.history):
            make_old(Path(path))

    def run(self, process: ProcessIdentity | None = None) -> Run:
        """A run on tickets; of this process, unless another one is given."""
        own = process or ProcessIdentity.of(os.getpid())
        assert own is not None
        make_directory(self.machine.directory)
        facts = facts_of_run(None, None) | {"process": vars(own)}
        return Run.begin(self.layout, str(self.directory), facts)

    def names(self) -> list[str]:
        """Everything below KOCHI_ROOT except locks."""
        found = (path.relative_to(self.root.directory) for path in self.directory.glob("root/**/*"))
        return sorted(str(path) for path in found if "locks" not in path.parts)

    def project(self) -> ProjectPaths:
        repository = make_directory(self.directory / "project")
        return self.root.project(repository)
