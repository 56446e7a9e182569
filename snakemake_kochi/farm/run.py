"""The run of a list: it hands over tasks, collects their ends, and tries again what failed."""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from humanfriendly.text import pluralize

from snakemake_kochi.base import clock
from snakemake_kochi.base.wake import Wake, wake
from snakemake_kochi.errors import KochiError, printable
from snakemake_kochi.executor.ends import CANCELLED, SUCCESS, details_of, ending_of
from snakemake_kochi.executor.life import live
from snakemake_kochi.executor.telling import Telling
from snakemake_kochi.executor.workers import LocalWorkers, TimeIsOverError
from snakemake_kochi.farm.state import Ended, State
from snakemake_kochi.farm.tasks import Task
from snakemake_kochi.files import random_word, safe_name
from snakemake_kochi.hints import typed
from snakemake_kochi.location import Location
from snakemake_kochi.logger.handler import Progress
from snakemake_kochi.notices import Notices
from snakemake_kochi.processes import is_gone
from snakemake_kochi.quantities import format_duration, seconds_between
from snakemake_kochi.queue.runs import facts_of_run
from snakemake_kochi.queue.views import serving
from snakemake_kochi.schedulers.interface import NO_REQUEST, OF_JOB
from snakemake_kochi.tickets import hand, moving
from snakemake_kochi.tickets.names import Layout, Name, wake_workers
from snakemake_kochi.tickets.run import SHARD, End, Run
from snakemake_kochi.tickets.ticket import Ticket
from snakemake_kochi.tickets.watching import INTERVAL, FencedError
from snakemake_kochi.worker.settings import WorkerSettings

FAILED, TIMEOUT = 123, 124
_MOST_HERE, _MOST_ALLOCATED, _MOST_IN_ORDER = 1024, 4096, 128  # tasks handed over at a time
_FIRST = 8  # that are handed over first: they run while the tickets of others are made
_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds between two looks into the inbox
_MANY, _BUSY_PAUSE = 64, 0.25  # open tasks: then ends are collected together
_OTHERS = 1.0  # seconds between two looks at the run that this one helps
_PATIENCE = 15.0  # seconds in which tasks that are put back arrive
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
_MOST_SHOWN = 20  # messages of failed tasks
_FITTING = "Ask for less: by --cores, --mem, --gpus and --time, or `#: cores=N` on the line."


@dataclass(frozen=True)
class Wishes:
    """`slots`: cores of this computer; `retry`: ids, or none of them for all that failed;
    `fresh`: adds to the tasks of the list, if there may be more; `around`: what bash executes
    for a command."""

    slots: int | None = None
    fresh: Callable[[], Iterable[Task]] | None = None
    around: Callable[[str], str] = str
    retries: int = 0
    timeout: float | None = None
    longest_first: bool = False
    prefer_order: bool = False
    retry: Collection[int] | None = None


class Screen:
    """Messages and a line of progress on standard error; takes the place of a logger, too."""

    def __init__(self) -> None:
        self._is_terminal, self._progress = sys.stderr.isatty(), Progress()

    def info(self, text: str, **_: Any) -> None:
        self.show(typed(f"kochi: {text}"), "\n")

    warning = error = debug = info

    def show(self, text: str = "", end: str = "") -> None:
        text = f"\r{text}\x1b[K" if self._is_terminal else text
        print(text, end=end, file=sys.stderr, flush=True)

    def progress(self, done: int, failed: int, left: int) -> None:
        """`failed`: of those that are done; `left`: those that run or wait."""
        self._progress.note(done, done + left)
        text = f"{done} of {done + left} tasks" + (f", {failed} failed" if failed else "")
        if seconds := self._progress.left():
            text += f", {left / seconds:.3g} per second, {format_duration(seconds)} left"
        if self._is_terminal:
            self.show(text)
        elif self._progress.due_in() <= 0:
            self._progress.shown()
            self.info(text)


class Farm:
    """One run. `run` does all of it, in the main thread."""

    def __init__(
        self, location: Location, is_here: bool, state: State, wishes: Wishes, screen: Screen
    ) -> None:
        """Begin the run. Raises KochiError, and OSError."""
        self._location, self._is_here, self._state = location, is_here, state
        self._wishes, self._screen, self._notices = wishes, screen, Notices(screen)
        self._machine = location.prepare_machine()
        state.prepare(self._machine.directory)
        self._layout, directory = Layout(str(self._machine.directory)), str(state.directory)
        word = safe_name(state.name)[-30:].lstrip(".-")
        digest = hashlib.blake2b(os.fsencode(directory), digest_size=4).hexdigest()
        self._queue = f"farm-{word}-{digest}"
        facts = {**facts_of_run(self._queue, ()), "farm": directory}
        if not is_here:
            facts["allocations"] = word, random_word()
        self._run = Run.begin(self._layout, directory, facts, is_gone)
        self._wake = Wake(self._run.paths.wake)
        self._over, self._fenced = threading.Event(), threading.Event()
        self.stop: tuple[str, int] | None = None  # why, and the status
        self._stops, self._has_begun, self._is_leaving = 0, False, False
        self._todo: deque[Task] = deque()
        self._open: dict[str, tuple[Task, Ticket]] = {}  # by the keys of jobs
        self._fit = lru_cache(lambda needs: self._workers.fit("TASK", needs))
        self._ended: list[tuple[Task | None, Ended, End]] = []  # not noted yet
        self._done = self._failed = 0  # in this run
        self._deadline = math.inf if wishes.timeout is None else clock.now() + wishes.timeout
        self._look_due = 0.0
        own, run = (str(location.root.directory), self._machine.name), str(self._run.number)
        slots = wishes.slots
        settings = WorkerSettings(*own, cores=slots, stay=True, controller=run, any_run=True)
        self._workers: Any = LocalWorkers(settings, int(is_here), self._machine, screen)
        self._telling = Telling(self._machine, directory, screen, location.to_start_worker)

    def run(self) -> int:
        """Until all tasks have ended; the exit status. Raises KochiError."""
        for number in _STOPS:
            signal.signal(number, self._note_signal)
        live(self._run, self._over, self._fenced.set)
        try:
            self._work()
        except FencedError:
            self._fenced.set()
        finally:
            self._leave()
        if self._fenced.is_set():
            raise KochiError("another farm took over this list (no heartbeat); stopping")
        if self.stop is not None:
            return self.stop[1]
        return FAILED if self._state.standing().failed else 0

    def _note_signal(self, number: int, frame: Any) -> None:
        self._stops += 1
        self.stop = self.stop or (signal.Signals(number).name, 128 + number)
        wake(self._run.paths.wake)

    def _wait(self, seconds: float) -> bool:
        """Whether to go on. Raises FencedError."""
        if self.stop is None:
            seconds = min(seconds, max(0.0, self._deadline - clock.now()))
            self._wake.wait(seconds, *self._workers.descriptors)
        if self._fenced.is_set():
            raise FencedError
        if clock.now() >= self._deadline:
            self.stop = self.stop or ("--timeout is over", TIMEOUT)
        return self.stop is None

    def _work(self) -> None:
        pause, fault = 0.0, "the state of the run cannot be read now"
        while not self._is_over and self._wait(pause):
            try:
                if self._has_begun:
                    self._hand_over()
                    pause = _PAUSE if self._collect() else min(2 * pause, _LONGEST_PAUSE)
                else:
                    pause = _PAUSE if self._begin() else _OTHERS
                self._notices.over(fault)
            except TimeIsOverError as error:
                self.stop = self.stop or (error.message, TIMEOUT)
            except OSError as error:
                self._notices.fault(fault, error)
                pause = _LONGEST_PAUSE
            if len(self._run.open) > _MANY:
                time.sleep(_BUSY_PAUSE)

    @property
    def _is_over(self) -> bool:
        has_more = self._todo or self._run.open or self._ended or self._wishes.fresh
        return self._has_begun and not has_more

    def _begin(self) -> bool:
        """Decide what is to be done; False while another run of this list lives, which it helps."""
        if alive := self._run.adopt():
            if self._is_here:
                self._workers.serve({self._queue}, lambda queue: NO_REQUEST)
                self._workers.tick(True)
            number, facts = min(alive.items())
            where = f" on {facts['node']['host']}" if facts else ""
            does = "adds its workers" if self._is_here else "waits for it"
            self._notices.info(f"run {number}{where} works on this list; this one {does}")
            return False
        if not self._is_here and isinstance(self._workers, LocalWorkers):
            # Imported here: most farms are on one computer.
            from snakemake_kochi.executor.adopted import allocations_of
            from snakemake_kochi.executor.allocated import AllocatedWorkers

            runs = [(run, allocations_of(self._layout, run)) for run in self._run.parts]
            names = {run: name for run, name in runs if name is not None}
            own = self._location, self._layout, names, self._by_queue, self._screen
            self._workers = AllocatedWorkers(*own)
        self._state.read()
        self._collect()
        known = self._state.seconds() if self._wishes.longest_first else {}
        if self._wishes.retry is not None:
            self._state.forget(self._wishes.retry)
        standing = self._state.standing()
        # What runs for a dead run is awaited, as far as the list still has it.
        keys = {job.key.rpartition(".")[0]: job.key for job in self._run.open}
        todo = [task for task in standing.left if f"{task.id}.{task.digest}" not in keys]
        for task in map(self._fitted, standing.left):
            if key := keys.get(f"{task.id}.{task.digest}"):
                self._open[key] = task, self._ticket(task)
        if self._wishes.longest_first:
            todo.sort(key=lambda task: -known.get(task.digest, math.inf))
        self._todo, self._has_begun = deque(todo), True
        if not self._is_over:
            count, before = len(todo) + len(self._open), len(self._open)
            handed = f" ({before} of them handed over before)" if before else ""
            self._screen.info(
                f"run {self._run.number}: {pluralize(count, 'task')} to do{handed}, "
                f"{len(standing.finished)} finished before"
            )
        return True

    def _hand_over(self) -> None:
        if is_due := clock.now() >= self._look_due:
            self._look_due = clock.now() + (_OTHERS if self._wishes.fresh else INTERVAL)
            self._workers.serve({self._queue}, lambda queue: NO_REQUEST)
            if self._wishes.fresh:
                for task in self._wishes.fresh():
                    try:
                        self._todo.append(self._fitted(task))
                    except KochiError as error:  # the next farm refuses it
                        self._screen.warning(f"{error.message}; it is left out")
            jobs = self._run.open  # what waits is handed over again, to workers of this run
            if former := {(j.run, j.number) for j in jobs if j.run != self._run.number}:
                hand.withdraw(self._layout, self._queue, former)
        self._submit()
        if is_due and self._run.open:
            self._telling.look(self._by_queue(), self._workers.will_serve)
        left = len(self._todo) + len(self._run.open)
        if self._workers.tick(left > 0):
            self._look_due = 0.0  # one has died, which had jobs
        self._telling.check_room()
        if is_due:
            self._run.look_after()  # once those that it knows have been noted
        self._screen.progress(self._done, self._failed, left)

    # ---- workers

    def _by_queue(self) -> dict[str, dict[tuple[int, int], Ticket]]:
        known = [(job, self._open.get(job.key)) for job in self._run.open]
        return {self._queue: {(job.run, job.number): of[1] for job, of in known if of}}

    def _fitted(self, task: Task) -> Task:
        """Have it ask for what a worker can give. Raises KochiError if none ever can."""
        try:
            task.needs = self._fit(task.needs)
        except KochiError as error:
            text = error.message.replace("rule TASK", f"{self._state.name}, line {task.id}")
            raise KochiError(text.replace(OF_JOB, "what it needs"), _FITTING) from error
        return task

    # ---- tasks

    def _submit(self) -> None:
        most, portion = (_MOST_HERE if self._is_here else _MOST_ALLOCATED), SHARD
        if self._wishes.prefer_order:
            most, portion = _MOST_IN_ORDER, _FIRST
        while self._todo and len(self._run.open) + portion <= most:
            size = min(portion if self._open else _FIRST, len(self._todo))
            tasks = [self._todo.popleft() for _ in range(size)]
            made = {f"{t.id}.{t.digest}.{t.attempt}": (t, self._ticket(t)) for t in tasks}
            self._open |= made
            contents = {k: json.dumps(made[k][1].to_dict()).encode() for k in made}
            try:
                self._run.submit(self._queue, contents)
            except BaseException:
                if not made.keys() & {job.key for job in self._run.open}:
                    self._open = {k: of for k, of in self._open.items() if k not in made}
                    self._todo.extendleft(reversed(tasks))
                raise
            wake_workers(self._layout, self._queue)

    def _ticket(self, task: Task) -> Ticket:
        number, name = str(task.id), printable(f"{self._state.name}:{task.id}")
        names = {"PROC_NUMBER": number, "KOCHI_TASK_ID": number}
        own = name, ("bash", "-c", self._wishes.around(task.text)), os.getcwd(), names, task.needs
        machine, queue = self._machine.name, self._queue
        return Ticket(*own, labels={"task": number}, queue=queue, machine=machine)

    # ---- ends

    def _collect(self) -> bool:
        """Note what has ended; whether anything has. Raises FencedError, and OSError."""
        ends = self._run.collect()
        for end in ends:
            task, _ = self._open.pop(end.key, (None, None))
            is_former = end.name.run != self._run.number
            if not end.key or (is_former and self._state.has(end.name)):
                continue
            # A person cancels tasks, too.
            if end.name.worker == hand.WITHDRAWN and (is_former or self._is_leaving):
                self._todo.extendleft([] if task is None else [task])
            else:
                self._ended.append((task, _ended(end), end))
        if self._ended:
            self._state.note([ended for _, ended, _ in self._ended])
            self._telling.note_room(True)
            self._workers.job_ended()
        noted, self._ended = self._ended, []
        for each in noted:
            self._judge(*each)
        return bool(ends)

    def _judge(self, task: Task | None, ended: Ended, end: End) -> None:
        if ended.state == SUCCESS:
            self._done += 1
        elif task is None or not self._tries_again(task, ended):
            self._done, self._failed = self._done + 1, self._failed + 1
            if self._failed <= _MOST_SHOWN:
                text = "" if task is None else f": {printable(task.text, 200)}"
                self._screen.warning(f"task {ended.id} failed: {ended.reason}{text}")
            with suppress(OSError):
                self._state.keep_log(ended.id, end.name)

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
                again = task
            if again.needs == task.needs:
                return False
            more = f" with {again.needs.memory_mb} MiB"
        self._screen.info(f"task {task.id}: {ended.reason}; it is tried again{more}")
        (self._todo.appendleft if self._wishes.prefer_order else self._todo.append)(again)
        return True

    # ---- the end

    def _leave(self) -> None:
        """Whatever cannot be read or written: no worker stays behind."""
        self._is_leaving = True
        if self._fenced.is_set():
            self._workers.abandon()
        else:
            self._workers.stop(lambda: self._stops > 1)
            try:
                self._settle()
            except FencedError:
                self._fenced.set()
            except OSError as error:
                self._screen.warning(f"not all of the last steps worked: {error}")
        self._over.set()
        self._wake.close()
        self._screen.show()

    def _settle(self) -> None:
        """Put back what has not ended; what another farm runs, is left to it."""
        until, running = clock.now() + _PATIENCE, self._layout.queue(self._queue).running
        while True:
            self._collect()
            keys = {(job.run, job.number) for job in self._run.open}
            if not keys or clock.now() >= until:
                break
            hand.withdraw(self._layout, self._queue, keys)
            if keys <= {name.key for name in Name.parse_all(moving.listing(running))}:
                break
            self._wake.wait(_PAUSE)
        self._run.fold()
        if not self._run.open:
            # Nobody else submits to it; helpers serve it, and do so next.
            if self._has_begun and not serving(self._layout, self._queue):
                hand.remove_queue(self._layout, self._queue)
            self._run.end()


def _ended(end: End) -> Ended:
    details = details_of(end)
    number, digest, attempt = end.key.split(".")
    seconds = seconds_between(details.get("started"), details.get("ended")) or 0.0
    memory = int(details.get("peak_memory_mb") or 0)
    what = int(number), digest, end.name.state, round(seconds, 3), memory
    return Ended(*what, int(attempt), str(end.name), printable(ending_of(end)))
