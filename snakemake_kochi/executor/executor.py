"""`--executor kochi`: the class that Snakemake instantiates.

Snakemake's thread calls `run_jobs`, which submits. `_watch` is the thread that collects ends and
reports them, and looks after the workers; see `life` for signs of life.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import os
import signal
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from humanfriendly.text import pluralize
from snakemake_interface_executor_plugins.executors.base import AbstractExecutor, SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.real import RealExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface

from snakemake_kochi.allocation.workers import HERE, check_where, location_of_run
from snakemake_kochi.base import clock
from snakemake_kochi.base.wake import Wake
from snakemake_kochi.errors import KochiError, UserError, for_snakemake, nearest
from snakemake_kochi.executor import ends
from snakemake_kochi.executor.admission import (
    Admission,
    described,
    note_refused,
    unknown_rules,
)
from snakemake_kochi.executor.adopted import (
    Adopted,
    Key,
    allocations_of,
    await_earlier,
    is_forced,
    is_over,
)
from snakemake_kochi.executor.allocated import AllocatedWorkers
from snakemake_kochi.executor.internals import (
    SchedulerWakes,
    is_told_to_end,
    keep_empty_directories,
    leave_to_adopter,
    locks_of_run,
    marks_are_files,
    without_jobs,
)
from snakemake_kochi.executor.life import live
from snakemake_kochi.executor.plugin import Executor, ExecutorSettings
from snakemake_kochi.executor.summary import Summary
from snakemake_kochi.executor.telling import Telling
from snakemake_kochi.executor.tickets import (
    RUNNERS,
    Tickets,
    label_of_run,
    outputs_of_run,
    with_readable_targets,
)
from snakemake_kochi.executor.workers import LocalWorkers
from snakemake_kochi.files import lacks_room, may_pass, random_word
from snakemake_kochi.files.together import Together
from snakemake_kochi.hints import typed
from snakemake_kochi.location import Location
from snakemake_kochi.notices import Notices
from snakemake_kochi.queue.runs import facts_of_run
from snakemake_kochi.tickets.hand import interrupt, withdraw
from snakemake_kochi.tickets.history import places
from snakemake_kochi.tickets.moving import listing, removed
from snakemake_kochi.tickets.names import wake_workers
from snakemake_kochi.tickets.run import SHARD, End, Job, Run
from snakemake_kochi.tickets.ticket import Resources, Ticket
from snakemake_kochi.tickets.watching import INTERVAL, SILENT, FencedError, facts_in
from snakemake_kochi.worker.settings import WorkerSettings

_log = logging.getLogger(__name__)

# Tickets that are submitted at once: the first of them run while those of the others are made.
_FIRST_PORTION = 8
_SHORTEST = 0.05  # seconds between two looks into the inbox
_PATIENCE = 15.0  # seconds in which cancelled jobs are to end
_RETRY = 0.5
_LONGEST_REST = 0.1  # seconds after ends, in which others may come
_PATIENCE_ON_FULL_DISK = 1.0
_LEAST_BEFORE_BREAK = 5.0  # seconds from the second interrupt of a run to one that breaks it off
_BROKEN_OFF = b"""\
kochi: broken off: a step of the shutdown does not end; perhaps a filesystem does not answer.
The workers of this run end with it; the next run in this directory adopts or cancels other jobs.
"""


@dataclass(frozen=True)
class Pending:
    """A job whose end is awaited.

    `queue`: where this run submits it; `adopted`: what is awaited instead, of an earlier run.
    """

    job: JobExecutorInterface
    ticket: Ticket
    queue: str
    adopted: Job | None = None


class KochiExecutor(Executor):
    """One run: it hands tickets to queues and reports each end at once."""

    _workers: LocalWorkers | AllocatedWorkers

    @for_snakemake
    def __post_init__(self) -> None:
        self.wait = False  # of RemoteExecutor: its polling thread has nothing to do
        settings = self.workflow.executor_settings
        self.logger.addFilter(_name_machine)
        location = location_of_run(settings.where, self.logger, settings.queue is not None)
        location.require_here()
        self._root = location.root
        with self._root.explaining():
            self._location = location
            count = _check_settings(settings, location)
            is_here = check_where(settings.where, location) == HERE or not count
            self._machine = location.prepare_machine()
            self._begin(settings, count, is_here)

    def _begin(self, settings: ExecutorSettings, count: int, is_here: bool) -> None:
        self._layout = self._machine.layout
        directory: str = self.workflow.workdir_init
        outputs = outputs_of_run(self.workflow, directory)
        facts = self._facts(settings.queue, outputs, is_here)
        self._run = Run.begin(self._layout, directory, facts, partial(is_over, self._machine))
        self._queue = f"run-{self._run.number}"
        self._wake = Wake(self._run.paths.wake)
        self._signal = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stopping, self._over, self._urgent = (threading.Event() for _ in range(3))
        self._is_fenced = self._is_broken = self._has_checked = self._has_submitted = False
        self._has_left = False
        self._submitting, self._changing = threading.Lock(), threading.Lock()
        self._pending: dict[Key, Pending] = {}
        self._held: deque[tuple[Pending, set[Key]]] = deque()  # until those jobs have ended
        self._late: deque[tuple[Pending, End]] = deque()  # ended in an earlier run
        self._queues, self._private = {settings.queue or self._queue}, {self._queue}
        self._summary = Summary(self._machine, self._run.number)
        self._notices, self._told = Notices(_log), Notices(self.logger)
        self._wakes, self._together = SchedulerWakes(self.workflow), Together()
        self._workers = self._local_workers(settings, count if is_here else 0)
        self._telling = Telling(
            *(self._machine, directory, self.logger, self._location.to_start_worker)
        )
        live(self._run, self._over, self._note_fenced)
        self._watcher = threading.Thread(target=self._watch, name="kochi-run", daemon=True)
        try:
            await_earlier(self._run, outputs, self._told)
            self._adopt_earlier()
            if not is_here:
                self._workers = self._allocated_workers()
        except BaseException:
            self._end()
            raise
        for warning in unknown_rules(self.workflow):
            self.logger.warning(warning)
        self._admission = Admission(
            *(self.workflow, self._machine, self._workers, self.logger),
            *(self._queue, settings.queue, count > 0),
        )
        inheriting = self._queue if count and is_here else None
        self._tickets = Tickets(self, settings.runner, self.logger, inheriting)
        atexit.register(self._end_unused)
        self._clean_at_exit()
        self._watcher.start()

    def _facts(self, queue: str | None, outputs: set[str] | None, is_here: bool) -> dict[str, Any]:
        """What this run says of itself."""
        directory = self.workflow.workdir_init
        facts = facts_of_run(queue, outputs, locks_of_run(self.workflow, directory))
        if not is_here:
            facts["allocations"] = label_of_run(self.workflow, directory), random_word()
        return facts

    def _clean_at_exit(self) -> None:
        if self._location.machine.clean is not None:
            # Imported here: few runs clean up.
            from snakemake_kochi.cleaning.automatic import clean_at_exit

            clean_at_exit(self._machine, Path.cwd(), lambda: True)

    def _allocated_workers(self) -> AllocatedWorkers:
        runs = [(run, allocations_of(self._layout, run)) for run in self._run.parts]
        names = {run: name for run, name in runs if name is not None}
        own = self._location, self._layout, names
        submitted = partial(self._by_queue, with_adopted=False)
        return AllocatedWorkers(*own, submitted, self.logger)

    def _local_workers(self, settings: ExecutorSettings, count: int) -> LocalWorkers:
        cores = settings.cores or self.workflow.resource_settings.cores
        of_each = WorkerSettings(
            str(self._root.directory),
            self._machine.name,
            cores=cores if isinstance(cores, int) else None,
            stay=True,
            controller=str(self._run.number),
        )
        return LocalWorkers(of_each, count, self._machine, self.logger)

    # ---- life

    def _note_fenced(self) -> None:
        self._is_fenced = True
        self._rouse()

    def _rouse(self) -> None:
        """Have the watching thread look."""
        os.eventfd_write(self._signal, 1)

    # ---- earlier runs

    def _adopt_earlier(self) -> None:
        self._private = {f"run-{run}" for run in self._run.parts}
        self._adopted = Adopted(self._layout, self._run.open)
        for end in self._run.collect():
            self._adopted.note(end)
        said = []
        running, finished = len(self._adopted.running), self._adopted.unread
        if running or finished:
            said.append(
                f"It left {running} running and {finished} finished kochi jobs; this run adopts "
                "those that it needs."
            )
        if count := self._adopted.cancelled:
            said.append(
                "1 of its jobs is cancelled, and starts again if this run needs it."
                if count == 1
                else f"{count} of its jobs are cancelled, and start again if this run needs them."
            )
        if said:
            self.logger.info(
                "An earlier run in this directory was killed, or reached its time limit. "
                f"{' '.join(said)}"
            )

    def _adopts(self, pending: Pending) -> bool:
        """Await a job of an earlier run, instead of submitting this one or before that."""
        if self._adopted.is_empty:
            return False
        with self._changing:
            is_wanted = not is_forced(self.workflow, pending.job)
            found = self._adopted.take(pending.ticket) if is_wanted else None
            if isinstance(found, Job):
                self._pending[found.run, found.number] = replace(pending, adopted=found)
            keys = set() if found else self._adopted.clear_way_for(pending.ticket)
        if keys:
            self._held.append((pending, keys))
            numbers = " ".join(f"{run}.{job}" for run, job in sorted(keys))
            self.logger.info(
                f"{pending.ticket.name} starts after the end of kochi jobs {numbers} of a killed "
                "run: they write the same files, but do other work."
            )
        if found is None:
            return bool(keys)
        run, job = (found.run, found.number) if isinstance(found, Job) else found.name.key
        how = "still runs" if isinstance(found, Job) else "has finished"
        self.logger.info(
            f"kochi job {run}.{job} of a killed run {how} and is not started again, log: "
            f"kochi show log job {run}.{job}"
        )
        self._register([pending], [f"{run}.{job}"])
        if isinstance(found, End):
            self._late.append((pending, found))
            self._rouse()
        return True

    # ---- submission, in Snakemake's thread

    @for_snakemake
    def run_jobs(self, jobs: list[JobExecutorInterface]) -> None:
        """Submit all jobs that are ready."""
        try:
            with self._root.explaining():
                # A queue keeps the order; Snakemake gives them in any order.
                self._submit_all(sorted(jobs, key=lambda job: -job.priority))
        except KochiError:
            # Older versions of Snakemake end without a call of `cancel` or `shutdown`.
            self.cancel()
            raise

    def run_job(self, job: JobExecutorInterface) -> None:
        self.run_jobs([job])

    def _submit_all(self, jobs: Sequence[JobExecutorInterface]) -> None:
        by_queue, refused = self._admission.admit(jobs)
        if not self._has_checked:
            self._has_checked = True
            if said := self._admission.what_never_runs(frozenset(jobs)):
                self.logger.warning(said)
                # Without those that only they need.
                by_queue, refused = self._admission.admit(jobs)
            self._queues |= self._named_queues()
        self._refuse(refused)
        for queue, those in by_queue.items():
            for portion in _portions(those, len(self._pending)):
                ready = []
                for job, resources in portion:
                    self.run_job_pre(job)
                    pending = Pending(job, self._tickets.of(job, resources, queue), queue)
                    if not self._adopts(pending):
                        ready.append(pending)
                if ready:
                    self._insist(queue, ready)

    def _named_queues(self) -> set[str]:
        """The queues that rules name: one worker is to serve all of them."""
        if self.workflow.executor_settings.queue is not None:
            return set()
        names = set()
        for name in self._admission.named_queues:
            with suppress(KochiError):  # of the job, which is refused
                names.add(self._machine.queue(name))
        return names

    def _refuse(self, refused: Sequence[tuple[JobExecutorInterface, KochiError]]) -> None:
        """Report jobs that can never run: those of one rule by one message."""
        by_rule = defaultdict(list)
        for job, why in refused:
            by_rule[job.name].append((job, why))
        for own in by_rule.values():
            (job, why), *others = own
            self.run_job_pre(job)
            text = described(own) if others else why.sentences
            self.report_job_error(SubmittedJobInfo(job), msg=text)
            for other, _ in others:
                self.workflow.scheduler.error_callback(other)
            note_refused(own)

    def _insist(self, queue: str, jobs: Sequence[Pending]) -> None:
        """Submit at most SHARD jobs, also after a full disk or a fault of the filesystem."""
        problem = f"jobs for queue {queue} cannot be submitted now, and are tried again"
        while True:
            try:
                with self._submitting, interrupts_deferred(self._urgent):
                    self._submit(queue, jobs)
                break
            except OSError as error:
                if not self._has_submitted or self._stopping.is_set() or not may_pass(error):
                    directory = self._layout.queue(queue).directory
                    raise KochiError(
                        f"no ticket was submitted: cannot write below {directory}: {error}"
                    ) from error
                self._note_fault(problem, error)
            time.sleep(_RETRY)
        self._notices.over(problem)
        if self._urgent.is_set():
            raise KeyboardInterrupt

    def _submit(self, queue: str, jobs: Sequence[Pending]) -> None:
        """Raises OSError: they were not submitted. Raises KochiError."""
        self._queues.add(queue)
        first = self._run.next
        keys = [(self._run.number, number) for number in range(first, first + len(jobs))]
        numbers = [f"{run}.{number}" for run, number in keys]
        # Before the tickets are in the queue: their ends may come at once.
        self._register(jobs, numbers)
        self._pending.update(zip(keys, jobs, strict=True))
        try:
            self._run.submit(queue, self._contents(queue, jobs, numbers))
        except FencedError as error:
            self._is_fenced = True
            raise KochiError(self._why_fenced()) from error
        except OSError:
            if not any((job.run, job.number) == keys[0] for job in self._run.open):
                for key in keys:
                    del self._pending[key]
                raise
        self._has_submitted = True
        wake_workers(self._layout, queue)
        try:
            self._workers.serve(set(self._queues), self._admission.request_of)
        except OSError as error:  # `_watch` tries again: the jobs are in the queue
            self._notices.fault("no worker can be started now", error)
        self._tell_numbers(queue, numbers)

    def _contents(
        self, queue: str, jobs: Sequence[Pending], numbers: Sequence[str]
    ) -> dict[str, bytes]:
        contents: dict[str, bytes] = {}
        for job, number in zip(jobs, numbers, strict=True):
            ticket = job.ticket.handed_over(0, queue, self._machine.name)
            data = json.dumps(ticket.to_dict(), separators=(",", ":")).encode()
            is_one = ticket.identity is not None and ticket.identity not in contents
            contents[str(ticket.identity) if is_one else number] = data
        return contents

    def _register(self, jobs: Sequence[Pending], numbers: Sequence[str]) -> None:
        """Report submitted jobs to Snakemake, which marks their outputs as incomplete."""
        infos = [
            SubmittedJobInfo(pending.job, external_jobid=number)
            for pending, number in zip(jobs, numbers, strict=True)
        ]
        for info in infos:
            # Not RemoteExecutor's method: it would add the job to those that it polls.
            RealExecutor.report_job_submission(self, info, register_job=False)
        marks = [partial(info.job.register, external_jobid=info.external_jobid) for info in infos]
        try:
            if marks_are_files(self.workflow):
                # One after the other would take longer than all the rest on a slow filesystem.
                self._together.all(marks)
            else:
                for mark in marks:
                    mark()
        except OSError as error:
            self.logger.info(
                f"Failed to mark the outputs of started jobs as incomplete ({error}). Snakemake "
                "goes on, but after a kill it may take such an output for a complete one."
            )

    def _tell_numbers(self, queue: str, numbers: Sequence[str]) -> None:
        # One message each takes Snakemake longer than the submission.
        if len(numbers) == 1:
            jobs, log = f"job {numbers[0]}", f"log: kochi show log job {numbers[0]}"
        else:
            jobs, log = f"jobs {numbers[0]} to {numbers[-1]}", "logs: kochi show log job JOB"
        self.logger.info(f"kochi {jobs} in queue {queue}, {log}", extra={"kochi_once": queue})

    # ---- ends, in a thread

    def _watch(self) -> None:
        pause, look_due = _SHORTEST, clock.now() + INTERVAL
        try:
            while not self._stopping.is_set():
                is_woken = self._wake.wait(pause, self._signal, *self._workers.descriptors)
                with suppress(BlockingIOError):
                    os.eventfd_read(self._signal)
                if self._is_fenced:
                    raise FencedError
                try:
                    began = clock.now()
                    if ended := self._report():
                        # More at a time: a look costs the server as much as an end.
                        self._stopping.wait(min(_LONGEST_REST, clock.now() - began))
                    # Workers on this computer wake it for each end.
                    is_unseen = ended and not is_woken
                    is_soon = is_unseen or self._run.waits_for_details
                    pause = _SHORTEST if is_soon else min(2 * pause, INTERVAL)
                    if is_told_to_end(self.workflow):
                        self._withdraw()
                    if not self._adopted.is_empty:
                        self._adopted.tick()
                    self._submit_held()
                    if self._workers.tick(bool(self._pending)):
                        look_due = 0.0  # one has died, which had jobs
                    self._telling.check_room()
                    self._telling.check_paused()
                    if clock.now() >= look_due:
                        look_due = clock.now() + INTERVAL
                        self._telling.look(self._by_queue(), self._workers.will_serve)
                        self._run.look_after()
                        self._workers.serve(set(self._queues), self._admission.request_of)
                    self._notices.over("the state of the run cannot be read now")
                except OSError as error:
                    self._note_fault("the state of the run cannot be read now", error)
                    self._stopping.wait(_RETRY)  # what wakes it may not be read, either
        except Exception as error:
            if isinstance(error, FencedError):
                self._is_fenced, error = True, UserError(self._why_fenced())
            elif isinstance(error, KochiError):
                error = UserError(error.message, error.hint)
            self._is_broken = True  # Snakemake would wait for ever
            self.workflow.scheduler.executor_error_callback(error)

    def _why_fenced(self) -> str:
        host = ""
        with suppress(OSError, TypeError, KeyError):
            if (adopter := self._run.adopter()) is not None:
                facts = facts_in(self._layout.run(adopter).facts)
                host = f" on {facts['facts']['node']['host']}"
        silent = SILENT * INTERVAL
        return f"another run{host} took over (no heartbeat for {silent:.0f} s); stopping"

    def _report(self) -> bool:
        """Report what has ended; whether anything has."""
        found = self._run.collect()
        known: list[tuple[Pending, End]] = []
        for end in found:
            with self._changing:
                pending = self._pending.pop(end.name.key, None)
                if end.name.run != self._run.number:
                    self._adopted.note(end)
            if pending is None:
                continue
            if pending.adopted is not None and end.name.state == ends.CANCELLED:
                # It went back to a queue that is not this run's.
                self._held.append((replace(pending, adopted=None), set()))
            else:
                known.append((pending, end))
        if found:
            self._telling.note_room(True)  # they were written
        while self._late:
            known.append(self._late.popleft())
        ends.show_outputs((p.ticket, end) for p, end in known if end.name.state == ends.SUCCESS)
        for pending, end in known:
            self._report_one(pending, end)
        return bool(known)

    def _report_one(self, pending: Pending, end: End) -> None:
        self._wakes.drop()
        self._summary.add(pending.ticket, end)
        self._workers.job_ended()
        number = ends.number_of(end)
        info = SubmittedJobInfo(pending.job, external_jobid=number)
        if end.name.state == ends.SUCCESS:
            ends.note_end(pending.job, pending.queue, end)
            self.report_job_success(info)
        elif end.name.state == ends.CANCELLED and is_told_to_end(self.workflow):
            without_jobs(self.workflow, [pending.job])
        else:
            log = self._layout.run(end.name.run).log(end.name)
            self.report_job_error(
                info,
                msg=ends.failure_message(
                    pending.ticket, end, log, ends.why_lost(self._machine, end)
                ),
                aux_logs=[log],
                see=typed(f"kochi show log job {number}"),
            )

    def _by_queue(self, with_adopted: bool = True) -> dict[str, dict[Key, Ticket]]:
        """The jobs that have not ended; without adopted ones, those that this run submitted."""
        queues: dict[str, dict[Key, Ticket]] = defaultdict(dict)
        for key, pending in list(self._pending.items()):
            if with_adopted or pending.adopted is None:
                queues[(pending.adopted or pending).queue][key] = pending.ticket
        return queues

    def _note_fault(self, what: str, error: OSError) -> None:
        if lacks_room(error):
            self._telling.note_room(False)
        else:
            self._notices.fault(what, error)

    def _withdraw(self) -> None:
        """Withdraw the jobs that have not begun, of which Snakemake would await the ends."""
        count = sum(withdraw(self._layout, *each) for each in self._by_queue().items())
        while self._held:
            without_jobs(self.workflow, [self._held.popleft()[0].job])
            count += 1
        if count:
            some = pluralize(count, "job that had", "jobs that had")
            self.logger.info(f"Withdrew {some} not begun, because of SIGTERM.")
            self._rouse()

    def _submit_held(self) -> None:
        """Submit the jobs that waited for others, if those have ended. Raises OSError."""
        for _ in range(len(self._held)):
            pending, keys = self._held[0]
            if self._adopted.have_ended(keys) and self._submitting.acquire(blocking=False):
                try:
                    self._submit(pending.queue, [pending])
                    self._held.popleft()
                finally:
                    self._submitting.release()
            else:
                self._held.rotate(-1)

    # ---- the end

    def cancel(self) -> None:
        """Cancel the run after an interrupt or an error."""
        self._urgent.clear()
        with interrupts_deferred(self._urgent, is_end=True):
            super().cancel()

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Cancel all jobs: `active_jobs` are those that RemoteExecutor polls, so there are none."""
        # A report for each cancelled job would bury the important messages.
        self._stop_watching()
        self._held.clear()
        if self._is_fenced or self._leaves_jobs():
            return
        count = len(self._pending)
        until, pause = clock.now() + _PATIENCE, _SHORTEST
        try:
            while not self._cancel_pending() and clock.now() < until:
                if self._urgent.is_set():
                    break
                if self._telling.is_full:
                    until = min(until, clock.now() + _PATIENCE_ON_FULL_DISK)
                self._wake.wait(pause)
                pause = min(2 * pause, 1.0)
        finally:
            # Whatever cannot be read or written: no worker stays behind.
            self._workers.stop(self._urgent.is_set)
        self._cancel_pending()  # what they gave back, too
        numbers = " ".join(f"{run}.{job}" for run, job in sorted(self._pending))
        if self._pending and self._telling.is_full:
            self.logger.error(
                f"KOCHI_ROOT is full: the ends of kochi jobs {numbers} could not be written. The "
                "jobs in this run's own workers have ended. Free some space; the next run in this "
                "directory adopts or cancels the others."
            )
        elif self._pending:
            self.logger.error(
                f"Cancelled, but not ended yet: kochi jobs {numbers}. To see them, type: kochi "
                f"show jobs\nIf they do not end, type: kochi cancel {numbers}"
            )
        elif count:
            jobs = pluralize(count, "kochi job")
            self.logger.info(f"Cancelled {jobs}; nothing of this run is left.")

    def _leaves_jobs(self) -> bool:
        """Whether the time of this run's own allocation is over, not that of its workers.

        All goes on as after a kill, and the next run adopts the jobs.
        """
        # Imported here: it matters at an interrupt only.
        from snakemake_kochi.detached.launches import has_time_up

        if not isinstance(self._workers, AllocatedWorkers) or not has_time_up(self._machine):
            return False
        if self._has_left:
            return True
        self._has_left = True
        there = {name.key: name for name, *_ in places(self._layout)}
        left = [there[key] for key in sorted(self._pending) if key in there]
        waiting = sum(not name.worker for name in left)
        self._workers.leave(is_needed=waiting > 0)
        keep_empty_directories(self.workflow)
        text = "This run has reached its time limit and ends. "
        if left:
            numbers = " ".join(f"{name.run}.{name.job}" for name in left)
            text += (
                f"{len(left) - waiting} kochi jobs continue in their allocations, {waiting} wait "
                f"for one. To end them, type: kochi cancel {numbers}\n"
            )
        text += "To continue, type the same command again; it does nothing twice."
        self.logger.warning(text)
        return True

    def _cancel_pending(self) -> bool:
        """Have all jobs end; whether they have."""
        for queue, keys in self._by_queue().items():
            for step in (withdraw, interrupt):
                try:
                    step(self._layout, queue, keys)
                except OSError as error:  # what runs is ended all the same
                    self._note_fault("jobs cannot be cancelled now", error)
        try:
            # Its journal would be tried for long; the next run writes it.
            for end in () if self._telling.is_full else self._run.collect():
                if (pending := self._pending.pop(end.name.key, None)) is not None:
                    self._summary.add(pending.ticket, end, is_reported=False)
        except FencedError:
            self._is_fenced = True
        except OSError as error:
            self._note_fault("jobs cannot be cancelled now", error)
        if self._telling.is_full:
            with suppress(OSError):
                for ended in self._run.in_inboxes():
                    self._pending.pop(ended.key, None)
        return self._is_fenced or not self._pending

    def shutdown(self) -> None:
        """End the run; called again when it was interrupted itself."""
        if self._is_broken:
            # Snakemake shuts down without waiting for jobs or cancelling them.
            self._is_broken = False
            self.cancel_jobs([])
        self._end()
        atexit.unregister(self._end_unused)
        self._wakes.end_timers()
        super().shutdown()

    def _end_unused(self) -> None:
        """End a run without jobs, which Snakemake does not shut down."""
        if not self._has_submitted:
            self._end()

    def _end(self) -> None:
        if self._over.is_set():
            return
        self._stop_watching()
        if self._is_fenced:
            self._workers.abandon()
            leave_to_adopter(self.workflow)
        elif not self._has_left:
            self._workers.stop(self._urgent.is_set)
            try:
                self._tidy_up()
            except (OSError, FencedError) as error:
                self.logger.warning(
                    f"The run has ended, but not all of its last steps worked: {error}"
                )
        self._over.set()
        self._wake.close()

    def _tidy_up(self) -> None:
        if self._has_submitted and (lines := self._summary.lines()):
            self.logger.info("\n".join(lines))
        if self._telling.is_full:
            return  # the next run in this directory does what is left
        self._run.collect()
        self._run.fold()
        left = [job for job in self._run.open if job.run != self._run.number]
        if left:
            numbers = " ".join(f"{job.run}.{job.number}" for job in left)
            self.logger.warning(
                "Jobs of a killed run still run, and this run did not need them. To end them, "
                f"type: kochi cancel {numbers}"
            )
        self._run.end()
        if not self._run.open:
            for queue in listing(self._layout.queues):
                # Those for jobs that request something of their allocation begin with such a name.
                if {queue, "-".join(queue.split("-")[:2])} & self._private:
                    removed(self._layout.queue(queue).directory)

    def _stop_watching(self) -> None:
        self._stopping.set()
        self._rouse()
        if self._watcher.is_alive() and threading.current_thread() is not self._watcher:
            self._watcher.join()

    # ---- what Snakemake asks of an executor

    def get_job_args(self, job: JobExecutorInterface, **kwargs: Any) -> str:
        return with_readable_targets(super().get_job_args(job, **kwargs), job)

    def additional_general_args(self) -> str:
        # The inner scheduler's rate limiter keeps its process alive for a second after the job's
        # end, unless the period is zero. The inner Snakemake's own messages would bury the job's
        # output in the log. (A text: the interface declares a list, and joins texts.)
        return "--max-jobs-per-timespan 100000/0s --quiet host progress rules reason"

    def print_job_error(
        self, job_info: SubmittedJobInfo, msg: str | None = None, **kwargs: Any
    ) -> None:
        # RemoteExecutor's method would refer users to "the cluster/cloud log".
        if job_info.job.is_group():
            # The report of a group has no field for a message.
            self.logger.error(msg)
        kwargs["external_jobid"] = job_info.external_jobid
        AbstractExecutor.print_job_error(self, job_info, msg=msg, **kwargs)

    async def check_active_jobs(
        self, active_jobs: list[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Nothing to poll: ends come to their own thread."""
        for active_job in active_jobs:
            yield active_job

    async def sleep(self) -> None:
        # Shutdown waits for this interval: Snakemake's default is ten seconds. The sleeping thread
        # starts before __post_init__ could set an interval.
        await asyncio.sleep(0.05)


@contextmanager
def interrupts_deferred(noted: threading.Event, is_end: bool = False) -> Iterator[None]:
    """Note an interrupt (Ctrl-C) and go on; the second after that is one again.

    At the end of a run it would leave the rest of the jobs running. There one that comes when the
    end has had its time ends the process: a thread may wait for a file server for ever.
    """
    previous: Any = None
    first = 0.0

    def note(number: int, frame: Any) -> None:
        nonlocal first
        if not noted.is_set():
            noted.set()
            first = time.monotonic()
        elif not is_end:
            signal.signal(signal.SIGINT, previous)
        elif time.monotonic() >= first + _LEAST_BEFORE_BREAK:
            # No buffered stream: the signal may have come while that was written to.
            os.write(sys.stderr.fileno(), _BROKEN_OFF)
            os._exit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield  # interrupts are raised in the main thread alone
        return
    previous = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _portions(
    jobs: Sequence[tuple[Any, Resources]], waiting: int
) -> Iterator[Sequence[tuple[Any, Resources]]]:
    """The first of many jobs run while the tickets of the others are made."""
    start, size = 0, max(_FIRST_PORTION, min(waiting, SHARD))
    while start < len(jobs):
        yield jobs[start : start + size]
        start, size = start + size, min(2 * size, SHARD)


def _check_settings(settings: ExecutorSettings, location: Location) -> int:
    """Check the settings and return the number of workers to start.

    Raises KochiError, naming the option, for an invalid setting.
    """
    if settings.cores is not None and settings.cores < 1:
        raise KochiError(f"--kochi-cores {settings.cores}: a number from 1 was expected")
    if settings.workers is not None and settings.workers < 0:
        raise KochiError(f"--kochi-workers {settings.workers}: a number from 0 was expected")
    if settings.runner is not None and settings.runner not in RUNNERS:
        raise KochiError(
            f"--kochi-runner {settings.runner}: one of {', '.join(RUNNERS)} was expected",
            nearest(settings.runner, RUNNERS),
        )
    if settings.queue is not None:
        try:
            location.machine_paths.queue(settings.queue)
        except KochiError as error:
            raise KochiError(f"--kochi-queue: {error.message}", error.hint) from error
    default = 1 if settings.queue is None else 0
    return default if settings.workers is None else settings.workers


def _name_machine(record: logging.LogRecord) -> bool:
    """Have the commands in a message name the machine."""
    if isinstance(record.msg, str):
        record.msg = typed(record.msg)
    return True
