"""The running jobs of a worker, from their starts to the publication of their ends.

A job starts in this order: log, process, attempt file, and only then its first step. At its end the
worker publishes a result, or requeues the ticket.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from humanfriendly.text import pluralize

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import answered, create_directory, is_there, to_json, write_new
from snakemake_kochi.notices import Notices
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import (
    NONCE_VARIABLE,
    ProcessIdentity,
    send_signal,
    this_node,
)
from snakemake_kochi.queue.claiming import Claim
from snakemake_kochi.queue.entries import QueueRemovedError
from snakemake_kochi.queue.queue import Queue
from snakemake_kochi.queue.result import Attempt, Result, UncountedReason
from snakemake_kochi.queue.ticket import Resources, Ticket, now
from snakemake_kochi.worker.logins import Logins
from snakemake_kochi.worker.node.capacity import OomWatch
from snakemake_kochi.worker.node.devices import Allotment, Devices
from snakemake_kochi.worker.node.health import Health
from snakemake_kochi.worker.orders import Walltime
from snakemake_kochi.worker.output import Echo
from snakemake_kochi.worker.runners.interface import Child, Runners
from snakemake_kochi.worker.settings import RETRY
from snakemake_kochi.worker.signals import reap_orphans
from snakemake_kochi.worker.slot import Slot
from snakemake_kochi.worker.state import StateFile

_log = logging.getLogger(__name__)


class AlreadyBegunError(Exception):
    """Another worker began this attempt or was given the next one: the claim is not ours."""


class AlreadyCancelledError(Exception):
    """The job was cancelled before it began: the claim is to be requeued, which ends it."""


class Slots:
    """The running jobs of one worker; `state` and `echo` show them to others."""

    def __init__(
        self,
        machine: MachinePaths,
        environment: Mapping[str, str],
        grace: float,
        runners: Runners,
        devices: Devices,
        state: StateFile,
        ends: Ends,
        echo: Echo,
        logins: Logins,
    ) -> None:
        self._machine = machine
        self._environment = environment
        self._grace = grace
        self._runners = runners
        self._devices = devices
        self._state = state
        self._ends = ends
        self._echo = echo
        self._logins = logins
        self._oom = OomWatch()
        self._slots: list[Slot] = []

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def jobs(self) -> list[int]:
        return [slot.claim.ticket.job for slot in self._slots]

    @property
    def resources(self) -> list[Resources]:
        return [slot.claim.ticket.resources for slot in self._slots]

    def start(self, claim: Claim) -> None:
        """Start a claimed ticket.

        Raises OSError or KochiError when a file or a process cannot be made, and AlreadyBegunError.
        In these cases nothing of the job has been executed and nothing of it is left.
        """
        allotment = self._devices.allot(claim.ticket.resources)
        try:
            slot = self._start(claim, allotment)
        except BaseException:
            self._devices.release(allotment)
            raise
        self._slots.append(slot)
        ticket = claim.ticket
        _log.info("job %d (%s) started, attempt %d", ticket.job, ticket.name, ticket.attempt)
        self._echo.job_started(ticket.job, ticket.name, slot.log, slot.offset)
        self._note_running()

    def _start(self, claim: Claim, allotment: Allotment) -> Slot:
        paths = self._machine.job(claim.ticket.job)
        # In a new directory there is no order to cancel the job, and no result.
        is_new = create_directory(paths.directory)
        if not is_new and is_there(paths.cancel):
            raise AlreadyCancelledError(f"job {claim.ticket.job} was cancelled before it began")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        log = answered(partial(os.open, paths.log, flags, 0o600))
        try:
            offset = _write_header(log, claim)
            # The job's processes write to the log itself, not to a pipe to the worker. The worker
            # never waits for them, however much they write and however long they live.
            environment = self._job_environment(claim, allotment)
            child, skipped_runners = self._runners.start(
                claim.ticket, log, environment, allotment.pinned
            )
        finally:
            os.close(log)
        try:
            started = self._record(claim, child, skipped_runners, is_new)
        except BaseException:
            child.abandon()
            raise
        explain_kill = partial(self._oom.explain, self._oom.counts())
        child.release()
        return Slot(claim, child, started, paths.log, offset, allotment, explain_kill)

    def _record(self, claim: Claim, child: Child, skipped_runners: str, is_new: bool) -> str:
        """Write the attempt file: from then on every process can find the job's processes."""
        ticket = claim.ticket
        attempt = Attempt(
            job=ticket.job,
            attempt=ticket.attempt,
            nonce=claim.nonce,
            worker=claim.worker,
            node=this_node(),
            process=child.process,
            started=now(),
            runner=child.runner,
            skipped_runners=skipped_runners,
        )
        what = f"attempt {ticket.attempt} of job {ticket.job}"
        paths = self._machine.job(ticket.job)
        path = paths.attempt(ticket.attempt)
        try:
            # Not linked, as others are: while it is empty, nothing of the job has been executed,
            # and who finds it so looks for processes of the job by their environments.
            answered(partial(write_new, path, to_json(attempt.to_dict())))
        except FileExistsError:
            # If both the lock and the rename failed to keep two workers apart, this write still
            # does.
            raise AlreadyBegunError(f"{what} was begun by another worker") from None
        # If the answer is unknown, the job does not start: another worker may be running it
        # already.
        if is_there(paths.ended(ticket.attempt)) or (not is_new and is_there(paths.result)):
            # This worker was suspended after the claim, and was presumed dead.
            raise AlreadyBegunError(f"{what} has been given up by others")
        return attempt.started

    def _job_environment(self, claim: Claim, allotment: Allotment) -> dict[str, str]:
        ticket = claim.ticket
        return {
            **self._environment,
            **ticket.environment,
            **allotment.environment,
            "KOCHI_MACHINE": self._machine.name,
            "KOCHI_WORKER_ID": str(claim.worker),
            "KOCHI_QUEUE": ticket.queue,
            "KOCHI_JOB_ID": str(ticket.job),
            "KOCHI_JOB_NAME": ticket.name,
            "KOCHI_ATTEMPT": str(ticket.attempt),
            NONCE_VARIABLE: claim.nonce,
        }

    def _note_running(self) -> None:
        running = {slot.claim.ticket.job: slot.started for slot in self._slots}
        idle_since = None if running else self._state.state.idle_since or now()
        self._state.touch(running=running, idle_since=idle_since)

    def requeue_all(self, grace: float) -> None:
        """End all jobs within `grace` seconds, to requeue them; see `Slot.end`."""
        for slot in self._slots:
            slot.end("requeue", grace)

    def kill_all(self) -> None:
        for slot in self._slots:
            slot.kill()

    def advance(self) -> list[Slot]:
        """Continue to end jobs, publish the ends of the jobs that are over, and return these."""
        for slot in self._slots:
            slot.poll()
            if slot.is_overdue:
                _log.info("job %d has reached its time limit", slot.claim.ticket.job)
                slot.end("timeout", self._grace)
        # List them after the polls: when the end of a process is visible, the processes that it
        # left behind are already children of the worker.
        orphans = self._reap_orphans()
        is_alone = len(self._slots) == 1
        over = [slot for slot in self._slots if slot.advance(orphans, is_alone)]
        published = self._ends.publish(over)
        for slot, ending in published:
            self._slots.remove(slot)
            self._devices.release(slot.allotment)
            self._echo.job_ended(slot.claim.ticket.job, ending)
        if published:
            self._note_running()
        return [slot for slot, _ in published]

    def _reap_orphans(self) -> list[ProcessIdentity]:
        helpers = self._runners.helpers | self._logins.helpers
        return reap_orphans({slot.pid for slot in self._slots}, helpers)

    def kill_orphans(self) -> None:
        """Kill leftover processes that could not be assigned to a job.

        They belong to jobs that ended while other jobs ran. Ends the runners and logins first.
        """
        self._runners.close()
        self._logins.close()
        send_signal(self._reap_orphans(), signal.SIGKILL)


def _write_header(log: int, claim: Claim) -> int:
    """Write the header of an attempt into the log.

    Returns where this attempt's output begins in the log, in bytes.
    """
    attempt = claim.ticket.attempt
    if attempt > 1:
        where = f"worker {claim.worker} on {this_node().host}"
        os.write(log, f"-- attempt {attempt}: {where}, {now()} --\n".encode())
    return os.lseek(log, 0, os.SEEK_END)


class Ends:
    """Publishes the ends of one worker's jobs, counts them, and passes them to its `Health`.

    `is_at_time_limit`: the worker ends its jobs because its own time is over, and not because a
    person wants the node.
    """

    def __init__(
        self,
        state: StateFile,
        health: Health,
        walltime: Walltime,
        queue_of: Callable[[Ticket], Queue],
    ) -> None:
        self.is_at_time_limit = False
        self._state = state
        self._health = health
        self._walltime = walltime
        self._queue_of = queue_of
        self._began = time.monotonic()
        self._notices = Notices(_log)

    def publish(self, over: Iterable[Slot]) -> list[tuple[Slot, str]]:
        """Publish the results of jobs that are over, or requeue their tickets.

        Returns the jobs whose end is published, each with a text for people about how it ended
        (empty for a success). After a failure the caller passes the job again after RETRY seconds.
        """
        done: list[tuple[Slot, str]] = []
        for slot in over:
            had_its_time = slot.stop == "requeue" and self._had_its_time(slot)
            if had_its_time and self._had_longest_allocation(slot):
                limit = pluralize(slot.limit or 0, "second")
                slot.time_out(f"its worker had less time than the job's limit of {limit}")
            if slot.stop == "requeue":
                reason: UncountedReason = "out of time" if had_its_time else "drained"
                done += self._requeue(slot, reason, self._state.state.reason)
                continue
            result = slot.result(self._state.state.node.host)
            fault = self._health.fault_behind(result, slot.claim.ticket.directory)
            if fault is not None:
                done += self._requeue(slot, self._health.reason, fault)
                continue
            outcome: bool | OSError | KochiError
            try:
                outcome = self._queue_of(slot.claim.ticket).finish(slot.claim, result)
            except (OSError, KochiError) as error:
                outcome = error
            done += self._finished(slot, result, outcome)
        return done

    def _had_its_time(self, slot: Slot) -> bool:
        return self._walltime.was_used_by(slot.seconds, time.monotonic() - self._began)

    def _had_longest_allocation(self, slot: Slot) -> bool:
        """Whether the job already had the longest allocation that it can get.

        If a longer allocation were possible, the job would have got one that is longer than its
        limit. Another attempt would not get further.
        """
        if not self.is_at_time_limit or slot.limit is None:
            return False
        return self._walltime.is_shorter_than_allocation_for(slot.limit)

    def _requeue(self, slot: Slot, reason: UncountedReason, detail: str) -> list[tuple[Slot, str]]:
        queue = self._queue_of(slot.claim.ticket)
        try:
            if self._state.presumed_dead_by is None:  # else others decide about it
                queue.requeue(slot.claim, reason, detail)
        except (OSError, KochiError) as error:
            return self._later(slot, error)
        self._notices.over(_about(slot))
        return [(slot, "requeued")]

    def _finished(
        self, slot: Slot, result: Result, outcome: bool | OSError | KochiError
    ) -> list[tuple[Slot, str]]:
        """Note a published result; `outcome` is what `Queue.finish` returned or raised."""
        if isinstance(outcome, (OSError, KochiError)):
            return self._later(slot, outcome)
        self._notices.over(_about(slot))
        ticket = slot.claim.ticket
        self._count(ticket.queue, result)
        self._health.note(result, ticket.queue)
        late = "" if outcome else " (too late: the worker had been presumed dead)"
        _log.info("job %d (%s) %s%s", ticket.job, ticket.name, result.describe(), late)
        return [(slot, "" if result.ok else result.describe())]

    def _later(self, slot: Slot, error: OSError | KochiError) -> list[tuple[Slot, str]]:
        if isinstance(error, QueueRemovedError) and self._machine_is_there(slot):
            job = slot.claim.ticket.job
            _log.warning("the end of job %d cannot be written: %s", job, error.message)
            return [(slot, "its queue was removed")]
        # On a full disk, for example. The worker keeps the result, which may be that of a long run.
        self._notices.fault(_about(slot), error)
        slot.publish_again_in(RETRY)
        return []

    def _machine_is_there(self, slot: Slot) -> bool:
        # If the machine's directory is missing, its filesystem is not mounted, and the queue may
        # come back with it.
        with contextlib.suppress(OSError):
            return is_there(self._queue_of(slot.claim.ticket).machine.queues)
        return False

    def _count(self, queue: str, result: Result) -> None:
        if result.reason == "cancelled":
            return  # a cancelled job says nothing about the node
        state = self._state.state
        succeeded, failed = state.by_queue.get(queue, (0, 0))
        counts = (succeeded + 1, failed) if result.ok else (succeeded, failed + 1)
        self._state.touch(
            succeeded=state.succeeded + result.ok,
            failed=state.failed + (not result.ok),
            by_queue={**state.by_queue, queue: counts},
        )


def _about(slot: Slot) -> str:
    return f"the end of job {slot.claim.ticket.job} cannot be written yet"
