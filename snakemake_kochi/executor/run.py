"""The data that submission, results and shutdown of one run share, above all its pending jobs."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.allocation.workers import WorkerProvider
from snakemake_kochi.executor.adoption import Adoption
from snakemake_kochi.executor.queue_watch import QueueWatch
from snakemake_kochi.executor.run_summary import RunSummary
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import Inbox, Result, RunFile, Ticket


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
