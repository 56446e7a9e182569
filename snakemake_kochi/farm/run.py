"""The run of a list: it hands over tasks, collects their ends, and tries again what failed."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from humanfriendly.text import pluralize

from snakemake_kochi.base import clock
from snakemake_kochi.base.wake import Wake
from snakemake_kochi.errors import KochiError, printable, shortened
from snakemake_kochi.executor.ends import CANCELLED, described, details_of
from snakemake_kochi.executor.life import live
from snakemake_kochi.executor.telling import Telling
from snakemake_kochi.executor.workers import LocalWorkers
from snakemake_kochi.farm.screen import Screen
from snakemake_kochi.farm.state import Ended, Standing, State
from snakemake_kochi.farm.tasks import Task, TaskList
from snakemake_kochi.files import random_word, safe_name
from snakemake_kochi.location import Location
from snakemake_kochi.notices import Notices
from snakemake_kochi.processes import is_gone
from snakemake_kochi.quantities import seconds_between
from snakemake_kochi.queue.runs import facts_of_run
from snakemake_kochi.schedulers.interface import NO_REQUEST
from snakemake_kochi.tickets.hand import withdraw
from snakemake_kochi.tickets.history import log_of
from snakemake_kochi.tickets.moving import listing, removed
from snakemake_kochi.tickets.names import SERVING, Layout, Name, wake_workers
from snakemake_kochi.tickets.run import SHARD, End, Job, Run
from snakemake_kochi.tickets.ticket import Resources, Ticket
from snakemake_kochi.tickets.watching import INTERVAL, FencedError
from snakemake_kochi.worker.settings import WorkerSettings

FAILED, TIMEOUT = 123, 124
_MOST_HERE, _MOST_ALLOCATED = 1024, 4096  # tasks that are handed over at a time
_FIRST = 8  # that are handed over first: they run while the tickets of others are made
_PAUSE, _BUSY_PAUSE, _LONGEST_PAUSE = 0.05, 0.1, 2.0  # seconds between two looks into the inbox
_MANY = 64  # open tasks: then ends are collected together
_OTHERS = 1.0  # seconds between two looks at the run that this one helps
_PATIENCE = 15.0  # seconds in which tasks that are put back arrive
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
_MOST_SHOWN = 20  # messages of failed tasks


@dataclass(frozen=True)
class Wishes:
    """What a person wants of a run. `slots`: cores of this computer; `fresh`: more lines, if any.

    `retry`: which of the tasks with an end are to run again.
    """

    slots: int | None = None
    retries: int = 0
    timeout: float | None = None
    longest_first: bool = False
    prefer_order: bool = False
    retry: Callable[[Standing], Sequence[Task]] = lambda standing: ()
    fresh: Callable[[], Sequence[Task]] | None = None


class Farm:
    """One run. `run` does all of it, in the main thread."""

    def __init__(
        self,
        location: Location,
        is_here: bool,
        tasks: TaskList,
        state: State,
        wishes: Wishes,
        screen: Screen,
    ) -> None:
        """Begin the run. Raises KochiError, and OSError."""
        self._location, self._is_here = location, is_here
        self._list, self._state, self._wishes, self._screen = tasks, state, wishes, screen
        self._machine = location.prepare_machine()
        self._layout = Layout(str(self._machine.directory))
        self._directory = os.path.realpath(state.directory)
        word = safe_name(tasks.name)[-30:].lstrip(".-")
        self._queue = f"farm-{word}-{_digest(self._directory)}"
        facts = {**facts_of_run(self._queue, ()), "farm": self._directory}
        if not is_here:
            facts["allocations"] = word, random_word()
        self._run = Run.begin(self._layout, self._directory, facts, is_gone)
        self._wake = Wake(self._run.paths.wake)
        self._signal = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._over = threading.Event()
        self._stop: tuple[str, int] | None = None  # why, and the status
        self._stops = 0
        self._is_fenced = False
        self._notices = Notices(screen)
        self._todo: deque[Task] = deque()
        self._open: dict[tuple[int, int], tuple[Task, Ticket]] = {}
        self._fitting: dict[Resources, Resources] = {}
        self._adopted: dict[tuple[int, int], Job] = {}
        self._finished = self._failed = 0
        self._cwd = os.getcwd()
        self._deadline = math.inf
        self._workers: Any = self._local_workers()
        self._telling = Telling(*(self._machine, self._directory, screen, location.to_start_worker))

    # ---- all of it

    def run(self) -> int:
        """Until all tasks have ended; the exit status. Raises KochiError."""
        before = {number: signal.signal(number, self._note_signal) for number in _STOPS}
        live(self._run, self._over, self._note_fenced)
        if self._wishes.timeout is not None:
            self._deadline = clock.now() + self._wishes.timeout
        try:
            self._await_earlier()
            if not self._is_here:
                self._workers = self._allocated_workers()
            self._begin()
            self._work()
        except FencedError:
            self._is_fenced = True
        finally:
            self._leave()
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._is_fenced:
            raise KochiError("another farm took over this list (no heartbeat); stopping")
        if self._stop is not None:
            return self._stop[1]
        return FAILED if self._state.standing(self._list.tasks).failed else 0

    @property
    def why_stopped(self) -> str:
        return self._stop[0] if self._stop else ""

    def _note_signal(self, number: int, frame: Any) -> None:
        self._stops += 1
        self._stop = self._stop or (signal.Signals(number).name, 128 + number)
        self._rouse()

    def _note_fenced(self) -> None:
        self._is_fenced = True
        self._rouse()

    def _rouse(self) -> None:
        os.eventfd_write(self._signal, 1)

    def _wait(self, seconds: float) -> bool:
        """Whether to go on. Raises FencedError."""
        seconds = min(seconds, max(0.0, self._deadline - clock.now()))
        self._wake.wait(seconds, self._signal, *self._workers.descriptors)
        with suppress(BlockingIOError):
            os.eventfd_read(self._signal)
        if self._is_fenced:
            raise FencedError
        if clock.now() >= self._deadline and self._stop is None:
            self._stop = "--timeout is over", TIMEOUT
        return self._stop is None

    # ---- workers

    def _local_workers(self) -> LocalWorkers:
        settings = WorkerSettings(
            str(self._location.root.directory),
            self._machine.name,
            cores=self._wishes.slots,
            stay=True,
            controller=str(self._run.number),
            any_run=True,
        )
        return LocalWorkers(settings, int(self._is_here), self._machine, self._screen)

    def _allocated_workers(self) -> Any:
        # Imported here: most farms are on one computer.
        from snakemake_kochi.executor.adopted import allocations_of
        from snakemake_kochi.executor.allocated import AllocatedWorkers

        runs = [(run, allocations_of(self._layout, run)) for run in self._run.parts]
        names = {run: name for run, name in runs if name is not None}
        own = self._location, self._layout, names
        return AllocatedWorkers(*own, self._by_queue, self._screen)

    def _by_queue(self) -> dict[str, dict[tuple[int, int], Ticket]]:
        return {self._queue: {key: ticket for key, (_, ticket) in list(self._open.items())}}

    def _serve(self) -> None:
        try:
            self._workers.serve({self._queue}, lambda queue: NO_REQUEST)
        except OSError as error:  # tried again
            self._notices.fault("no worker can be started now", error)

    def _fit(self, task: Task) -> Resources:
        """What a task takes on a worker. Raises KochiError if none can ever run it."""
        if task.needs not in self._fitting:
            try:
                self._fitting[task.needs] = self._workers.fit("TASK", task.needs)
            except KochiError as error:
                text = error.message.removeprefix("rule TASK").lstrip(":, ")
                where = f"{self._list.name}, task {task.id}"
                raise KochiError(f"{where}: {text}", error.hint) from error
        return self._fitting[task.needs]

    # ---- earlier runs of this list

    def _await_earlier(self) -> None:
        """Help the run of this list that lives; take over when it is over."""
        is_helping = False
        while self._stop is None:
            alive: dict[int, Any] = {}
            try:
                if not (alive := self._run.adopt()):
                    return
                if is_helping:
                    self._workers.tick(True)
            except OSError as error:
                self._notices.fault("earlier runs cannot be read now", error)
            for number, facts in alive.items():
                node = facts["node"]["host"]
                does = "adds its workers to it" if self._is_here else "waits for it"
                self._notices.info(
                    f"run {number} on {node} (process {facts['process']['pid']}) works on this "
                    f"list; this one {does}"
                )
            if alive and not is_helping and self._is_here:
                is_helping = True
                self._serve()
            self._wait(_OTHERS)

    def _begin(self) -> None:
        """Note what earlier runs left, and decide what is to be done."""
        self._state.read()
        for job in self._run.open:
            self._adopted[job.run, job.number] = job
        self._collect()
        standing = self._state.standing(self._list.tasks)
        if again := self._wishes.retry(standing):
            self._state.forget(again)
            standing = self._state.standing(self._list.tasks)
        self._finished, self._failed = len(standing.finished), len(standing.failed)
        running = {job.key.rpartition(".")[0] for job in self._adopted.values()}
        todo = [t for t in standing.left if f"{t.id}.{t.digest}" not in running]
        if self._wishes.longest_first:
            known = self._state.seconds()
            todo.sort(key=lambda task: -known.get(task.digest, float("inf")))
        for task in todo:
            task.needs = self._fit(task)
        self._todo.extend(todo)

    # ---- tasks

    def _work(self) -> None:
        if not (self._todo or self._run.open or self._wishes.fresh):
            return
        self._screen.info(
            f"run {self._run.number}: {pluralize(len(self._todo), 'task')} to do, "
            f"{self._finished} finished before"
        )
        self._serve()
        pause, look_due = _PAUSE, 0.0
        most = _MOST_HERE if self._is_here else _MOST_ALLOCATED
        while True:
            try:
                if self._wishes.fresh is not None and clock.now() >= look_due:
                    self._take_fresh(self._wishes.fresh())
                self._submit(most)
                if not (self._todo or self._run.open or self._wishes.fresh):
                    return
                ended = self._collect()
                pause = _PAUSE if ended else min(2 * pause, _LONGEST_PAUSE)
                if self._workers.tick(bool(self._run.open)):
                    look_due = 0.0
                self._telling.check_room()
                if clock.now() >= look_due:
                    look_due = clock.now() + INTERVAL
                    self._look()
                self._notices.over("the state of the run cannot be read now")
            except OSError as error:
                self._notices.fault("the state of the run cannot be read now", error)
                pause = _LONGEST_PAUSE
            left = len(self._todo) + len(self._run.open)
            self._screen.progress(self._finished, self._failed, left)
            if not self._wait(pause):
                return
            if len(self._run.open) > _MANY:
                time.sleep(_BUSY_PAUSE)

    def _take_fresh(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            task.needs = self._fit(task)
        self._todo.extend(tasks)

    def _look(self) -> None:
        if self._adopted:  # what waits is handed over again, to workers of this run
            withdraw(self._layout, self._queue, self._adopted.keys())
        self._telling.look(self._by_queue(), self._workers.will_serve)
        self._run.look_after()
        self._serve()

    def _submit(self, most: int) -> None:
        size = _FIRST if not self._open else SHARD
        while self._todo and len(self._run.open) + SHARD <= most:
            tasks = [self._todo.popleft() for _ in range(min(size, len(self._todo)))]
            size = SHARD
            first = self._run.next
            tickets = [self._ticket(task) for task in tasks]
            keys = [f"{task.id}.{task.digest}.{task.attempt}" for task in tasks]
            numbers = range(first, first + len(tasks))
            for number, task, ticket in zip(numbers, tasks, tickets, strict=True):
                self._open[self._run.number, number] = task, ticket
            data = [json.dumps(t.to_dict(), separators=(",", ":")).encode() for t in tickets]
            try:
                self._run.submit(self._queue, dict(zip(keys, data, strict=True)))
            except BaseException:
                if not any(job.number == first for job in self._run.open):
                    for number in numbers:
                        del self._open[self._run.number, number]
                    self._todo.extendleft(reversed(tasks))
                raise
            wake_workers(self._layout, self._queue)

    def _ticket(self, task: Task) -> Ticket:
        number = str(task.id)
        return Ticket(
            name=printable(f"{self._list.name}:{number}"),
            command=("bash", "-c", task.text),
            directory=self._cwd,
            environment={"PROC_NUMBER": number, "KOCHI_TASK_ID": number},
            resources=task.needs,
            labels={"task": number},
            queue=self._queue,
            machine=self._machine.name,
        )

    # ---- ends

    def _collect(self) -> bool:
        """Note what has ended; whether anything has. Raises FencedError, and OSError."""
        ends = self._run.collect()
        noted: list[Ended] = []
        for end in ends:
            task, _ = self._open.pop(end.name.key, (None, None))
            is_adopted = self._adopted.pop(end.name.key, None) is not None
            if task is None and (not end.key or self._state.has(*end.name.key)):
                continue
            if end.name.state == CANCELLED and (is_adopted or end.name.worker == "c"):
                self._put_back(task, end)
                continue
            noted.append(ended := self._ended(end))
            self._judge(task, ended, end)
        if noted:
            self._state.note(noted)
            self._telling.note_room(True)
        return bool(ends)

    def _put_back(self, task: Task | None, end: End) -> None:
        if task is None:  # of an earlier run: the line may have changed
            number, digest, attempt = end.key.split(".")
            task = next((t for t in self._list.tasks if t.id == int(number)), None)
            if task is None or task.digest != digest:
                return
            task.attempt = int(attempt)
        self._todo.appendleft(task)

    def _ended(self, end: End) -> Ended:
        details = details_of(end)
        number, digest, attempt = end.key.split(".")
        seconds = seconds_between(details.get("started"), details.get("ended"))
        return Ended(
            int(number),
            digest,
            end.name.state,
            seconds or 0.0,
            int(details.get("peak_memory_mb") or 0),
            int(attempt),
            str(end.name),
            described(end),
        )

    def _judge(self, task: Task | None, ended: Ended, end: End) -> None:
        if ended.is_success:
            self._finished += 1
            return
        if task is not None and self._tries_again(task, ended):
            return
        self._failed += 1
        if self._failed <= _MOST_SHOWN:
            text = "" if task is None else f": {shortened(printable(task.text), 200)}"
            self._screen.warning(f"task {ended.id} failed: {ended.reason}{text}")
        with suppress(OSError):
            content = log_of(self._layout.run(end.name.run), end.name)
            self._state.keep_log(ended.id, content or b"")

    def _tries_again(self, task: Task, ended: Ended) -> bool:
        if task.attempt > self._wishes.retries or ended.state == CANCELLED:
            return False
        again, more = replace(task, attempt=task.attempt + 1), ""
        if ended.state == "memory":
            memory = 2 * max(task.needs.memory_mb or 0, ended.memory_mb, 1)
            again.needs = replace(task.needs, memory_mb=memory)
            try:
                again.needs = self._fit(again)
            except KochiError:
                return False
            if again.needs == task.needs:
                return False
            more = f" with {again.needs.memory_mb} MiB"
        self._screen.info(f"task {task.id}: {ended.reason}; it is tried again{more}")
        if self._wishes.prefer_order:
            self._todo.appendleft(again)
        else:
            self._todo.append(again)
        return True

    # ---- the end

    def _leave(self) -> None:
        """Whatever cannot be read or written: no worker stays behind."""
        if self._is_fenced:
            self._workers.abandon()
        else:
            if self._stop is not None:
                with suppress(OSError):
                    withdraw(self._layout, self._queue, self._open.keys())
            self._workers.stop(lambda: self._stops > 1)
            try:
                self._settle()
            except FencedError:
                self._is_fenced = True
            except OSError as error:
                self._screen.warning(f"Not all of the last steps worked: {error}")
        self._over.set()
        self._wake.close()
        self._screen.clear()

    def _settle(self) -> None:
        until = clock.now() + _PATIENCE
        while True:
            self._collect()
            # Another farm may still run some; it takes over.
            if not self._run.open or clock.now() >= until or not self._withdrawn():
                break
            self._wake.wait(_PAUSE)
        self._run.fold()
        if self._run.open:
            return
        self._run.end()
        directory = self._layout.queue(self._queue).directory
        if not any(text.startswith(SERVING) for text in listing(directory)):
            removed(directory)

    def _withdrawn(self) -> int:
        keys = {(job.run, job.number) for job in self._run.open}
        running = Name.parse_all(listing(self._layout.queue(self._queue).running))
        held = {name.key for name in running}
        return withdraw(self._layout, self._queue, keys) or keys - held != set()


def _digest(text: str) -> str:
    import hashlib

    return hashlib.blake2b(os.fsencode(text), digest_size=4).hexdigest()
