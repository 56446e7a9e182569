"""The run summary: runners, useful share of the allocations, requests and usage of the rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from humanfriendly.text import pluralize

from snakemake_kochi.executor.ends import details_of, number_of
from snakemake_kochi.executor.rule_usage import CoreTime, Rules, RunnerCounts, Spent
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.quantities import seconds_between
from snakemake_kochi.queue.views import Attempt, WorkerView, read_worker
from snakemake_kochi.tickets.moving import listing
from snakemake_kochi.tickets.names import numbers_in
from snakemake_kochi.tickets.run import End
from snakemake_kochi.tickets.ticket import Ticket, now


class Summary:
    """Collects the data of ended jobs in a space that does not grow with their number."""

    def __init__(self, machine: MachinePaths, run: int) -> None:
        """At the beginning of a run. Raises OSError."""
        self._layout = machine.layout
        self._run = str(run)
        self._first = 1 + max(numbers_in(listing(self._layout.workers)), default=-1)
        self._runners = RunnerCounts()
        self._rules = Rules()
        self._useful: dict[int, Spent] = defaultdict(Spent)
        self._lost: dict[int, Spent] = defaultdict(Spent)

    def add(self, ticket: Ticket, end: End, is_reported: bool = True) -> None:
        """Add a job that has ended."""
        if is_reported:
            self._runners.add(ticket, details_of(end).get("runner", ""), number_of(end))
        for line in end.line.get("earlier", ()):
            self._spend(ticket, Attempt.of_line(line, line["attempt"], line["worker"], "waiting"))
        last = Attempt.of_line(end.line, end.name.attempt, end.name.worker, end.name.state)
        if (seconds := self._spend(ticket, last)) is not None:
            self._rules.add(ticket, last, seconds)

    def _spend(self, ticket: Ticket, attempt: Attempt) -> float | None:
        seconds = seconds_between(attempt.started, attempt.ended)
        if attempt.worker is not None and seconds is not None:
            kind = self._useful if attempt.ok else self._lost
            kind[attempt.worker].add(ticket.resources, seconds)
            return seconds
        return None

    def lines(self) -> list[str]:
        """The lines of the run summary, when the workers have left.

        For workers on this computer they contain only what suggests a change.
        """
        said = [ran] if (ran := self._runners.describe()) else []
        allocated = [worker for worker in self._workers() if worker.allocation is not None]
        if not allocated:
            return [*said, *self._rules.suggestions(in_allocations=False)]
        count = len({worker.allocation for worker in allocated})
        spent = sum(map(self._spent, allocated), CoreTime())
        said.append(f"{pluralize(count, 'allocation')}, {spent.describe()}")
        return [*said, *self._rules.lines(), *self._rules.suggestions()]

    # ---- workers

    def _workers(self) -> Iterator[WorkerView]:
        with suppress(OSError):  # the summary omits what is not known now
            for number in numbers_in(listing(self._layout.workers)):
                if number >= self._first:
                    worker = read_worker(self._layout, number)
                    if worker is not None and worker.controller == self._run:
                        yield worker

    def _spent(self, worker: WorkerView) -> CoreTime:
        end = worker.updated if worker.is_gone else now()
        there = seconds_between(worker.started, end) or 0.0
        cores = worker.capacity.cores
        useful = min(there, self._useful[worker.worker].of(cores))
        lost = min(there - useful, self._lost[worker.worker].of(cores))
        spent = CoreTime(
            useful=useful,
            idle=there - useful - lost,
            startup=seconds_between(worker.began, worker.started) or 0.0,
            lost=lost,
        )
        return spent * (cores * self._nodes(worker))

    def _nodes(self, worker: WorkerView) -> int:
        """The number of nodes of its allocation; one if the worker does not know it."""
        hosts = Path(self._layout.worker(worker.worker).hosts)
        try:
            return max(1, len(hosts.read_text().splitlines()))
        except OSError:
            return 1
