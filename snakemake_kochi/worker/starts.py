"""The starts of a worker's jobs.

A job starts in this order: log, process, attempt file, and only then its first step. Where the
filesystem is slow, jobs that start at the same time have their files made at the same time. Their
processes are forked one by one, while the worker has one thread.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import answered, create_directory, is_there
from snakemake_kochi.files.together import Together
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import NONCE_VARIABLE, this_node
from snakemake_kochi.queue.attempt_file import AttemptFile
from snakemake_kochi.queue.claiming import Claim
from snakemake_kochi.queue.result import Attempt
from snakemake_kochi.queue.ticket import now
from snakemake_kochi.worker.node.capacity import OomWatch
from snakemake_kochi.worker.node.devices import Allotment, Devices
from snakemake_kochi.worker.runners.interface import Child, Runners
from snakemake_kochi.worker.slot import Slot


class AlreadyBegunError(Exception):
    """Another worker began this attempt or was given the next one: the claim is not ours."""


class AlreadyCancelledError(Exception):
    """The job was cancelled before it began: the claim is to be requeued, which ends it."""


# Why a job did not start; other exceptions are errors of this program.
_REASONS = (OSError, KochiError, AlreadyBegunError, AlreadyCancelledError)


@dataclass(frozen=True)
class _Log:
    """The open log of a job, and where the output of this attempt begins in it, in bytes.

    `is_new`: the directory of the job was made for it.
    """

    claim: Claim
    path: Path
    descriptor: int
    offset: int
    is_new: bool


@dataclass(frozen=True)
class _Fork:
    """The process of a job, which waits for its release."""

    log: _Log
    allotment: Allotment
    child: Child
    skipped_runners: str


class Starts:
    """Starts the jobs of one worker."""

    def __init__(
        self,
        machine: MachinePaths,
        environment: Mapping[str, str],
        runners: Runners,
        devices: Devices,
        together: Together,
    ) -> None:
        self._machine = machine
        self._environment = environment
        self._runners = runners
        self._devices = devices
        self._together = together
        self._oom = OomWatch()

    def start(self, claims: Sequence[Claim]) -> list[Slot | Exception]:
        """Start claimed tickets; return for each its running job, or why it did not start.

        That is an OSError or KochiError if a file or a process cannot be made, AlreadyBegunError,
        or AlreadyCancelledError. In these cases nothing of the job has been executed and nothing of
        it is left.
        """
        logs = self._together([partial(self._open_log, claim) for claim in claims])
        try:
            forks = [self._fork(log) if isinstance(log, _Log) else log for log in logs]
        finally:
            for log in logs:
                if isinstance(log, _Log):
                    os.close(log.descriptor)
        forked = [fork for fork in forks if isinstance(fork, _Fork)]
        records = iter(self._together([partial(self._record, fork) for fork in forked]))
        outcomes = [
            self._release(fork, next(records)) if isinstance(fork, _Fork) else fork
            for fork in forks
        ]
        for outcome in outcomes:
            if isinstance(outcome, Exception) and not isinstance(outcome, _REASONS):
                raise outcome
        return outcomes

    def _open_log(self, claim: Claim) -> _Log:
        paths = self._machine.job(claim.ticket.job)
        # In a new directory there is no order to cancel the job, and no result.
        is_new = create_directory(paths.directory)
        if not is_new and is_there(paths.cancel):
            raise AlreadyCancelledError(f"job {claim.ticket.job} was cancelled before it began")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        log = answered(partial(os.open, paths.log, flags, 0o600))
        try:
            offset = _write_header(log, claim)
        except BaseException:
            os.close(log)
            raise
        return _Log(claim, paths.log, log, offset, is_new)

    def _fork(self, log: _Log) -> _Fork | Exception:
        """Make the process; the job's processes write to the log itself, not to a pipe.

        So the worker never waits for them, however much they write and however long they live.
        """
        ticket = log.claim.ticket
        allotment = self._devices.allot(ticket.resources)
        try:
            environment = self._job_environment(log.claim, allotment)
            child, skipped_runners = self._runners.start(
                ticket, log.descriptor, environment, allotment.pinned
            )
        except _REASONS as error:
            self._devices.release(allotment)
            return error
        return _Fork(log, allotment, child, skipped_runners)

    def _record(self, fork: _Fork) -> AttemptFile:
        """Write the attempt file: from then on every process can find the job's processes."""
        claim, child = fork.log.claim, fork.child
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
            skipped_runners=fork.skipped_runners,
        )
        what = f"attempt {ticket.attempt} of job {ticket.job}"
        paths = self._machine.job(ticket.job)
        path = paths.attempt(ticket.attempt)
        try:
            # Not linked, as others are: who finds it empty looks for processes of the job by their
            # environments.
            file = AttemptFile.begin(path, attempt)
        except FileExistsError:
            # If both the lock and the rename failed to keep two workers apart, this write still
            # does.
            raise AlreadyBegunError(f"{what} was begun by another worker") from None
        try:
            # If the answer is unknown, the job does not start: another worker may be running it
            # already.
            is_ended = is_there(paths.ended(ticket.attempt))
            if is_ended or (not fork.log.is_new and is_there(paths.result)):
                # This worker was suspended after the claim, and was presumed dead.
                raise AlreadyBegunError(f"{what} has been given up by others")
        except BaseException:
            file.close()
            raise
        return file

    def _release(self, fork: _Fork, file: AttemptFile | Exception) -> Slot | Exception:
        """Have the process of a recorded attempt begin; otherwise end it."""
        log = fork.log
        if isinstance(file, Exception):
            fork.child.abandon()
            self._devices.release(fork.allotment)
            return file
        explain_kill = partial(self._oom.explain, self._oom.counts())
        fork.child.release()
        return Slot(log.claim, fork.child, file, log.path, log.offset, fork.allotment, explain_kill)

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


def _write_header(log: int, claim: Claim) -> int:
    """Write the header of an attempt into the log.

    Returns where this attempt's output begins in the log, in bytes.
    """
    attempt = claim.ticket.attempt
    if attempt > 1:
        where = f"worker {claim.worker} on {this_node().host}"
        os.write(log, f"-- attempt {attempt}: {where}, {now()} --\n".encode())
    return os.lseek(log, 0, os.SEEK_END)
