"""The data that submission, results and shutdown of one run share.

These are above all its jobs: the pending ones, and those that it adopts from earlier runs.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.allocation.workers import WorkerProvider
from snakemake_kochi.backoff import Backoff, wait_until
from snakemake_kochi.executor.queue_watch import QueueWatch
from snakemake_kochi.executor.run_summary import RunSummary
from snakemake_kochi.executor.tickets import single_jobs
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import (
    Ended,
    Inbox,
    Orphans,
    OtherControllers,
    Result,
    RunFile,
    Running,
    Ticket,
)

# Seconds. Jobs that their worker ends together with the dead controller have ended by then.
_ENDING_SECONDS = 15.0
_PAUSE = 0.05
_LOOK = 0.5


# ---- pending jobs


@dataclass
class HandOver:
    """Jobs for one queue, each with its ticket.

    `behind`: jobs of an earlier run that write the same files and have to end first. `numbered`:
    the tickets, once they have job numbers; after an error these tell which tickets are in the
    queue.
    """

    queue: str
    jobs: Sequence[tuple[JobExecutorInterface, Ticket]]
    behind: tuple[int, ...] = ()
    numbered: Sequence[Ticket] | None = None


@dataclass(frozen=True)
class PendingJob:
    """A job whose result is awaited. `anew`: how to submit an adopted job again."""

    info: SubmittedJobInfo
    ticket: Ticket
    anew: HandOver | None = None


class PendingJobs:
    """The jobs whose results are awaited, by job number. Any thread may call.

    A job is noted before its ticket is submitted, because its result may come at once. The lock is
    held for work in memory only, so that no slow submission delays the report of another job.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[int, PendingJob] = {}
        self._uncertain: set[int] = set()
        self._delivered: list[Result] = []

    def note(self, jobs: Sequence[PendingJob]) -> None:
        """Note jobs whose tickets are about to be submitted.

        Until `certain` is called it is not known whether they are in their queue.
        """
        with self._lock:
            self._uncertain.update(job.ticket.job for job in jobs)
            self._jobs.update((job.ticket.job, job) for job in jobs)

    def certain(self, tickets: Iterable[Ticket]) -> None:
        """Note that these tickets were submitted."""
        with self._lock:
            self._uncertain.difference_update(ticket.job for ticket in tickets)

    def adopt(self, job: PendingJob) -> None:
        """Await a job of an earlier run."""
        with self._lock:
            self._jobs[job.ticket.job] = job

    def deliver(self, result: Result) -> None:
        """Deliver a result that did not come through the inbox."""
        with self._lock:
            self._delivered.append(result)

    def take_delivered(self) -> list[Result]:
        with self._lock:
            found = list(self._delivered)
            self._delivered.clear()
        return found

    def end(self, job: int) -> PendingJob | None:
        """Await the job no longer; return None for a job that was not awaited."""
        with self._lock:
            self._uncertain.discard(job)
            return self._jobs.pop(job, None)

    def numbers(self) -> list[int]:
        with self._lock:
            return sorted(self._jobs)

    def tickets(self) -> list[Ticket]:
        with self._lock:
            return [pending.ticket for pending in self._jobs.values()]

    def uncertain(self) -> list[Ticket]:
        """The tickets of which it is not known whether they are in their queue."""
        with self._lock:
            # An interrupt may have come while they were noted.
            return [self._jobs[job].ticket for job in self._uncertain & self._jobs.keys()]

    def by_queue(self) -> dict[str, list[Ticket]]:
        """The submitted tickets by queue. Of the others not even the queue need exist yet."""
        queues: dict[str, list[Ticket]] = defaultdict(list)
        with self._lock:
            for job, pending in self._jobs.items():
                if job not in self._uncertain:
                    queues[pending.ticket.queue].append(pending.ticket)
        return queues

    def adopted(self) -> list[tuple[Ticket, HandOver]]:
        """The adopted jobs of earlier runs, and how to submit each of them again."""
        with self._lock:
            jobs = list(self._jobs.values())
        return [(pending.ticket, pending.anew) for pending in jobs if pending.anew is not None]


# ---- jobs of earlier runs


def await_others(
    others: OtherControllers,
    look_after: Callable[[str], None],
    logger: LoggerExecutorInterface,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, float]:
    """Wait until all other runs in the directory that make the same files are known to be over.

    Returns the controllers that are dead although their files do not show it, as `Orphans.find`
    takes them. Meanwhile calls `look_after` for each of their queues, because workers there may
    have died, too. Raises KochiError for a run that goes on.
    """
    told = set()
    while watched := others.look():
        for each in watched:
            state = each.state
            if each.seconds_left is not None and state.identity not in told:
                told.add(state.identity)
                logger.warning(
                    f"Another run in this directory was started on {state.node.host} (process "
                    f"{state.process.pid}, {state.started}). Whether it still runs is not known "
                    f"here. This run waits {each.seconds_left:.0f} s for a sign of life, and then "
                    "adopts its jobs. Otherwise each job would be executed twice."
                )
            for queue in state.queues or ():
                look_after(queue)
        sleep(_LOOK)
    return others.dead


class Adoption:
    """Finds for each job whether an earlier run left it.

    It reads no file twice, and no file at all if there is no such run.
    """

    def __init__(
        self,
        machine: MachinePaths,
        workflow: Any,
        inbox: Inbox,
        logger: LoggerExecutorInterface,
        dead: Mapping[str, float],
    ) -> None:
        """`dead`: see `await_others`."""
        self._workflow = workflow
        self._logger = logger
        self._orphans = Orphans.find(machine, workflow.workdir_init, inbox.identity, dead)
        for each in self._orphans.controllers:
            inbox.adopt(machine, each)

    @property
    def controllers(self) -> tuple[str, ...]:
        """The dead controllers whose jobs this run adopts."""
        return self._orphans.controllers

    @property
    def is_empty(self) -> bool:
        return self._orphans.is_empty

    def begin(self, look_after: Callable[[str], None]) -> None:
        """Withdraw waiting jobs, wait for ending ones, and say what was found.

        Meanwhile calls `look_after` for each queue with an ending job.
        """
        if self.is_empty:
            return
        withdrawn = self._orphans.withdraw()
        running, finished = len(self._orphans.running()), self._orphans.unread()
        found = []
        if running or finished:
            found.append(
                f"It left {running} running and {finished} finished kochi jobs; this run adopts "
                "those that it needs."
            )
        if withdrawn:
            found.append(
                "1 of its jobs is cancelled, and starts again if this run needs it."
                if len(withdrawn) == 1
                else f"{len(withdrawn)} of its jobs are cancelled, and start again if this run "
                "needs them."
            )
        if found:
            self._logger.info(
                "An earlier run in this directory was killed, or reached its time limit. "
                f"{' '.join(found)}"
            )
        look = Backoff()

        def are_over() -> bool:
            queues = self._orphans.queues_of_ending()
            if queues and look.is_due:
                look.hold(_LOOK)
                for queue in queues:
                    look_after(queue)
            return not queues

        wait_until(are_over, _ENDING_SECONDS, _PAUSE)

    def find(self, job: JobExecutorInterface, ticket: Ticket) -> Running | Ended | None:
        """The same job of an earlier run, unless it must be executed again."""
        if self.is_empty or _is_forced(self._workflow, job):
            return None
        # Snakemake's own mark of incomplete outputs is no evidence: the job's inner process removes
        # it, possibly between the reading of the DAG and now.
        return self._orphans.take(ticket.identity)

    def clear_the_way(self, ticket: Ticket) -> tuple[int, ...]:
        """End the jobs that write the files of this ticket; returns those to wait for."""
        jobs = self._orphans.in_the_way(ticket.outputs)
        if jobs:
            self._orphans.clear(jobs)
            numbers = " ".join(map(str, jobs))
            self._logger.info(
                f"{ticket.name} starts after the end of kochi jobs {numbers} of a killed run: they "
                "write the same files, but do other work."
            )
        return tuple(jobs)

    def queues_of_ending(self) -> set[str]:
        """The queues of withdrawn jobs that have not ended."""
        return self._orphans.queues_of_ending()

    def has_ended(self, jobs: Collection[int]) -> bool:
        return all(map(self._orphans.has_ended, jobs))

    def end(self, all_went_well: bool) -> None:
        """Name the jobs that still run, at the end of the run.

        Forget the others if no run can need them.
        """
        if left := self._orphans.running():
            numbers = " ".join(map(str, left))
            self._logger.warning(
                "Jobs of a killed run still run, and this run did not need them. To end them, "
                f"type: kochi cancel {numbers}"
            )
        if all_went_well:
            self._orphans.forget()


def _is_forced(workflow: Any, job: Any) -> bool:
    """Whether the user requested that the job be executed again.

    The options are --forceall, --forcerun and --force.
    """
    settings = getattr(workflow, "dag_settings", None)
    if settings is None or settings.forceall or settings.forcetargets:
        return True
    forced = set(map(str, settings.forcerun))
    if not forced:
        return False
    if any(one.rule.name in forced for one in single_jobs(job)):
        return True
    return any(str(path) in forced for one in single_jobs(job) for path in one.output)


# ---- the run


@dataclass(frozen=True)
class Run:
    """The shared data of one run.

    `stopping` is set when the run ends, `failed` when a job failed or the run was cancelled.
    """

    machine: MachinePaths
    workflow: Any
    logger: LoggerExecutorInterface
    inbox: Inbox
    workers: WorkerProvider
    adoption: Adoption
    queue_watch: QueueWatch
    summary: RunSummary
    record: RunFile
    pending: PendingJobs = field(default_factory=PendingJobs)
    stopping: threading.Event = field(default_factory=threading.Event)
    failed: threading.Event = field(default_factory=threading.Event)
