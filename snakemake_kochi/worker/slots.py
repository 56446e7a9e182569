"""The jobs that a worker runs beside each other: starting them, and following them to their ends.

A job starts in this order: log, process, attempt file, and only then its first step.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator, Mapping
from functools import partial

from snakemake_kochi.files import answered, is_there, make_directory, to_json, write_exclusively
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import (
    NONCE_VARIABLE,
    ProcessIdentity,
    send_signal,
    this_node,
)
from snakemake_kochi.queue.claiming import Claim
from snakemake_kochi.queue.result import Attempt
from snakemake_kochi.queue.ticket import Resources, now
from snakemake_kochi.worker.ends import Ends
from snakemake_kochi.worker.node.devices import Allotment, Devices
from snakemake_kochi.worker.node.memory import OomWatch
from snakemake_kochi.worker.output import Echo
from snakemake_kochi.worker.runners.interface import Execution, Runners
from snakemake_kochi.worker.signals import reap_orphans
from snakemake_kochi.worker.slot import Slot
from snakemake_kochi.worker.state import StateFile

_log = logging.getLogger(__name__)


class AlreadyBegunError(Exception):
    """Another worker began this attempt or was given the next one: the claim is not ours."""


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
    ) -> None:
        self._machine = machine
        self._environment = environment
        self._grace = grace
        self._runners = runners
        self._devices = devices
        self._state = state
        self._ends = ends
        self._echo = echo
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
        make_directory(paths.directory)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        log = answered(partial(os.open, paths.log, flags, 0o600))
        try:
            offset = _write_header(log, claim)
            # The job's processes write to the log itself, not to a pipe to the worker. The worker
            # never waits for them, however much they write and however long they live.
            environment = self._job_environment(claim, allotment)
            execution, skipped_runners = self._runners.start(
                claim.ticket, log, environment, allotment.pinned
            )
        finally:
            os.close(log)
        try:
            started = self._record(claim, execution, skipped_runners)
        except BaseException:
            execution.abandon()
            raise
        explain_kill = partial(self._oom.explain, self._oom.counts())
        execution.release()
        return Slot(claim, execution, started, paths.log, offset, allotment, explain_kill)

    def _record(self, claim: Claim, execution: Execution, skipped_runners: str) -> str:
        """Write the attempt file: from then on every process can find the job's processes."""
        ticket = claim.ticket
        attempt = Attempt(
            job=ticket.job,
            attempt=ticket.attempt,
            nonce=claim.nonce,
            worker=claim.worker,
            node=this_node(),
            process=execution.process,
            started=now(),
            runner=execution.runner,
            skipped_runners=skipped_runners,
        )
        what = f"attempt {ticket.attempt} of job {ticket.job}"
        paths = self._machine.job(ticket.job)
        path = paths.attempt(ticket.attempt)
        if not write_exclusively(path, to_json(attempt.to_dict())):
            # If both the lock and the rename failed to keep two workers apart, this write still
            # does.
            raise AlreadyBegunError(f"{what} was begun by another worker")
        # If the answer is unknown, the job does not start: another worker may be running it
        # already.
        if is_there(paths.ended(ticket.attempt)) or is_there(paths.result):
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
                _log.info("job %d has had its run time", slot.claim.ticket.job)
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
        return reap_orphans({slot.pid for slot in self._slots}, self._runners.helpers)

    def kill_orphans(self) -> None:
        """Kill leftover processes that could not be assigned to a job.

        They belong to jobs that ended while other jobs ran. Ends the runners first.
        """
        self._runners.close()
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
