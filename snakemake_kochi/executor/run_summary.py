"""The run summary: runners, useful share of the allocations, requests and usage of the rules."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from humanfriendly.text import pluralize

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.executor.rule_usage import CoreTime, RuleUsage, Spent
from snakemake_kochi.executor.tickets import RUNNERS
from snakemake_kochi.files import is_there
from snakemake_kochi.packs import Packs
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import Result, Ticket, WorkerState, find_worker, list_allocations
from snakemake_kochi.queue.entries import read_next
from snakemake_kochi.queue.result import find_attempt, read_ended_attempt, read_result
from snakemake_kochi.queue.ticket import now

_MOST_RULES = 4
_MOST_SUGGESTIONS = 4


class _RunnerCounts:
    """Counts jobs by runner, and by the reason why a faster runner did not execute them."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {name: Counter() for name in RUNNERS}
        self._examples: dict[str, int] = {}

    def add(self, ticket: Ticket, result: Result) -> None:
        if result.runner in self._counts:
            chosen, reason = ticket.labels.get("runner", ""), ticket.labels.get("runner_reason", "")
            if chosen != result.runner:
                # The worker knows the reason for each job.
                example = self._examples.setdefault(chosen, result.job)
                reason = f"not by {chosen}: see kochi show job {example}"
            self._counts[result.runner][reason] += 1

    def describe(self) -> str:
        """A text such as "kochi ran 12 jobs: 10 by shell, 2 by zygote (2 script)".

        It is "" without jobs.
        """
        total = sum(counts.total() for counts in self._counts.values())
        parts = []
        for name, counts in self._counts.items():
            if counts:
                whys = [f"{count} {why}" for why, count in counts.most_common() if why]
                parts.append(f"{counts.total()} by {name}" + (f" ({', '.join(whys)})" * bool(whys)))
        return f"kochi ran {pluralize(total, 'job')}: {', '.join(parts)}" if parts else ""


class RunSummary:
    """Collects the data of ended jobs in a space that does not grow with their number."""

    def __init__(self, machine: MachinePaths, controller: str) -> None:
        self._machine = machine
        self._controller = controller
        self._runners = _RunnerCounts()
        self._rules: dict[str, RuleUsage] = defaultdict(RuleUsage)
        self._useful: dict[int, Spent] = defaultdict(Spent)
        self._lost: dict[int, Spent] = defaultdict(Spent)

    def add(self, ticket: Ticket, result: Result) -> None:
        """Add a job that has ended."""
        self._runners.add(ticket, result)
        self._add(ticket, result)

    def _add(self, ticket: Ticket, result: Result) -> None:
        if result.attempt > 1:
            self._add_earlier(ticket, result.attempt)
        seconds = _seconds_between(result.started, result.ended)
        if result.worker is None or seconds is None:
            return
        (self._useful if result.ok else self._lost)[result.worker].add(ticket.resources, seconds)
        rule = ticket.labels.get("rule", ticket.name)
        self._rules[rule].add(ticket.resources, result, seconds)

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
            return [*said, *self._suggestions(in_allocations=False)]
        packs = Packs(self._machine)
        for ticket in unreported:
            with contextlib.suppress(OSError, DamagedFileError):
                path = self._machine.job(ticket.job).result
                self._add(ticket, read_result(path, packs.read_json))
        spent = sum((self._spent(worker, requested) for worker in allocated), CoreTime())
        said.append(f"{pluralize(count, 'allocation')}, {spent.describe()}")
        return [*said, *self._of_rules(), *self._suggestions()]

    # ---- workers

    def _add_earlier(self, ticket: Ticket, attempt: int) -> None:
        """Add the attempts before the last one, after which the ticket was requeued."""
        paths, packs = self._machine.job(ticket.job), Packs(self._machine)
        for number in range(1, attempt):
            with contextlib.suppress(OSError, DamagedFileError):
                began = find_attempt(paths, number, packs.read_json)
                ended = read_ended_attempt(paths.ended(number), packs.read_json)
                seconds = _seconds_between(began.started, ended.ended)
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
        there = _seconds_between(worker.started, end) or 0.0
        began = worker.allocation_began or requested.get(worker.allocation or "")
        # A lost attempt ends when another node notices it: its worker was gone before that.
        useful = min(there, self._useful[worker.worker].of(worker.capacity.cores))
        lost = min(there - useful, self._lost[worker.worker].of(worker.capacity.cores))
        spent = CoreTime(
            useful=useful,
            idle=there - useful - lost,
            startup=_seconds_between(began, worker.started) or 0.0,
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

    # ---- rules

    def _by_time(self) -> list[tuple[str, RuleUsage]]:
        return sorted(self._rules.items(), key=lambda item: -item[1].core_seconds)

    def _of_rules(self) -> Iterator[str]:
        rules = self._by_time()
        if rules:
            yield "median and maximum used per job (memory: of its largest single process):"
        for name, usage in rules[:_MOST_RULES]:
            yield f"    {name}: {usage.describe()}"
        if len(rules) > _MOST_RULES:
            yield f"    and {pluralize(len(rules) - _MOST_RULES, 'other rule')}"

    def _suggestions(self, in_allocations: bool = True) -> Iterator[str]:
        found = [
            f"rule {name}: {suggestion}"
            for name, usage in self._by_time()
            for suggestion in usage.suggestions(in_allocations)
        ]
        yield from found[:_MOST_SUGGESTIONS]
        if len(found) > _MOST_SUGGESTIONS:
            yield f"and {pluralize(len(found) - _MOST_SUGGESTIONS, 'more suggestion')}"


def _seconds_between(start: str | None, end: str | None) -> float | None:
    """The seconds between two ISO 8601 times, at least 0; None if one is not such a time."""
    try:
        span = datetime.fromisoformat(end or "") - datetime.fromisoformat(start or "")
    except (ValueError, TypeError):
        return None
    return max(0.0, span.total_seconds())
