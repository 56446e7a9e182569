"""The run summary: runners, useful share of the allocations, requests and usage of the rules."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from humanfriendly.text import pluralize

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.executor.rule_usage import CoreTime, Rules, RunnerCounts, Spent
from snakemake_kochi.files import is_there
from snakemake_kochi.packs import Packs
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.quantities import seconds_between
from snakemake_kochi.queue import Result, Ticket, WorkerState, find_worker, list_allocations
from snakemake_kochi.queue.entries import read_next
from snakemake_kochi.queue.result import find_attempt, read_ended_attempt, read_result
from snakemake_kochi.queue.ticket import now


class RunSummary:
    """Collects the data of ended jobs in a space that does not grow with their number."""

    def __init__(self, machine: MachinePaths, controller: str) -> None:
        self._machine = machine
        self._controller = controller
        self._runners = RunnerCounts()
        self._rules = Rules()
        self._useful: dict[int, Spent] = defaultdict(Spent)
        self._lost: dict[int, Spent] = defaultdict(Spent)

    def add(self, ticket: Ticket, result: Result) -> None:
        """Add a job that has ended."""
        self._runners.add(ticket, result.runner, result.job)
        self._add(ticket, result)

    def _add(self, ticket: Ticket, result: Result) -> None:
        if result.attempt > 1:
            self._add_earlier(ticket, result.attempt)
        seconds = seconds_between(result.started, result.ended)
        if result.worker is None or seconds is None:
            return
        (self._useful if result.ok else self._lost)[result.worker].add(ticket.resources, seconds)
        self._rules.add(ticket, result, seconds)

    def lines(self, first_worker: int | None, unreported: Iterable[Ticket] = ()) -> list[str]:
        """The lines of the run summary, when the workers have left.

        For workers on this computer they contain only what suggests a change. `first_worker`: the
        least number that one of the run's workers can have, None if there were no jobs.
        `unreported`: the jobs that have ended, if at all, without an `add`.
        """
        if first_worker is None:
            return []
        said = [ran] if (ran := self._runners.describe()) else []
        workers = self._workers(first_worker)
        allocated = [worker for worker in workers if worker.allocation is not None]
        requested: dict[str, str] = {}
        with contextlib.suppress(OSError):  # the summary omits what is not known now
            requested = {
                note.allocation: note.submitted
                for note in list_allocations(self._machine, self._controller)
            }
        began = {name for name in requested if self._began(name)}
        count = len(began | {worker.allocation for worker in allocated})
        if not requested and not count:
            return [*said, *self._rules.suggestions(in_allocations=False)]
        packs = Packs(self._machine)
        for ticket in unreported:
            with contextlib.suppress(OSError, DamagedFileError):
                path = self._machine.job(ticket.job).result
                self._add(ticket, read_result(path, packs.read_json))
        spent = sum((self._spent(worker, requested) for worker in allocated), CoreTime())
        said.append(f"{pluralize(count, 'allocation')}, {spent.describe()}")
        return [*said, *self._rules.lines(), *self._rules.suggestions()]

    # ---- workers

    def _add_earlier(self, ticket: Ticket, attempt: int) -> None:
        """Add the attempts before the last one, after which the ticket was requeued."""
        paths, packs = self._machine.job(ticket.job), Packs(self._machine)
        for number in range(1, attempt):
            with contextlib.suppress(OSError, DamagedFileError):
                began = find_attempt(paths, number, packs.read_json)
                ended = read_ended_attempt(paths.ended(number), packs.read_json)
                seconds = seconds_between(began.started, ended.ended)
                self._lost[began.worker].add(ticket.resources, seconds or 0.0)

    def _workers(self, first: int) -> Iterator[WorkerState]:
        last = first - 1
        with contextlib.suppress(OSError, DamagedFileError):
            last = read_next(self._machine, "worker") - 1
        for number in range(first, last + 1):
            with contextlib.suppress(OSError, KochiError):
                worker = find_worker(self._machine, number)
                if worker.controller == self._controller:
                    yield worker

    def _spent(self, worker: WorkerState, requested: Mapping[str, str]) -> CoreTime:
        end = worker.updated if worker.is_gone else now()
        there = seconds_between(worker.started, end) or 0.0
        began = worker.allocation_began or requested.get(worker.allocation or "")
        # A lost attempt ends when another node notices it: its worker was gone before that.
        useful = min(there, self._useful[worker.worker].of(worker.capacity.cores))
        lost = min(there - useful, self._lost[worker.worker].of(worker.capacity.cores))
        spent = CoreTime(
            useful=useful,
            idle=there - useful - lost,
            startup=seconds_between(began, worker.started) or 0.0,
            lost=lost,
        )
        return spent * (worker.capacity.cores * self._nodes(worker))

    def _began(self, allocation: str) -> bool:
        """Whether a requested allocation began: one that is cancelled before that costs nothing."""
        with contextlib.suppress(OSError):
            return is_there(self._machine.allocation_log(self._controller, allocation))
        return False

    def _nodes(self, worker: WorkerState) -> int:
        """The number of nodes of its allocation; one if the worker does not know it."""
        try:
            return max(1, len(self._machine.worker(worker.worker).hosts.read_text().splitlines()))
        except OSError:
            return 1
