"""The run of a list: it hands over tasks, collects their ends, and tries again what failed."""

from __future__ import annotations

import hashlib
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

from snakemake_kochi.base import clock, files
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
from snakemake_kochi.tickets.hand import WITHDRAWN, withdraw
from snakemake_kochi.tickets.history import log_of
from snakemake_kochi.tickets.moving import listing, removed
from snakemake_kochi.tickets.names import SERVING, Layout, Name, make_queue, wake_workers
from snakemake_kochi.tickets.run import SHARD, End, Job, Run
from snakemake_kochi.tickets.ticket import Resources, Ticket
from snakemake_kochi.tickets.watching import INTERVAL, FencedError
from snakemake_kochi.worker.settings import WorkerSettings

FAILED, TIMEOUT = 123, 124
_MOST_HERE, _MOST_ALLOCATED = 1024, 4096  # tasks that are handed over at a time
_MOST_IN_ORDER = 128
_FIRST = 8  # that are handed over first: they run while the tickets of others are made
_PAUSE, _BUSY_PAUSE, _LONGEST_PAUSE = 0.05, 0.1, 2.0  # seconds between two looks into the inbox
_MANY = 64  # open tasks: then ends are collected together
_OTHERS = 1.0  # seconds between two looks at the run that this one helps
_PATIENCE = 15.0  # seconds in which tasks that are put back arrive
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
_MOST_SHOWN = 20  # messages of failed tasks
_FAULT = "the state of the run cannot be read now"

Key = tuple[int, int]  # of a job: run and number


@dataclass(frozen=True)
class Wishes:
    """What a person wants of a run. `slots`: cores of this computer; `fresh`: more lines, if any.

    `retry`: the ends of tasks that are to run again; `around`: what bash executes for a command.
    """

    slots: int | None = None
    retries: int = 0
    timeout: float | None = None
    longest_first: bool = False
    prefer_order: bool = False
    retry: Callable[[Standing], Sequence[bytes]] = lambda standing: ()
    fresh: Callable[[], Sequence[Task]] | None = None
    around: Callable[[str], str] = str


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
        self._open: dict[Key, tuple[Task, Ticket]] = {}
        self._fitting: dict[Resources, Resources] = {}
        self._adopted: dict[Key, Job] = {}
        self._by_id: dict[int, Task] = {}
        self._finished = self._failed = 0
        self._cwd = os.getcwd()
        self._deadline = math.inf if wishes.timeout is None else clock.now() + wishes.timeout
        self._workers: Any = self._local_workers()
        self._telling = Telling(*(self._machine, self._directory, screen, location.to_start_worker))

    # ---- all of it

    def run(self) -> int:
        """Until all tasks have ended; the exit status. Raises KochiError."""
        before = {number: signal.signal(number, self._note_signal) for number in _STOPS}
        live(self._run, self._over, self._note_fenced)
        try:
            self._await_earlier()
            if self._stop is None:
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
        if clock.now() >= self._deadline:
            self._stop = self._stop or ("--timeout is over", TIMEOUT)
        return self._stop is None

    # ---- workers

    def _local_workers(self) -> LocalWorkers:
        settings = WorkerSettings(
            *(str(self._location.root.directory), self._machine.name),
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

    def _by_queue(self) -> dict[str, dict[Key, Ticket]]:
        return {self._queue: {key: ticket for key, (_, ticket) in list(self._open.items())}}

    def _serve(self) -> None:
        make_queue(self._layout, self._queue)
        self._workers.serve({self._queue}, lambda queue: NO_REQUEST)

    def _fitted(self, task: Task) -> Task:
        """Have it ask for what a worker can give. Raises KochiError if none ever can."""
        if task.needs not in self._fitting:
            try:
                self._fitting[task.needs] = self._workers.fit("TASK", task.needs)
            except KochiError as error:
                text = error.message.removeprefix("rule TASK").lstrip(":, ")
                where = f"{self._list.name}, task {task.id}"
                hint = None if self._is_here else error.hint
                raise KochiError(f"{where}: {text}", hint) from error
        task.needs = self._fitting[task.needs]
        return task

    # ---- earlier runs of this list

    def _await_earlier(self) -> None:
        """Help the run of this list that lives; take over when it is over."""
        while self._stop is None:
            try:
                if not (alive := self._run.adopt()):
                    return
                if self._is_here:
                    self._serve()
                    self._workers.tick(True)
                number, facts = min(alive.items())
                where = f" on {facts['node']['host']}" if facts else ""
                does = "adds its workers" if self._is_here else "waits for it"
                self._notices.info(f"run {number}{where} works on this list; this one {does}")
            except OSError as error:
                self._notices.fault(_FAULT, error)
            self._wait(_OTHERS)

    def _begin(self) -> None:
        """Note what earlier runs left, and decide what is to be done."""
        self._state.read()
        self._adopted = {(job.run, job.number): job for job in self._run.open}
        self._collect()
        known = self._state.seconds() if self._wishes.longest_first else {}
        standing = self._state.standing(self._list.tasks)
        if again := self._wishes.retry(standing):
            self._state.forget(again)
            standing = self._state.standing(self._list.tasks)
        self._finished, self._failed = len(standing.finished), len(standing.failed)
        running = {job.key.rpartition(".")[0] for job in self._adopted.values()}
        todo = [t for t in standing.left if f"{t.id}.{t.digest}" not in running]
        if self._wishes.longest_first:
            todo.sort(key=lambda task: -known.get(task.digest, math.inf))
        self._todo = deque(map(self._fitted, todo))

    # ---- tasks

    @property
    def _left(self) -> int:
        return len(self._todo) + len(self._run.open)

    def _work(self) -> None:
        if not (self._left or self._wishes.fresh):
            return
        running = f", {len(self._adopted)} still running" if self._adopted else ""
        self._screen.info(
            f"run {self._run.number}: {pluralize(len(self._todo), 'task')} to do, "
            f"{self._finished} finished before{running}"
        )
        pause, due = _PAUSE, 0.0
        while True:
            try:
                if is_due := clock.now() >= due:
                    due = clock.now() + (_OTHERS if self._wishes.fresh else INTERVAL)
                    self._look()
                self._submit()
                if not (self._left or self._wishes.fresh):
                    return
                pause = _PAUSE if self._collect() else min(2 * pause, _LONGEST_PAUSE)
                if self._workers.tick(self._left > 0):
                    due = 0.0  # one has died, which had jobs
                self._telling.check_room()
                if is_due:
                    self._run.look_after()  # once those that it knows have been noted
                self._notices.over(_FAULT)
            except OSError as error:
                self._notices.fault(_FAULT, error)
                pause = _LONGEST_PAUSE
            self._screen.progress(self._finished, self._failed, self._left)
            if not self._wait(pause):
                return
            if len(self._run.open) > _MANY:
                time.sleep(_BUSY_PAUSE)

    def _look(self) -> None:
        self._serve()
        self._telling.look(self._by_queue(), self._workers.will_serve)
        if self._wishes.fresh:
            self._todo.extend(map(self._fitted, self._wishes.fresh()))
        if self._adopted:  # what waits is handed over again, to workers of this run
            withdraw(self._layout, self._queue, self._adopted.keys())

    def _submit(self) -> None:
        most, portion = (_MOST_HERE if self._is_here else _MOST_ALLOCATED), SHARD
        if self._wishes.prefer_order:
            most, portion = _MOST_IN_ORDER, _FIRST
        size = portion if self._open else _FIRST
        while self._todo and len(self._run.open) + portion <= most:
            tasks = [self._todo.popleft() for _ in range(min(size, len(self._todo)))]
            size, first = portion, self._run.next
            own = {(self._run.number, first + i): (t, self._ticket(t)) for i, t in enumerate(tasks)}
            contents = {
                f"{task.id}.{task.digest}.{task.attempt}": json.dumps(ticket.to_dict()).encode()
                for task, ticket in own.values()
            }
            self._open |= own
            try:
                self._run.submit(self._queue, contents)
            except BaseException:
                if not any(job.number == first for job in self._run.open):
                    self._open = {key: v for key, v in self._open.items() if key not in own}
                    self._todo.extendleft(reversed(tasks))
                raise
            wake_workers(self._layout, self._queue)

    def _ticket(self, task: Task) -> Ticket:
        number = str(task.id)
        return Ticket(
            name=printable(f"{self._list.name}:{number}"),
            command=("bash", "-c", self._wishes.around(task.text)),
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
        noted: list[tuple[Task | None, Ended, End]] = []
        for end in ends:
            task, _ = self._open.pop(end.name.key, (None, None))
            is_adopted = self._adopted.pop(end.name.key, None) is not None
            if not end.key or self._state.has(*end.name.key):
                continue
            if end.name.state == CANCELLED and (is_adopted or end.name.worker == WITHDRAWN):
                self._put_back(task, end.key)
            else:
                noted.append((task, _ended(end), end))
        if noted:
            self._state.note([ended for _, ended, _ in noted])
            self._telling.note_room(True)
        for each in noted:
            self._judge(*each)
        return bool(ends)

    def _put_back(self, task: Task | None, key: str) -> None:
        if task is None:  # of an earlier run: the line may have changed
            number, digest, attempt = key.split(".")
            self._by_id = self._by_id or {task.id: task for task in self._list.tasks}
            task = self._by_id.get(int(number))
            if task is None or task.digest != digest:
                return
            task.attempt = int(attempt)
        self._todo.appendleft(task)

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
                self._fitted(again)
            except KochiError:
                return False
            if again.needs == task.needs:
                return False
            more = f" with {again.needs.memory_mb} MiB"
        self._screen.info(f"task {task.id}: {ended.reason}; it is tried again{more}")
        (self._todo.appendleft if self._wishes.prefer_order else self._todo.append)(again)
        return True

    # ---- the end

    def _leave(self) -> None:
        """Whatever cannot be read or written: no worker stays behind."""
        if self._is_fenced:
            self._workers.abandon()
        else:
            self._workers.stop(lambda: self._stops > 1)
            try:
                self._settle()
            except FencedError:
                self._is_fenced = True
            except (OSError, KochiError) as error:
                self._screen.warning(f"not all of the last steps worked: {error}")
        self._over.set()
        self._wake.close()
        self._screen.clear()

    def _settle(self) -> None:
        """Put back what has not ended; what another farm runs, is left to it."""
        until, paths = clock.now() + _PATIENCE, self._layout.queue(self._queue)
        while True:
            self._collect()
            keys = {(job.run, job.number) for job in self._run.open}
            if not keys or clock.now() >= until:
                break
            withdraw(self._layout, self._queue, keys)
            if keys <= {name.key for name in Name.parse_all(listing(paths.running))}:
                break
            self._wake.wait(_PAUSE)
        self._run.fold()
        if self._run.open:
            return
        with suppress(OSError):  # it was not made, or has tickets of another one
            if not any(text.startswith(SERVING) for text in files.names(paths.directory)):
                for directory in (paths.waiting, paths.running):
                    files.rmdir(directory)
                removed(paths.directory)
        self._run.end()


def _ended(end: End) -> Ended:
    details = details_of(end)
    number, digest, attempt = end.key.split(".")
    seconds = seconds_between(details.get("started"), details.get("ended")) or 0.0
    memory = int(details.get("peak_memory_mb") or 0)
    what = int(number), digest, end.name.state, seconds, memory
    return Ended(*what, int(attempt), str(end.name), described(end))


def _digest(text: str) -> str:
    return hashlib.blake2b(os.fsencode(text), digest_size=4).hexdigest()
