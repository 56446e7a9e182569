"""What jobs requested and used: core time, runners, rules, and suggestions for smaller requests."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

from humanfriendly.text import pluralize

from snakemake_kochi.executor.tickets import RUNNERS
from snakemake_kochi.tickets.ticket import Resources, Ticket

_MOST_VALUES = 1000
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


@dataclass(frozen=True)
class CoreTime:
    """Core-seconds of the workers' allocations.

    All cores of an allocation count, on each of its nodes. `useful`: successful attempts, by the
    share of the worker's cores that they had. `lost`: likewise, all other attempts: failed,
    cancelled, drained, preempted, or lost and repeated. `startup`: from the beginning of an
    allocation, or from its request if the beginning is not known, to the registration of its
    worker. `idle`: the rest of the workers' time.
    """

    useful: float = 0.0
    idle: float = 0.0
    startup: float = 0.0
    lost: float = 0.0

    def __add__(self, other: CoreTime) -> CoreTime:
        return CoreTime(
            self.useful + other.useful,
            self.idle + other.idle,
            self.startup + other.startup,
            self.lost + other.lost,
        )

    def __mul__(self, cores: int) -> CoreTime:
        return CoreTime(
            self.useful * cores, self.idle * cores, self.startup * cores, self.lost * cores
        )

    def describe(self) -> str:
        """A text such as "0.53 core-hours: 75 % useful, 20 % idle, 4 % start-up, 1 % lost"."""
        parts = {
            "useful": self.useful,
            "idle": self.idle,
            "start-up": self.startup,
            "lost": self.lost,
        }
        total = sum(parts.values())
        if total <= 0:
            return "no core-hours"
        said = ", ".join(f"{100 * part / total:.0f} % {name}" for name, part in parts.items())
        return f"{total / 3600:.3g} core-hours: {said}"


@dataclass
class Spent:
    """The time of some attempts of a worker, in seconds: of one core, and of the whole worker."""

    of_cores: float = 0.0
    of_all: float = 0.0

    def add(self, resources: Resources, seconds: float) -> None:
        if resources.exclusive:
            self.of_all += seconds
        else:
            self.of_cores += seconds * resources.cores

    def of(self, cores: int) -> float:
        """In seconds of a whole worker with so many cores."""
        return self.of_all + self.of_cores / max(1, cores)


class Ended(Protocol):
    """How a job ended."""

    @property
    def ok(self) -> bool: ...

    @property
    def state(self) -> str: ...

    @property
    def peak_memory_mb(self) -> int | None: ...

    @property
    def cpu_seconds(self) -> float | None: ...


class Range:
    """The minimum and the maximum of some numbers."""

    def __init__(self) -> None:
        self.least = math.inf
        self.most = -math.inf

    def add(self, value: float) -> None:
        self.least = min(self.least, value)
        self.most = max(self.most, value)

    @property
    def only(self) -> float | None:
        """The number that all of them were; None if they differ, and if there are none."""
        return self.most if self.least == self.most else None


class Sample(Range):
    """The maximum of many numbers and nearly their median, in the memory of a few.

    When it holds too many numbers it drops every second one, and from then on keeps only every
    second new one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[float] = []
        self._seen = 0
        self._step = 1

    def add(self, value: float) -> None:
        super().add(value)
        if self._seen % self._step == 0:
            self._kept.append(value)
            if len(self._kept) >= _MOST_VALUES:
                del self._kept[1::2]
                self._step *= 2
        self._seen += 1

    def __bool__(self) -> bool:
        return self._seen > 0

    @property
    def median(self) -> float:
        return median(self._kept)


@dataclass
class RuleUsage:
    """What the jobs of a rule requested, and what the successful ones and the failed ones used.

    Memory is in MiB, times are in seconds. A missing request is 0. Suggestions need what successful
    jobs used: a failed one may have stopped half-way.
    """

    jobs: int = 0
    core_seconds: float = 0.0
    has_exclusive: bool = False
    requested_cores: Range = field(default_factory=Range)
    requested_memory: Range = field(default_factory=Range)
    requested_seconds: Range = field(default_factory=Range)
    cores: Sample = field(default_factory=Sample)
    memory: Sample = field(default_factory=Sample)
    seconds: Sample = field(default_factory=Sample)
    failed: int = 0
    failed_cpu_seconds: Range = field(default_factory=Range)
    failed_memory: Range = field(default_factory=Range)

    def add(self, requested: Resources, result: Ended, seconds: float) -> None:
        """Add a job; `seconds`: how long it ran."""
        self.jobs += 1
        self.core_seconds += requested.cores * seconds
        self.has_exclusive |= requested.exclusive
        self.requested_cores.add(requested.cores)
        self.requested_memory.add(requested.memory_mb or 0)
        self.requested_seconds.add(requested.runtime_seconds or 0)
        if result.ok:
            self.seconds.add(seconds)
            if result.peak_memory_mb is not None:
                self.memory.add(result.peak_memory_mb)
            if result.cpu_seconds is not None and seconds > 0:
                self.cores.add(result.cpu_seconds / seconds)
        elif result.state == "failed":
            self.failed += 1
            if result.cpu_seconds is not None and result.peak_memory_mb is not None:
                self.failed_cpu_seconds.add(result.cpu_seconds)
                self.failed_memory.add(result.peak_memory_mb)

    def describe(self) -> str:
        """A text on requests and usage, with the median and the maximum that a job used.

        For example "100 jobs; 3.8, 3.9 of 4 cores; 2000, 2100 of 16000 MiB; 3:10, 5:00 of 2:00:00;
        2 failed with at most 4:50 CPU, 16100 MiB".
        """
        cores = " core" if self.requested_cores.most == 1 else " cores"
        parts = (
            _used(self.cores, self.requested_cores, "{:.1f}".format, "{:.0f}".format, cores),
            _used(self.memory, self.requested_memory, "{:.0f}".format, "{:.0f}".format, " MiB"),
            _used(self.seconds, self.requested_seconds, clock, clock, ""),
        )
        return "; ".join([pluralize(self.jobs, "job"), *filter(None, (*parts, self._of_failed()))])

    def _of_failed(self) -> str:
        if self.failed_memory.most < 0:
            return f"{self.failed} failed" if self.failed else ""
        time = clock(self.failed_cpu_seconds.most)
        return f"{self.failed} failed with at most {time} CPU, {self.failed_memory.most:.0f} MiB"

    def suggestions(self, in_allocations: bool) -> Iterator[str]:
        """Suggestions if all jobs requested the same, and much more than any of them used.

        It suggests times only `in_allocations`: to workers on this computer a time is no more than
        a limit.
        """
        yield from self._of_memory()
        if in_allocations:
            yield from self._of_time()
        yield from self._of_cores()

    def _of_memory(self) -> Iterator[str]:
        requested = self.requested_memory.only
        if not requested or not self.memory:
            return
        most = self.memory.most
        enough = _MEMORY_STEP * math.ceil(max(most, 1) * _MEMORY_HEADROOM / _MEMORY_STEP)
        if requested > _MUCH_MEMORY * most and requested - enough > _LEAST_MEMORY:
            # A job of many processes takes more than the largest one of them.
            yield (
                f"requested {requested:.0f} MiB, its largest process used at most {most:.0f}: "
                f"mem_mb={enough} is enough if the job has no other process of that size"
            )

    def _of_time(self) -> Iterator[str]:
        requested = self.requested_seconds.only
        if not requested or not self.seconds:
            return
        most = self.seconds.most
        enough = max(_LEAST_MINUTES, math.ceil(_TIME_HEADROOM * most / 60))
        if requested > _MUCH_TIME * most and requested - most > _LEAST_TIME:
            took = f"took at most {clock(most)}"
            yield f"requested {clock(requested)}, {took}: runtime={enough} is enough"

    def _of_cores(self) -> Iterator[str]:
        requested = self.requested_cores.only
        if not requested or not self.cores or self.has_exclusive:
            return
        most = self.cores.most
        enough = max(1, math.ceil(most - 0.1))
        idle = self.core_seconds * (1 - enough / requested)
        if requested >= _MUCH_CORES * enough and idle > _LEAST_CORE_SECONDS:
            yield (
                f"requested {requested:.0f} cores, kept at most {most:.1f} busy: "
                f"threads={enough} is enough"
            )


class Rules:
    """The usage of each rule, by its name; those that took most core time are told."""

    def __init__(self) -> None:
        self._usage: dict[str, RuleUsage] = defaultdict(RuleUsage)

    def add(self, ticket: Ticket, result: Ended, seconds: float) -> None:
        """Add a job; `seconds`: how long it ran."""
        rule = ticket.labels.get("rule", ticket.name)
        self._usage[rule].add(ticket.resources, result, seconds)

    def _by_time(self) -> list[tuple[str, RuleUsage]]:
        return sorted(self._usage.items(), key=lambda item: -item[1].core_seconds)

    def lines(self) -> Iterator[str]:
        rules = self._by_time()
        if rules:
            yield "median and maximum used per job (memory: of its largest single process):"
        for name, usage in rules[:_MOST_RULES]:
            yield f"    {name}: {usage.describe()}"
        if len(rules) > _MOST_RULES:
            yield f"    and {pluralize(len(rules) - _MOST_RULES, 'other rule')}"

    def suggestions(self, in_allocations: bool = True) -> Iterator[str]:
        found = [
            f"rule {name}: {suggestion}"
            for name, usage in self._by_time()
            for suggestion in usage.suggestions(in_allocations)
        ]
        yield from found[:_MOST_SUGGESTIONS]
        if len(found) > _MOST_SUGGESTIONS:
            yield f"and {pluralize(len(found) - _MOST_SUGGESTIONS, 'more suggestion')}"


class RunnerCounts:
    """Counts jobs by runner, and by the reason why a faster runner did not execute them."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {name: Counter() for name in RUNNERS}
        self._examples: dict[str, int | str] = {}

    def add(self, ticket: Ticket, runner: str, job: int | str) -> None:
        if runner not in self._counts:
            return
        chosen, reason = ticket.labels.get("runner", ""), ticket.labels.get("runner_reason", "")
        if chosen != runner:
            # The worker knows the reason for each job.
            example = self._examples.setdefault(chosen, job)
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


def _used(
    used: Sample,
    requested: Range,
    show_used: Callable[[float], str],
    show_asked: Callable[[float], str],
    unit: str,
) -> str:
    if not used:
        return ""
    text = f"{show_used(used.median)}, {show_used(used.most)}"
    if requested.most > 0:
        least = "" if requested.only is not None else f"{show_asked(requested.least)} to "
        text += f" of {least}{show_asked(requested.most)}"
    return text + unit


def clock(seconds: float) -> str:
    """A duration as "2:05:00" or "5:00"; "1.25 s" below a minute."""
    if seconds < 60:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
