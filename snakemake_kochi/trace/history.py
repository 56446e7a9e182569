"""The history of a run that has ended, goes on or was killed, read from disk."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain

from snakemake_kochi.allocation.notes import AllocationNote, list_allocations
from snakemake_kochi.base import files
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.runs import RunView
from snakemake_kochi.queue.views import Attempt, JobView, WorkerView, read_worker
from snakemake_kochi.tickets import history
from snakemake_kochi.tickets.moving import listing
from snakemake_kochi.tickets.names import Layout, Name, numbers_in
from snakemake_kochi.tickets.ticket import now

_BEGUN = re.compile(r"([\d-]+ [\d:,]+) INFO: job ([\w.@-]+) \(.*\) started")


@dataclass(frozen=True)
class JobHistory:
    """A job with all its attempts, in order. Its view has a ticket."""

    view: JobView
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True)
class RunHistory:
    """A run as it was at a `moment`.

    `goes_on`: whether it is alive. `workers`: those that it started, and those that ran its jobs.
    """

    run: RunView
    moment: str
    goes_on: bool
    jobs: tuple[JobHistory, ...]
    workers: tuple[WorkerView, ...]
    allocations: tuple[AllocationNote, ...]


def read_history(machine: MachinePaths, run: RunView) -> RunHistory:
    """Read the history of a run: its journal, its tickets, and the logs of its workers."""
    layout = machine.layout
    views = [view for view in _views_of(machine, layout, run) if view.ticket is not None]
    found = (read_worker(layout, number) for number in numbers_in(listing(layout.workers)))
    known = {worker.worker: worker for worker in found if worker is not None}
    had = {attempt.worker for view in views for attempt in view.attempts}
    own = {number for number, each in known.items() if each.controller == run.controller}
    workers = [known[number] for number in sorted(known.keys() & (had | own))]
    begun: dict[tuple[int, int], dict[int, Attempt]] = {}
    for worker in workers:
        for name, attempt in _begun(layout, worker):
            begun.setdefault(name.key, {})[name.attempt] = attempt
    return RunHistory(
        run=run,
        moment=now(),
        goes_on=run.state == "running",
        jobs=tuple(
            JobHistory(view, tuple(_attempts(view, begun.get(view.name.key, {})))) for view in views
        ),
        workers=tuple(workers),
        allocations=tuple(list_allocations(machine, run.controller)),
    )


def _views_of(machine: MachinePaths, layout: Layout, run: RunView) -> Iterator[JobView]:
    """The jobs of a run, and those that it waited for."""
    number, known = run.number, {}
    # In the order in which a job moves: a later place counts.
    places = chain(
        history.living(layout, lambda name: name.run == number),
        history.in_inbox(layout, number),
        history.ended_in(layout, number),
    )
    for view in places:
        known[view.name.key] = view
    return (JobView(machine, known[key]) for key in sorted(known))


def _begun(layout: Layout, worker: WorkerView) -> Iterator[tuple[Name, Attempt]]:
    """The attempts that a worker began, as its log says. Of those that it took with it when it
    died, nothing else does."""
    with suppress(FileNotFoundError):
        text = files.read(layout.worker(str(worker.worker)).log).decode("utf-8", "replace")
        for match in _BEGUN.finditer(text):
            if (name := Name.parse(match[2])) is not None:
                moment = datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S,%f").astimezone()
                own = (worker.node.host, moment.isoformat())
                yield name, Attempt(name.attempt, worker.worker, "lost", *own, cause="lost")


def _attempts(view: JobView, begun: dict[int, Attempt]) -> list[Attempt]:
    own = {attempt.attempt: attempt for attempt in view.attempts}
    for number, attempt in begun.items():
        known = own.get(number, attempt)
        own[number] = known if known.started else replace(known, started=attempt.started)
    return [own[number] for number in sorted(own)]
