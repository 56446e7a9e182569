"""Who uses the queue: runs and workers, as small as they can be around the real protocol.

`Story` notes what happens, for the oracle. What it knows survives every kill: it is what users see.
"""

from __future__ import annotations

import errno
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from signal import Signals
from types import SimpleNamespace
from typing import Any, TypeVar

from simulator.world import Killed, Node, Process, World
from snakemake_kochi.base import clock
from snakemake_kochi.processes import ProcessIdentity
from snakemake_kochi.tickets.capacity import Capacity
from snakemake_kochi.tickets.claims import WorkerLife
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
from snakemake_kochi.tickets.ticket import Ticket
from snakemake_kochi.tickets.watching import INTERVAL, LOST, FencedError
from snakemake_kochi.worker.loop import Worker as RealWorker
from snakemake_kochi.worker.node.devices import Allotment
from snakemake_kochi.worker.runners import Exit
from snakemake_kochi.worker.settings import WorkerSettings
from snakemake_kochi.worker.walltime import Walltime

QUEUE = "q"
DEADLY = "deadly"  # a job that kills its worker
LAYOUT = Layout("/k")
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
            name.state in ("success", "cancelled")
            or (name.state, name.losses) == ("lost", LOST - 1)
            for _, name in self.reports.get(key, ())
        )


class Worker:
    """The real worker, whose jobs are nothing but time; it stays until it is told to leave."""

    def __init__(
        self,
        world: World,
        story: Story,
        name: str,
        cores: int = 1,
        seconds: float = 2.0,
        puts_back: bool = False,
    ) -> None:
        """`seconds`: of a job. `puts_back`: no process can be made for the first one."""
        self.puts_back = puts_back
        self.world, self.story = world, story
        self._name, self._cores, self.seconds = name, cores, seconds
        self._real: RealWorker | None = None
        self.must_leave = False

    def leave(self) -> None:
        """Tell it to give its jobs back."""
        self.must_leave = True
        if self._real is not None:
            self._real.note_stop(Signals.SIGTERM)

    def __call__(self) -> None:
        process = self.world.current
        self.story.cores[process] = self._cores
        while True:
            try:
                name = f"{self._name}{next(self.world.numbers)}"
                life = WorkerLife(LAYOUT, name, process.name)
                break
            except OSError:
                clock.sleep(1.0)
        settings = WorkerSettings("/k", "m", queues=(QUEUE,), stay=True, grace=2.0, idle_wait=1.0)
        means: Any = SimpleNamespace(
            capacity=Capacity(self._cores, 0),
            devices=NoDevices(),
            walltime=Walltime(None, 2.0),
            environment={},
            lock=None,
            oom=SimpleNamespace(counts=lambda: None, explain=lambda before, end: None),
            health=SimpleNamespace(fault=lambda directory: ""),
            is_gone=self.world.is_gone,
        )
        forks: Any = Processes(self, life)
        make = lambda stop: (forks, forks)  # noqa: E731
        self._real = _again(lambda: RealWorker(LAYOUT, life, settings, means, make))
        if self.must_leave:
            self._real.note_stop(Signals.SIGTERM)
        self._real.run()


class NoDevices:
    def allot(self, wanted: Any) -> Allotment:
        return Allotment()

    def release(self, allotment: Allotment) -> None:
        return


class Processes:
    """Those that a worker's supervisor would make."""

    def __init__(self, worker: Worker, life: WorkerLife) -> None:
        self._worker, self._life = worker, life
        self._process = worker.world.current
        self._living: dict[int, Execution] = {}
        self._mail: dict[int, Callable[[Exit], None]] = {}

    def beat(self) -> None:
        return

    def close(self) -> None:
        return

    def abandon(self) -> None:
        """Others took it for dead."""
        if "dead" not in self._worker.world.tree.names(self._life.paths.directory):
            self._worker.story.faults.append(f"{self._life.name} ended, and nobody found it dead")
        self._die()

    def _die(self) -> None:
        for execution in self._living.values():
            execution.end = clock.now()
        self._worker.world.kill(self._process)
        raise Killed

    def start(
        self, name: Name, ticket: Ticket, log: int, environment: Any, *more: Any
    ) -> tuple[ProcessIdentity, str, str]:
        ended, _, begin = more[1:]
        begin()
        worker, story = self._worker, self._worker.story
        if worker.puts_back:
            worker.puts_back = False
            raise OSError(errno.EAGAIN, "no process can be made")
        # It has looked 3 intervals ago at most.
        if clock.now() - worker.world.created.get(self._life.paths.dead, math.inf) > 3 * INTERVAL:
            story.faults.append(f"{name} began although others think its worker dead")
        pid = next(worker.world.numbers)
        execution = Execution(ticket.name, name, self._process, clock.now())
        self._living[pid], self._mail[pid] = execution, ended
        story.executions.append(execution)
        clock.spawn(partial(self._execute, pid))
        return ProcessIdentity(pid, 0), "command", ""

    def _execute(self, pid: int) -> None:
        execution = self._living.get(pid)
        if execution is None:
            return  # ended before this thread began
        until = clock.now() + self._worker.seconds
        while execution.end is None and clock.now() < until:
            clock.sleep(min(1.0, self._worker.seconds))
            if execution.key == DEADLY:
                self._die()
        self._end(pid, Exit(0, None))

    def _end(self, pid: int, end: Exit) -> None:
        execution = self._living.pop(pid, None)
        if execution is not None:
            execution.end = clock.now()
            self._mail[pid](end)

    def signal(self, process: ProcessIdentity, nonce: str, number: Signals) -> None:
        self._end(process.pid, Exit(None, number))

    def left(self, process: ProcessIdentity, nonce: str, is_alone: Any) -> list[Any]:
        return []


def content(key: str) -> bytes:
    """The ticket of a job."""
    return json.dumps(Ticket(key, ("true",), "/work").to_dict()).encode()


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
            while _again(run.adopt):
                clock.sleep(INTERVAL)
            for part in run._parts:
                if part != run.number:
                    self._story.adopted.setdefault(part, clock.now())
            self._listen()
        except FencedError:
            self._fence()

    def _fence(self) -> None:
        if not self._process.is_alive:
            raise Killed  # during a call that took long
        node = self._process.node
        is_cut_off = node.asleep or node.away or node.gone or self._world.was_full
        if not (is_cut_off or self._world.latency > 1.0):
            self._story.faults.append(f"run {self.number} lives, and another took over")
        if str(self.number + 1) not in self._world.tree.names(LAYOUT.runs):
            self._story.faults.append(f"run {self.number} stopped, and no other took over")
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
                if end.name.state == "success" and "details" not in end.line:
                    self._story.faults.append(f"run {run.number} lost what {end.name} says")
            idle = 0.5 if ends else min(2 * idle, INTERVAL)
            there = {job.key for job in run.open}
            missing = [k for k in self._keys if not self._story.is_done(k) and k not in there]
            if missing:
                with suppress(OSError):
                    run.submit(QUEUE, {key: content(key) for key in missing[: self._portion]})
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
            number = submit_by_hand(LAYOUT, QUEUE, content(self._key), told.append)
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
            fold(LAYOUT, int(text))
