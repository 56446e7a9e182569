"""Who uses the queue: runs and workers, as small as they can be around the real protocol.

`Story` notes what happens, for the oracle. What it knows survives every kill: it is what users see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from simulator.world import Node, Process, World
from snakemake_kochi.base import clock
from snakemake_kochi.tickets.claims import Accept, Claims, WorkerLife
from snakemake_kochi.tickets.hand import (
    NotSubmittedError,
    UnknownError,
    cancel,
    fold,
    is_by_hand,
    submit_by_hand,
)
from snakemake_kochi.tickets.names import Layout, Name
from snakemake_kochi.tickets.run import Job, Run
from snakemake_kochi.tickets.watching import INTERVAL, LOST, FencedError, Watch

QUEUE = "q"
DEADLY = "deadly"  # a job that kills its worker
LAYOUT = Layout("/k")
HISTORY = "/k/history"
T = TypeVar("T")


@dataclass
class Execution:
    """An attempt of a job. `end` is None while its process lives."""

    key: str
    ticket: Name
    process: Process
    start: float
    end: float | None = None

    def last(self, now: float) -> float:
        """Until when it was executed. A supervisor ends the jobs of a worker that is killed."""
        return min(now if self.end is None else self.end, self.process.killed)


@dataclass
class Story:
    """`reports`: by key, the tickets whose end a run reported, with their runs."""

    executions: list[Execution] = field(default_factory=list)
    reports: dict[str, list[tuple[int, Name]]] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    numbers: Counter[int] = field(default_factory=Counter)
    by_hand: dict[str, int] = field(default_factory=dict)  # key -> number
    refused: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)  # seen at once, in sentences
    cores: dict[Process, int] = field(default_factory=dict)
    adopted: dict[int, float] = field(default_factory=dict)  # run -> when another took it over

    def report(self, run: int, key: str, name: Name, node: Node) -> None:
        self.reports.setdefault(key, []).append((run, name))
        since = max(self.adopted.get(run, clock.now()), node.asleep, node.away)
        if clock.now() - since > 4 * INTERVAL:
            self.faults.append(f"run {run} reported {name} long after it was adopted")

    def is_done(self, key: str) -> bool:
        """Whether a user would not have it made again."""
        return any(
            name.state in ("ok", "cancelled") or (name.state, name.losses) == ("lost", LOST - 1)
            for _, name in self.reports.get(key, ())
        )


class Worker:
    """Takes tickets until it is told to leave."""

    def __init__(
        self,
        world: World,
        story: Story,
        name: str,
        cores: int = 1,
        seconds: float = 2.0,
        puts_back: bool = False,
    ) -> None:
        """`seconds`: of a job. `puts_back`: what it takes first, as if it had no time for it."""
        self._puts_back = puts_back
        self._world, self._story = world, story
        self._name, self._cores, self._seconds = name, cores, seconds
        self._free = cores
        self._running: dict[Name, Execution] = {}
        self.must_leave = False
        self._is_fenced = False

    def __call__(self) -> None:
        self._process = self._world.current
        self._story.cores[self._process] = self._cores
        while True:
            try:
                name = f"{self._name}{next(self._world.numbers)}"
                self._life = WorkerLife(LAYOUT, name, self._process.name)
                break
            except OSError:
                clock.sleep(1.0)
        self._claims = _again(lambda: Claims(LAYOUT, QUEUE, self._life))
        watch = Watch(LAYOUT, lambda name: is_by_hand(LAYOUT, name.run), self._world.is_gone)
        self._world.fork(self._beat)
        reconciled, idle = clock.now(), 0.5
        while not self._is_fenced and not (self.must_leave and self._free == self._cores):
            names: list[Name] = []
            with suppress(OSError):
                try:
                    if clock.now() - reconciled > INTERVAL:
                        reconciled = clock.now()
                        names += self._claims.reconcile()
                        if not names:
                            watch.look([QUEUE])
                    if self._free > len(names) and not self.must_leave:
                        names += self._claims.claim(self._accepts(self._free - len(names)))
                except FencedError:
                    self._fence()
                    return
                finally:
                    for name in names:
                        self._free -= 1
                        is_too_much = self._free < 0
                        self._world.fork(partial(self._job, name, is_too_much))
            idle = min(2 * idle, INTERVAL) if not names else 0.5
            clock.sleep(idle)
        self._is_fenced = True

    def _accepts(self, room: int) -> Accept:
        return lambda name, read, claimed: True if len(claimed) < room else None

    def _beat(self) -> None:
        while not self._is_fenced:
            try:
                self._life.beat()
            except FencedError:
                self._fence()
            except OSError:
                pass
            clock.sleep(INTERVAL)

    def _fence(self) -> None:
        self._is_fenced = True
        for execution in self._running.values():
            execution.end = clock.now()
        self._world.kill(self._process)

    def _job(self, name: Name, is_too_much: bool) -> None:
        while True:
            try:
                key = self._claims.read(name).split(b"\n")[0].decode()
                self._life.require_fresh()
                break
            except FileNotFoundError:
                self._free += 1
                return
            except FencedError:
                return self._fence()
            except OSError:
                clock.sleep(1.0)
        if is_too_much or self.must_leave or self._puts_back:
            self._puts_back = False
            return self._put_back(name)
        execution = Execution(key, name, self._process, clock.now())
        if "dead" in self._world.tree.names(self._life.paths.directory):
            self._story.faults.append(f"{name} began although others think its worker dead")
        self._running[name] = execution
        self._story.executions.append(execution)
        until = clock.now() + self._seconds
        state = "ok"
        while clock.now() < until:
            clock.sleep(min(1.0, self._seconds))
            if key == DEADLY:
                self._fence()
            if name in self._life.cancelled:
                state = "cancelled"
                break
            if self.must_leave:
                execution.end = clock.now()
                self._running.pop(name, None)
                return self._put_back(name)
        execution.end = clock.now()
        self._running.pop(name, None)
        self._claims.finish(name, state)
        self._free += 1

    def _put_back(self, name: Name) -> None:
        _again(lambda: self._claims.put_back(name))
        self._free += 1


def _again(action: Callable[[], T]) -> T:
    while True:
        try:
            return action()
        except OSError:
            clock.sleep(1.0)


class Controller:
    """A run that wants these jobs done, and was perhaps begun after others were killed."""

    def __init__(self, world: World, story: Story, keys: Sequence[str], portion: int = 100) -> None:
        self._world, self._story, self._keys, self._portion = world, story, keys, portion
        self.is_over = False
        self.number = 0
        self._run: Run | None = None

    @property
    def open(self) -> list[Job]:
        return [] if self._run is None else self._run.open

    def __call__(self) -> None:
        self._process = self._world.current
        run = self._run = _again(
            lambda: Run.begin(LAYOUT, "/work", self._process.name, self._world.is_gone)
        )
        self.number = run.number
        self._story.numbers[run.number] += 1
        self._world.fork(self._beat)
        try:
            while not _again(run.adopt):
                clock.sleep(INTERVAL)
            for part in run._parts:
                if part != run.number:
                    self._story.adopted.setdefault(part, clock.now())
            self._listen()
        except FencedError:
            self._fence()

    def _fence(self) -> None:
        node = self._process.node
        is_cut_off = node.asleep or node.away or node.gone or self._world.was_full
        if not (is_cut_off or self._world.latency > 1.0):
            self._story.faults.append(f"run {self.number} lives, and another took over")
        self._world.kill(self._process)

    def _beat(self) -> None:
        while not self.is_over:
            try:
                self._run.beat()
            except FencedError:
                self._fence()
            except OSError:
                pass
            clock.sleep(INTERVAL)

    def _listen(self) -> None:
        looked = clock.now()
        run = self._run
        idle = 0.5
        while True:
            ends = _again(run.collect)
            for end in ends:
                self._world.call("report", "", lambda: None)  # killed before it
                self._story.report(run.number, end.key, end.name, self._process.node)
            idle = 0.5 if ends else min(2 * idle, INTERVAL)
            there = {job.key for job in run.open}
            missing = [k for k in self._keys if not self._story.is_done(k) and k not in there]
            if missing:
                with suppress(OSError):
                    run.submit(QUEUE, {key: key.encode() for key in missing[: self._portion]})
            elif not there:
                break
            if clock.now() - looked > INTERVAL:
                with suppress(OSError):
                    run.look_after()
                looked = clock.now()
            clock.sleep(idle)
        _again(run.look_after)
        _again(run.end)
        self.is_over = True


class Hand:
    """A person who submits a job and does not wait for it."""

    def __init__(self, story: Story, key: str) -> None:
        self._story, self._key = story, key

    def __call__(self) -> None:
        told: list[int] = []
        try:
            number = submit_by_hand(LAYOUT, QUEUE, self._key.encode(), told.append)
            self._story.by_hand[self._key] = number
        except UnknownError:
            pass
        except (NotSubmittedError, OSError):
            self._story.refused.add(self._key)


class Canceller:
    """A person who cancels what is open now."""

    def __init__(self, story: Story, controller: Controller) -> None:
        self._story, self._controller = story, controller

    def __call__(self) -> None:
        for job in reversed(list(self._controller.open)):
            self._story.cancelled.add(job.key)
            while not _again(partial(cancel, LAYOUT, QUEUE, job.run, job.number)):
                clock.sleep(1.0)


def fold_all(world: World) -> None:
    """What `kochi show jobs` does for jobs by hand."""
    runs: list[str] = []
    with suppress(FileNotFoundError):
        runs = world.tree.names(LAYOUT.runs)
    for text in runs:
        if text.isdecimal() and is_by_hand(LAYOUT, int(text)):
            fold(LAYOUT, int(text), HISTORY)
