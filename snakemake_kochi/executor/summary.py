"""The run summary: runners, useful share of the allocations, requests and usage of the rules."""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median

from humanfriendly.text import pluralize

from snakemake_kochi.executor.ends import details_of, number_of
from snakemake_kochi.executor.tickets import RUNNERS
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.quantities import seconds_between
from snakemake_kochi.queue.views import Attempt, WorkerView, read_worker
from snakemake_kochi.tickets.moving import listing
from snakemake_kochi.tickets.names import numbers_in
from snakemake_kochi.tickets.run import End
from snakemake_kochi.tickets.ticket import Resources, Ticket, now

_MOST_RULES = 4
_MOST_SUGGESTIONS = 4
# A suggestion needs this ratio of request to usage, and a minimal difference: in MiB, in seconds,
# and in seconds of all cores together.
_MUCH_MEMORY, _LEAST_MEMORY = 2, 1024
_MUCH_TIME, _LEAST_TIME = 4, 600.0
_MUCH_CORES, _LEAST_CORE_SECONDS = 2, 600.0
# The headroom in a suggestion, and the step to which memory is rounded.
_MEMORY_HEADROOM, _MEMORY_STEP = 1.25, 100
_TIME_HEADROOM, _LEAST_MINUTES = 2, 5
_AMOUNTS = ("cores", "memory", "seconds")


class Summary:
    """Collects what ended jobs used: some numbers for each."""

    def __init__(self, machine: MachinePaths, run: int) -> None:
        """At the beginning of a run. Raises OSError."""
        self._layout = machine.layout
        self._run = str(run)
        self._first = 1 + max(numbers_in(listing(self._layout.workers)), default=-1)
        # How many jobs a runner executed, by the reason why a faster one did not.
        self._runners: dict[str, Counter[str]] = {name: Counter() for name in RUNNERS}
        self._examples: dict[str, str] = {}
        self._rules: dict[str, RuleUsage] = defaultdict(RuleUsage)
        # By worker, and whether an attempt succeeded: the seconds of its cores, and of all of it.
        self._spent: dict[tuple[int, bool], list[float]] = defaultdict(lambda: [0.0, 0.0])

    def add(self, ticket: Ticket, end: End, is_reported: bool = True) -> None:
        """Add a job that has ended."""
        if is_reported:
            self._count(ticket, details_of(end).get("runner", ""), number_of(end))
        for line in end.line.get("earlier", ()):
            self._spend(ticket, Attempt.of_line(line, line["attempt"], line["worker"], "waiting"))
        last = Attempt.of_line(end.line, end.name.attempt, end.name.worker, end.name.state)
        if (seconds := self._spend(ticket, last)) is not None:
            rule = ticket.labels.get("rule", ticket.name)
            self._rules[rule].add(ticket.resources, last, seconds)

    def _count(self, ticket: Ticket, runner: str, job: str) -> None:
        if runner in self._runners:
            chosen, reason = ticket.labels.get("runner", ""), ticket.labels.get("runner_reason", "")
            if chosen != runner:  # the worker knows the reason for each job
                example = self._examples.setdefault(chosen, job)
                reason = f"not by {chosen}: see kochi show job {example}"
            self._runners[runner][reason] += 1

    def _spend(self, ticket: Ticket, attempt: Attempt) -> float | None:
        seconds = seconds_between(attempt.started, attempt.ended)
        if attempt.worker is None or seconds is None:
            return None
        spent = self._spent[attempt.worker, attempt.ok]
        if ticket.resources.exclusive:
            spent[1] += seconds
        else:
            spent[0] += seconds * ticket.resources.cores
        return seconds

    def lines(self) -> list[str]:
        """The lines of the run summary, when the workers have left.

        For workers on this computer they contain only what suggests a change.
        """
        said = [ran] if (ran := self._ran()) else []
        allocated = [worker for worker in self._workers() if worker.allocation is not None]
        if not allocated:
            return [*said, *self._suggestions(in_allocations=False)]
        count = len({worker.allocation for worker in allocated})
        total: Counter[str] = Counter()
        for worker in allocated:
            total.update(self._core_seconds(worker))
        said.append(f"{pluralize(count, 'allocation')}, {_shares(total)}")
        return [*said, *self._usage(), *self._suggestions(in_allocations=True)]

    def _ran(self) -> str:
        """A text such as "kochi ran 12 jobs: 10 by shell, 2 by zygote (2 script)"; "" for none."""
        parts = []
        for name, counts in self._runners.items():
            if counts:
                whys = [f"{count} {why}" for why, count in counts.most_common() if why]
                parts.append(f"{counts.total()} by {name}" + (f" ({', '.join(whys)})" * bool(whys)))
        total = sum(counts.total() for counts in self._runners.values())
        return f"kochi ran {pluralize(total, 'job')}: {', '.join(parts)}" if parts else ""

    # ---- workers

    def _workers(self) -> Iterator[WorkerView]:
        with suppress(OSError):  # the summary omits what is not known now
            for number in numbers_in(listing(self._layout.workers)):
                if number >= self._first:
                    worker = read_worker(self._layout, number)
                    if worker is not None and worker.controller == self._run:
                        yield worker

    def _core_seconds(self, worker: WorkerView) -> dict[str, float]:
        """The core-seconds of its allocation, of all cores on each of its nodes.

        "useful": successful attempts, by the share of the worker's cores that they had. "lost":
        likewise, all other attempts. "start-up": from the beginning of the allocation, or its
        request if that is not known, to the worker's registration. "idle": the rest of its time.
        """
        cores = worker.capacity.cores
        end = worker.updated if worker.is_gone else now()
        there = seconds_between(worker.started, end) or 0.0
        useful, lost = (
            self._spent[worker.worker, ok][1] + self._spent[worker.worker, ok][0] / max(1, cores)
            for ok in (True, False)
        )
        useful = min(there, useful)
        lost = min(there - useful, lost)
        start = seconds_between(worker.began, worker.started) or 0.0
        found = {"useful": useful, "idle": there - useful - lost, "start-up": start, "lost": lost}
        nodes = 1  # unless it knows those of its allocation
        with suppress(OSError):
            hosts = Path(self._layout.worker(worker.worker).hosts)
            nodes = max(1, len(hosts.read_text().splitlines()))
        return {name: seconds * cores * nodes for name, seconds in found.items()}

    # ---- rules

    def _by_time(self) -> list[tuple[str, RuleUsage]]:
        return sorted(self._rules.items(), key=lambda item: -item[1].core_seconds)

    def _usage(self) -> Iterator[str]:
        rules = self._by_time()
        if rules:
            yield "median and maximum used per job (memory: of its largest single process):"
        for name, usage in rules[:_MOST_RULES]:
            yield f"    {name}: {usage.describe()}"
        if len(rules) > _MOST_RULES:
            yield f"    and {pluralize(len(rules) - _MOST_RULES, 'other rule')}"

    def _suggestions(self, in_allocations: bool) -> Iterator[str]:
        found = [
            f"rule {name}: {suggestion}"
            for name, usage in self._by_time()
            for suggestion in usage.suggestions(in_allocations)
        ]
        yield from found[:_MOST_SUGGESTIONS]
        if len(found) > _MOST_SUGGESTIONS:
            yield f"and {pluralize(len(found) - _MOST_SUGGESTIONS, 'more suggestion')}"


def _shares(spent: Mapping[str, float]) -> str:
    """A text such as "0.53 core-hours: 75 % useful, 20 % idle, 4 % start-up, 1 % lost"."""
    total = sum(spent.values())
    if total <= 0:
        return "no core-hours"
    said = ", ".join(f"{100 * part / total:.0f} % {name}" for name, part in spent.items())
    return f"{total / 3600:.3g} core-hours: {said}"


class RuleUsage:
    """What the jobs of a rule requested, and what the successful ones and the failed ones used.

    Memory is in MiB, times are in seconds. A missing request is 0. Suggestions need what successful
    jobs used: a failed one may have stopped half-way.
    """

    def __init__(self) -> None:
        self.jobs = self.failed = 0
        self.core_seconds = 0.0
        self._has_exclusive = False
        self._requested: dict[str, set[float]] = {name: set() for name in _AMOUNTS}
        self._used: dict[str, array[float]] = {name: array("d") for name in _AMOUNTS}
        self._failed_most = (-1.0, -1.0)  # CPU seconds, memory

    def add(self, requested: Resources, result: Attempt, seconds: float) -> None:
        """Add a job; `seconds`: how long it ran."""
        cpu, memory = result.cpu_seconds, result.peak_memory_mb
        self.jobs += 1
        self.core_seconds += requested.cores * seconds
        self._has_exclusive |= requested.exclusive
        self._requested["cores"].add(requested.cores)
        self._requested["memory"].add(requested.memory_mb or 0)
        self._requested["seconds"].add(requested.runtime_seconds or 0)
        if result.ok:
            self._used["seconds"].append(seconds)
            if memory is not None:
                self._used["memory"].append(memory)
            if cpu is not None and seconds > 0:
                self._used["cores"].append(cpu / seconds)
        elif result.state == "failed":
            self.failed += 1
            if cpu is not None and memory is not None:
                most = self._failed_most
                self._failed_most = max(most[0], cpu), max(most[1], memory)

    def describe(self) -> str:
        """A text on requests and usage, with the median and the maximum that a job used.

        For example "100 jobs; 3.8, 3.9 of 4 cores; 2000, 2100 of 16000 MiB; 3:10, 5:00 of 2:00:00;
        2 failed with at most 4:50 CPU, 16100 MiB".
        """
        cores = " core" if max(self._requested["cores"]) == 1 else " cores"
        whole = "{:.0f}".format
        parts = [
            pluralize(self.jobs, "job"),
            self._amount("cores", "{:.1f}".format, whole, cores),
            self._amount("memory", whole, whole, " MiB"),
            self._amount("seconds", clock, clock, ""),
        ]
        if self.failed:
            cpu, memory = self._failed_most
            used = f" with at most {clock(cpu)} CPU, {memory:.0f} MiB" if memory >= 0 else ""
            parts.append(f"{self.failed} failed{used}")
        return "; ".join(filter(None, parts))

    def _amount(
        self,
        name: str,
        show_used: Callable[[float], str],
        show_asked: Callable[[float], str],
        unit: str,
    ) -> str:
        if not (used := self._used[name]):
            return ""
        text = f"{show_used(median(used))}, {show_used(max(used))}"
        least, most = min(self._requested[name]), max(self._requested[name])
        if most > 0:
            lower = "" if least == most else f"{show_asked(least)} to "
            text += f" of {lower}{show_asked(most)}"
        return text + unit

    def suggestions(self, in_allocations: bool) -> Iterator[str]:
        """Suggestions if all jobs requested the same, and much more than any of them used.

        It suggests times only `in_allocations`: to workers on this computer a time is no more than
        a limit.
        """
        for name, suggest in (
            ("memory", self._of_memory),
            ("seconds", self._of_time if in_allocations else None),
            ("cores", None if self._has_exclusive else self._of_cores),
        ):
            if suggest is not None and len(self._requested[name]) == 1 and self._used[name]:
                (requested,) = self._requested[name]
                if requested and (said := suggest(requested, max(self._used[name]))):
                    yield said

    def _of_memory(self, requested: float, most: float) -> str:
        enough = _MEMORY_STEP * math.ceil(max(most, 1) * _MEMORY_HEADROOM / _MEMORY_STEP)
        if requested <= _MUCH_MEMORY * most or requested - enough <= _LEAST_MEMORY:
            return ""
        # A job of many processes takes more than the largest one of them.
        return (
            f"requested {requested:.0f} MiB, its largest process used at most {most:.0f}: "
            f"mem_mb={enough} is enough if the job has no other process of that size"
        )

    def _of_time(self, requested: float, most: float) -> str:
        if requested <= _MUCH_TIME * most or requested - most <= _LEAST_TIME:
            return ""
        enough = max(_LEAST_MINUTES, math.ceil(_TIME_HEADROOM * most / 60))
        took = f"took at most {clock(most)}"
        return f"requested {clock(requested)}, {took}: runtime={enough} is enough"

    def _of_cores(self, requested: float, most: float) -> str:
        enough = max(1, math.ceil(most - 0.1))
        idle = self.core_seconds * (1 - enough / requested)
        if requested < _MUCH_CORES * enough or idle <= _LEAST_CORE_SECONDS:
            return ""
        kept = f"kept at most {most:.1f} busy"
        return f"requested {requested:.0f} cores, {kept}: threads={enough} is enough"


def clock(seconds: float) -> str:
    """A duration as "2:05:00" or "5:00"; "1.25 s" below a minute."""
    if seconds < 60:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
