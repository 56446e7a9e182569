"""What is asked of a scheduler for mixes of jobs, in core-hours, over what the jobs use of it.

No job runs: a run's allocations, and the jobs in their workers, are simulated with the functions
that size and fill the real ones. Each job asks for a fifth more time than it takes, in whole
minutes as Slurm has them, so that an allocation for each job, as the Slurm plugin has it, asks for
1.2 times what is used, or more.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.measure import Row, Size
from snakemake_kochi.allocation.packing import Supply
from snakemake_kochi.allocation.sizing import Shape, workers_to_request
from snakemake_kochi.queue import Capacity, Resources
from snakemake_kochi.queue.workers import FRESH
from snakemake_kochi.schedulers.interface import Limits

NODE = Capacity(4, 4_000)
LARGE_NODE = Capacity(64, 256_000)
MOST_RATIO = 2.0
MOST_SUBMISSIONS = 10
# These miss what is aimed at, and docs/benchmarks.md says why: the mix, and what it takes of it.
MISSES = {
    "one of a minute": "ratio",
    "10 of a minute": "ratio",
    "200 of 3 minutes, one each 20 seconds": "submissions",
}

_OVERESTIMATE = 1.2
# Seconds: between two looks; until an allocation begins, and until its worker does; before the end
# of an allocation that no job is to be begun for, and in which none runs any more; for which a
# worker stays without a job.
_LOOK = 5
_BEGINNING = 30
_START = 10
_RESERVE = 30
_END = 25
_IDLE = 60


@dataclass(frozen=True)
class Job:
    """What it asks for, and when it is ready and how long it takes, in seconds."""

    wanted: Resources
    seconds: float
    ready: float = 0.0


def job(minutes: float, memory_mb: int = 50, cores: int = 1, ready: float = 0.0) -> Job:
    """One that asks for so many minutes, or what makes whole ones of them."""
    asked = 60 * math.ceil(minutes - 1e-9)
    wanted = Resources(cores=cores, memory_mb=memory_mb, runtime_seconds=asked)
    return Job(wanted, 60 * minutes / _OVERESTIMATE, ready)


@dataclass
class _Worker:
    shape: Shape
    begins: float
    ends: float
    running: dict[int, float] = field(default_factory=dict)  # when each job ends
    idle_since: float = 0.0
    has_ended: bool = False  # one of its jobs

    def seconds_left(self, now: float) -> float:
        if now < self.begins + FRESH and not self.has_ended:
            return self.shape.seconds or 0.0
        return self.ends - now - _RESERVE

    def is_over(self, now: float) -> bool:
        is_idle = not self.running and now - max(self.idle_since, self.begins) >= _IDLE
        return is_idle or now >= self.ends


@dataclass(frozen=True)
class Outcome:
    """Core-hours, that the jobs used, that were asked for, and that workers were there for; calls
    of sbatch, and allocations; hours until the last job had ended."""

    used: float
    asked: float
    held: float
    submissions: int
    allocations: int
    hours: float

    @property
    def ratio(self) -> float:
        return self.asked / self.used


class _Run:
    def __init__(self, jobs: Iterable[Job], limits: Limits) -> None:
        self._jobs = dict(enumerate(jobs))
        self._limits = limits
        self._waiting = list(self._jobs)
        self._workers: list[_Worker] = []
        self._now = 0.0
        self._has_lacked = False
        self._asked = self._held = 0.0
        self._submissions = self._allocations = 0

    def run(self) -> Outcome:
        while self._waiting or any(worker.running for worker in self._workers):
            for worker in [each for each in self._workers if each.begins <= self._now]:
                self._turn(worker)
            self._ask()
            self._now += _LOOK
        for worker in self._workers:
            self._leave(worker)
        used = sum(each.seconds * each.wanted.cores for each in self._jobs.values())
        return Outcome(
            *(used / 3600, self._asked / 3600, self._held / 3600),
            *(self._submissions, self._allocations, self._now / 3600),
        )

    def _ready(self) -> list[int]:
        return [number for number in self._waiting if self._jobs[number].ready <= self._now]

    def _turn(self, worker: _Worker) -> None:
        for number in [each for each, end in worker.running.items() if end <= self._now]:
            del worker.running[number]
            worker.idle_since, worker.has_ended = self._now, True
        if worker.ends - self._now < _END:
            # What it has not done in time is begun again.
            self._waiting = sorted([*worker.running, *self._waiting])
            worker.running.clear()
            worker.ends = self._now
        taken = _claimed(worker, self._ready(), self._jobs, self._now)
        self._waiting = [number for number in self._waiting if number not in taken]
        worker.running |= {number: self._now + self._jobs[number].seconds for number in taken}
        if worker.is_over(self._now):
            self._workers.remove(worker)
            self._leave(worker)

    def _leave(self, worker: _Worker) -> None:
        seconds = max(0.0, self._now - worker.begins + _START)
        self._held += seconds * _cores(worker.shape, self._limits)

    def _ask(self) -> None:
        wanted = workers_to_request(
            Counter(self._jobs[number].wanted for number in self._ready()),
            [_supply(worker, self._jobs, self._now) for worker in self._workers],
            self._limits,
        )
        if not wanted or not self._has_lacked:
            self._has_lacked = bool(wanted)
            return
        self._has_lacked = False
        for shape, count in wanted:
            seconds = 60 * math.ceil((shape.seconds or 0.0) / 60)  # as Slurm has it
            self._submissions += 1
            self._allocations += count
            self._asked += count * seconds * _cores(shape, self._limits)
            begins = self._now + _BEGINNING
            new = (_Worker(shape, begins + _START, begins + seconds) for _ in range(count))
            self._workers += new


def simulate(jobs: Iterable[Job], limits: Limits) -> Outcome:
    """A run of these jobs, handed over in their order."""
    return _Run(jobs, limits).run()


def _cores(shape: Shape, limits: Limits) -> int:
    return limits.node.cores if shape.whole_node else shape.capacity.cores


def _supply(worker: _Worker, every: Mapping[int, Job], now: float) -> Supply:
    begun = tuple(every[number].wanted for number in worker.running)
    return Supply(worker.shape.capacity, worker.seconds_left(now), begun)


def _claimed(worker: _Worker, ready: list[int], every: Mapping[int, Job], now: float) -> list[int]:
    """As `worker.claiming`: first what it is for, and after one that has to wait no other."""
    running = [every[number].wanted for number in worker.running]
    capacity, left = worker.shape.capacity, worker.seconds_left(now)
    taken: list[int] = []
    for is_first in (True, False):
        for number in ready:
            wanted = every[number].wanted
            if number in taken or capacity.obstacle(wanted, left):
                continue
            if is_first and not any(kind.has(wanted) for kind in worker.shape.first):
                continue
            if not capacity.fits(wanted, running):
                return taken
            running.append(wanted)
            taken.append(number)
    return taken


# ---- mixes


def _issue() -> list[Job]:
    """Forty of a minute, one of much memory and one of ten hours."""
    return [*[job(1)] * 20, job(1, memory_mb=3_400), *[job(1)] * 20, job(600)]


def _short() -> list[Job]:
    return [job(1)] * 200


def _long_tail() -> list[Job]:
    """Most of some minutes, some of hours: a log-normal distribution."""
    numbers = random.Random(1)
    return [job(math.ceil(min(600.0, numbers.lognormvariate(2.0, 1.2)))) for _ in range(150)]


def _memory_tail() -> list[Job]:
    numbers = random.Random(2)
    memory = [min(240_000, round(numbers.lognormvariate(7.0, 1.5))) for _ in range(150)]
    return [job(20, memory_mb=each) for each in memory]


def _alike(count: int, minutes: float, memory_mb: int, cores: int) -> list[Job]:
    return [job(minutes, memory_mb, cores)] * count


def _stream() -> list[Job]:
    return [job(3, ready=20.0 * number) for number in range(200)]


def _mixed_cores(count: int) -> list[Job]:
    numbers = random.Random(3)
    found = []
    for _ in range(count):
        cores, minutes = numbers.choice((1, 1, 1, 2, 4, 8, 32)), numbers.choice((5, 30, 60))
        found.append(job(minutes, memory_mb=1000 * cores, cores=cores))
    return found


def _waves() -> list[Job]:
    """Four times some of two kinds, as the last ones have ended."""
    return [
        job(minutes, memory_mb=memory, ready=wave * 2400.0)
        for wave in range(4)
        for minutes, memory, count in ((5, 200, 40), (30, 2_000, 6))
        for _ in range(count)
    ]


MIXES: Mapping[str, tuple[Callable[[], list[Job]], Capacity]] = {
    "40 of a minute, one of 3,400 MB, one of 10 hours": (_issue, NODE),
    "200 of a minute": (_short, LARGE_NODE),
    "a long tail of times": (_long_tail, LARGE_NODE),
    "a long tail of memory": (_memory_tail, LARGE_NODE),
    "100 of 130,000 MB": (partial(_alike, 100, 20, 130_000, 1), LARGE_NODE),
    "300 of 20,000 MB": (partial(_alike, 300, 20, 20_000, 1), LARGE_NODE),
    "16 of 33 cores": (partial(_alike, 16, 20, 1_000, 33), LARGE_NODE),
    "1 to 32 cores, 5 to 60 minutes": (partial(_mixed_cores, 60), LARGE_NODE),
    "the same, 120 jobs of 914 cores on 512 at most": (partial(_mixed_cores, 120), LARGE_NODE),
    "four waves of two kinds": (_waves, LARGE_NODE),
    "one of a minute": (partial(_alike, 1, 1, 50, 1), LARGE_NODE),
    "10 of a minute": (partial(_alike, 10, 1, 50, 1), LARGE_NODE),
    "200 of 3 minutes, one each 20 seconds": (_stream, LARGE_NODE),
}


def outcome_of(mix: str) -> Outcome:
    """With the settings of a machine that says nothing of it."""
    jobs, node = MIXES[mix]
    return simulate(jobs(), Limits(workers=8, node=node, asks_for_all=False))


def plugin_ratio(mix: str) -> float:
    """Core-hours asked over those used with an allocation for each job."""
    jobs = MIXES[mix][0]()
    asked = sum((each.wanted.runtime_seconds or 0) * each.wanted.cores for each in jobs)
    return asked / sum(each.seconds * each.wanted.cores for each in jobs)


def measure(place: Path, size: Size) -> list[Row]:
    """All mixes; the ratio is of core-hours asked over core-hours used."""
    rows = []
    for mix in MIXES:
        found = outcome_of(mix)
        rows += [
            Row(f"{mix}: used by the jobs", [found.used], "core-hours"),
            Row(
                f"{mix}: asked for, an allocation for each job",
                [found.used * plugin_ratio(mix)],
                "core-hours",
                plugin_ratio(mix),
            ),
            Row(
                f"{mix}: asked for, kochi",
                [found.asked],
                "core-hours",
                found.ratio,
                MOST_RATIO,
            ),
            Row(f"{mix}: the same, until its workers left", [found.held], "core-hours"),
            Row(f"{mix}: calls of sbatch", [found.submissions], "", limit=MOST_SUBMISSIONS),
            Row(f"{mix}: allocations", [found.allocations], ""),
        ]
    return rows
