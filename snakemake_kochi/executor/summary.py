"""The run summary: runners, useful share of the allocations, requests and usage of the rules."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from humanfriendly.text import pluralize

from snakemake_kochi.executor.ends import details_of, number_of
from snakemake_kochi.executor.rule_usage import CoreTime, RuleUsage, Spent
from snakemake_kochi.executor.tickets import RUNNERS
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.views import Attempt, WorkerView, layout_of, read_worker
from snakemake_kochi.tickets.moving import listing
from snakemake_kochi.tickets.names import numbers_in
from snakemake_kochi.tickets.run import End
from snakemake_kochi.tickets.ticket import Ticket, now

_MOST_RULES = 4
_MOST_SUGGESTIONS = 4


class Summary:
    """Collects the data of ended jobs in a space that does not grow with their number."""

    def __init__(self, machine: MachinePaths, run: int) -> None:
        """At the beginning of a run. Raises OSError."""
        self._layout = layout_of(machine)
        self._run = str(run)
        self._first = 1 + max(numbers_in(listing(self._layout.workers)), default=-1)
        self._runners = _RunnerCounts()
        self._rules: dict[str, RuleUsage] = defaultdict(RuleUsage)
        self._useful: dict[int, Spent] = defaultdict(Spent)
        self._lost: dict[int, Spent] = defaultdict(Spent)

    def add(self, ticket: Ticket, end: End, is_reported: bool = True) -> None:
        """Add a job that has ended."""
        if is_reported:
            self._runners.add(ticket, end)
        for line in end.line.get("earlier", ()):
            self._spend(ticket, Attempt.of_line(line, line["attempt"], line["worker"], "waiting"))
        last = Attempt.of_line(end.line, end.name.attempt, end.name.worker, end.name.state)
        if (seconds := self._spend(ticket, last)) is not None:
            rule = ticket.labels.get("rule", ticket.name)
            self._rules[rule].add(ticket.resources, last, seconds)

    def _spend(self, ticket: Ticket, attempt: Attempt) -> float | None:
        seconds = _seconds_between(attempt.started, attempt.ended)
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
            return [*said, *self._suggestions(in_allocations=False)]
        count = len({worker.allocation for worker in allocated})
        spent = sum(map(self._spent, allocated), CoreTime())
        said.append(f"{pluralize(count, 'allocation')}, {spent.describe()}")
        return [*said, *self._of_rules(), *self._suggestions()]

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
        there = _seconds_between(worker.started, end) or 0.0
        cores = worker.capacity.cores
        useful = min(there, self._useful[worker.worker].of(cores))
        lost = min(there - useful, self._lost[worker.worker].of(cores))
        spent = CoreTime(
            useful=useful,
            idle=there - useful - lost,
            startup=_seconds_between(worker.began, worker.started) or 0.0,
            lost=lost,
        )
        return spent * (cores * self._nodes(worker))

    def _nodes(self, worker: WorkerView) -> int:
        """The number of nodes of its allocation; one if the worker does not know it."""
        hosts = Path(self._layout.worker(str(worker.worker)).directory, "hosts")
        try:
            return max(1, len(hosts.read_text().splitlines()))
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


class _RunnerCounts:
    """Counts jobs by runner, and by the reason why a faster runner did not execute them."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {name: Counter() for name in RUNNERS}
        self._examples: dict[str, str] = {}

    def add(self, ticket: Ticket, end: End) -> None:
        if (runner := details_of(end).get("runner", "")) not in self._counts:
            return
        chosen, reason = ticket.labels.get("runner", ""), ticket.labels.get("runner_reason", "")
        if chosen != runner:
            # The worker knows the reason for each job.
            example = self._examples.setdefault(chosen, number_of(end))
            reason = f"not by {chosen}: see kochi show job {example}"
        self._counts[runner][reason] += 1

    def describe(self) -> str:
        """A text such as "kochi ran 12 jobs: 10 by shell, 2 by zygote (2 script)"; "" for none."""
        total = sum(counts.total() for counts in self._counts.values())
        parts = []
        for name, counts in self._counts.items():
            if counts:
                whys = [f"{count} {why}" for why, count in counts.most_common() if why]
                parts.append(f"{counts.total()} by {name}" + (f" ({', '.join(whys)})" * bool(whys)))
        return f"kochi ran {pluralize(total, 'job')}: {', '.join(parts)}" if parts else ""


def _seconds_between(start: str | None, end: str | None) -> float | None:
    """The seconds between two ISO 8601 times, at least 0; None if one is not such a time."""
    try:
        span = datetime.fromisoformat(end or "") - datetime.fromisoformat(start or "")
    except (ValueError, TypeError):
        return None
    return max(0.0, span.total_seconds())
