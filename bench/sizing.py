"""The ratio of requested to used core-hours, for several mixes of jobs.

No job runs. The benchmark simulates the allocations of a run and the jobs in their workers, with
the functions that size and fill the real ones. Each job requests a fifth more time than it takes,
in whole minutes, as Slurm counts. So one allocation per job, as with the Slurm plugin, requests at
least 1.2 times the used core-hours.
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
from snakemake_kochi.schedulers.interface import Limits
from snakemake_kochi.tickets.capacity import Capacity
from snakemake_kochi.tickets.ticket import Resources
from snakemake_kochi.worker.walltime import FRESH

NODE = Capacity(4, 4_000)
LARGE_NODE = Capacity(64, 256_000)
MOST_RATIO = 2.0
MOST_SUBMISSIONS = 10
# The mixes that miss a target, and which one. docs/benchmarks.md explains why.
MISSES = {
    "1 job of 1 minute": "ratio",
    "10 jobs of 1 minute": "ratio",
    "200 jobs of 3 minutes, one every 20 seconds": "submissions",
}

_OVERESTIMATE = 1.2
# All in seconds.
_LOOK = 5  # between two looks of the run at its queue
_BEGINNING = 30  # until a requested allocation begins
_START = 10  # until the worker of a new allocation has started
_RESERVE = 30  # before the end of an allocation: a job must fit into the time before them
_END = 25  # before the end of an allocation, when the worker requeues its jobs
_IDLE = 60  # until a worker without jobs leaves


@dataclass(frozen=True)
class Job:
    """A simulated job: what it requests, how long it takes, and when it is ready, in seconds."""

    requested: Resources
    seconds: float
    ready: float = 0.0


def job(minutes: float, memory_mb: int = 50, cores: int = 1, ready: float = 0.0) -> Job:
    """A job that requests `minutes`, rounded up to whole minutes, and takes `minutes` / 1.2."""
    runtime = 60 * math.ceil(minutes - 1e-9)
    requested = Resources(cores=cores, memory_mb=memory_mb, runtime_seconds=runtime)
    return Job(requested, 60 * minutes / _OVERESTIMATE, ready)


@dataclass
class _Worker:
    shape: Shape
    begins: float
    ends: float
    running: dict[int, float] = field(default_factory=dict)  # when each job ends
    idle_since: float = 0.0
    has_ended_jobs: bool = False

    def seconds_left(self, now: float) -> float:
        if now < self.begins + FRESH and not self.has_ended_jobs:
            return self.shape.seconds or 0.0
        return self.ends - now - _RESERVE

    def is_over(self, now: float) -> bool:
        is_idle = not self.running and now - max(self.idle_since, self.begins) >= _IDLE
        return is_idle or now >= self.ends


@dataclass(frozen=True)
class Outcome:
    """The result of a simulated run.

    `used`, `requested` and `held` are core-hours: those of the jobs, those of the requested
    allocations, and those until the workers left. `submissions` counts the calls to sbatch.
    `hours` is the time until the last job ended.
    """

    used: float
    requested: float
    held: float
    submissions: int
    allocations: int
    hours: float

    @property
    def ratio(self) -> float:
        return self.requested / self.used


class _Run:
    def __init__(self, jobs: Iterable[Job], limits: Limits) -> None:
        self._jobs = dict(enumerate(jobs))
        self._limits = limits
        self._waiting = list(self._jobs)
        self._workers: list[_Worker] = []
        self._now = 0.0
        self._has_lacked = False
        self._requested = self._held = 0.0
        self._submissions = self._allocations = 0

    def run(self) -> Outcome:
        while self._waiting or any(worker.running for worker in self._workers):
            for worker in [each for each in self._workers if each.begins <= self._now]:
                self._turn(worker)
            self._request()
            self._now += _LOOK
        for worker in self._workers:
            self._leave(worker)
        used = sum(each.seconds * each.requested.cores for each in self._jobs.values())
        return Outcome(
            *(used / 3600, self._requested / 3600, self._held / 3600),
            *(self._submissions, self._allocations, self._now / 3600),
        )

    def _ready(self) -> list[int]:
        return [number for number in self._waiting if self._jobs[number].ready <= self._now]

    def _turn(self, worker: _Worker) -> None:
        for number in [each for each, end in worker.running.items() if end <= self._now]:
            del worker.running[number]
            worker.idle_since, worker.has_ended_jobs = self._now, True
        if worker.ends - self._now < _END:
            # Its jobs did not end in time, and begin again.
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

    def _request(self) -> None:
        requests = workers_to_request(
            Counter(self._jobs[number].requested for number in self._ready()),
            [_supply(worker, self._jobs, self._now) for worker in self._workers],
            self._limits,
        )
        # As in a real run, jobs must lack workers for a while before the run requests more.
        if not requests or not self._has_lacked:
            self._has_lacked = bool(requests)
            return
        self._has_lacked = False
        for shape, count in requests:
            seconds = 60 * math.ceil((shape.seconds or 0.0) / 60)  # Slurm counts whole minutes
            self._submissions += 1
            self._allocations += count
            self._requested += count * seconds * _cores(shape, self._limits)
            begins = self._now + _BEGINNING
            new = (_Worker(shape, begins + _START, begins + seconds) for _ in range(count))
            self._workers += new


def simulate(jobs: Iterable[Job], limits: Limits) -> Outcome:
    """Simulate a run of these jobs, submitted in their order."""
    return _Run(jobs, limits).run()


def _cores(shape: Shape, limits: Limits) -> int:
    return limits.node.cores if shape.whole_node else shape.capacity.cores


def _supply(worker: _Worker, every: Mapping[int, Job], now: float) -> Supply:
    begun = tuple(every[number].requested for number in worker.running)
    return Supply(worker.shape.capacity, worker.seconds_left(now), begun)


def _claimed(worker: _Worker, ready: list[int], every: Mapping[int, Job], now: float) -> list[int]:
    """The jobs that the worker claims, by the rules of `worker/loop.py`.

    The jobs for which it was requested come first. A job without room stops the claim.
    """
    running = [every[number].requested for number in worker.running]
    capacity, left = worker.shape.capacity, worker.seconds_left(now)
    taken: list[int] = []
    for is_first in (True, False):
        for number in ready:
            requested = every[number].requested
            if number in taken or capacity.obstacle(requested, left):
                continue
            if is_first and not any(kind.has(requested) for kind in worker.shape.first):
                continue
            if not capacity.fits(requested, running):
                return taken
            running.append(requested)
            taken.append(number)
    return taken


def _outliers() -> list[Job]:
    """Forty short jobs, one with much memory, and one of ten hours."""
    return [*[job(1)] * 20, job(1, memory_mb=3_400), *[job(1)] * 20, job(600)]


def _short() -> list[Job]:
    return [job(1)] * 200


def _long_tail() -> list[Job]:
    """Log-normally distributed times: most jobs take minutes, some take hours."""
    numbers = random.Random(1)
    return [job(math.ceil(min(600.0, numbers.lognormvariate(2.0, 1.2)))) for _ in range(150)]


def _memory_tail() -> list[Job]:
    """Log-normally distributed memory, up to 240,000 MB."""
    numbers = random.Random(2)
    memory = [min(240_000, round(numbers.lognormvariate(7.0, 1.5))) for _ in range(150)]
    return [job(20, memory_mb=each) for each in memory]


def _alike(count: int, minutes: float, memory_mb: int, cores: int) -> list[Job]:
    return [job(minutes, memory_mb, cores)] * count


def _stream() -> list[Job]:
    """Jobs that become ready one by one."""
    return [job(3, ready=20.0 * number) for number in range(200)]


def _mixed_cores(count: int) -> list[Job]:
    numbers = random.Random(3)
    found = []
    for _ in range(count):
        cores, minutes = numbers.choice((1, 1, 1, 2, 4, 8, 32)), numbers.choice((5, 30, 60))
        found.append(job(minutes, memory_mb=1000 * cores, cores=cores))
    return found


def _waves() -> list[Job]:
    """Four waves of two kinds of jobs, each when the last one has ended."""
    return [
        job(minutes, memory_mb=memory, ready=wave * 2400.0)
        for wave in range(4)
        for minutes, memory, count in ((5, 200, 40), (30, 2_000, 6))
        for _ in range(count)
    ]


MIXES: Mapping[str, tuple[Callable[[], list[Job]], Capacity]] = {
    "40 jobs of 1 minute, 1 of 3,400 MB, 1 of 10 hours": (_outliers, NODE),
    "200 jobs of 1 minute": (_short, LARGE_NODE),
    "a long tail of times": (_long_tail, LARGE_NODE),
    "a long tail of memory": (_memory_tail, LARGE_NODE),
    "100 jobs of 130,000 MB": (partial(_alike, 100, 20, 130_000, 1), LARGE_NODE),
    "300 jobs of 20,000 MB": (partial(_alike, 300, 20, 20_000, 1), LARGE_NODE),
    "16 jobs of 33 cores": (partial(_alike, 16, 20, 1_000, 33), LARGE_NODE),
    "60 jobs of 1 to 32 cores, 5 to 60 minutes": (partial(_mixed_cores, 60), LARGE_NODE),
    "120 such jobs: 914 cores in all, 512 at a time": (partial(_mixed_cores, 120), LARGE_NODE),
    "4 waves of two kinds of jobs": (_waves, LARGE_NODE),
    "1 job of 1 minute": (partial(_alike, 1, 1, 50, 1), LARGE_NODE),
    "10 jobs of 1 minute": (partial(_alike, 10, 1, 50, 1), LARGE_NODE),
    "200 jobs of 3 minutes, one every 20 seconds": (_stream, LARGE_NODE),
}


def outcome_of(mix: str) -> Outcome:
    """Simulate a mix, with the default settings of a machine."""
    jobs, node = MIXES[mix]
    return simulate(jobs(), Limits(workers=8, node=node, asks_for_all=False))


def plugin_ratio(mix: str) -> float:
    """The ratio of requested to used core-hours with an allocation for each job."""
    jobs = MIXES[mix][0]()
    requested = sum((each.requested.runtime_seconds or 0) * each.requested.cores for each in jobs)
    return requested / sum(each.seconds * each.requested.cores for each in jobs)


def measure(directory: Path, size: Size) -> list[Row]:
    """Simulate all mixes."""
    rows = []
    for mix in MIXES:
        found = outcome_of(mix)
        rows += [
            Row(f"{mix}: used by the jobs", [found.used], "core-hours"),
            Row(
                f"{mix}: requested with one allocation per job",
                [found.used * plugin_ratio(mix)],
                "core-hours",
                plugin_ratio(mix),
            ),
            Row(
                f"{mix}: requested by kochi",
                [found.requested],
                "core-hours",
                found.ratio,
                MOST_RATIO,
            ),
            Row(f"{mix}: held until the workers of kochi left", [found.held], "core-hours"),
            Row(f"{mix}: calls to sbatch", [found.submissions], "", limit=MOST_SUBMISSIONS),
            Row(f"{mix}: allocations", [found.allocations], ""),
        ]
    return rows
