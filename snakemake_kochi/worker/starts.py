"""The starts of a worker's jobs.

A job starts in this order: log, process, attempt file, and only then its first step. Where the
filesystem is slow, jobs that start at the same time have their files made at the same time, and
their logs before, if possible. Their processes are forked one by one, by the worker's loop.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import is_there, list_names
from snakemake_kochi.files.together import Together
from snakemake_kochi.node_lock import HELD_VARIABLE
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import NONCE_VARIABLE, this_node
from snakemake_kochi.queue.attempt_file import AttemptFile
from snakemake_kochi.queue.claiming import Claim
from snakemake_kochi.queue.result import Attempt
from snakemake_kochi.queue.ticket import now
from snakemake_kochi.worker.logs import AlreadyCancelledError, Log, Logs
from snakemake_kochi.worker.node.capacity import OomWatch
from snakemake_kochi.worker.node.devices import Allotment, Devices
from snakemake_kochi.worker.node.turns import needs_lock
from snakemake_kochi.worker.runners.interface import Child, Runners
from snakemake_kochi.worker.slot import Slot


class AlreadyBegunError(Exception):
    """Another worker began this attempt or was given the next one: the claim is not ours."""


# Why a job did not start; other exceptions are errors of this program.
_REASONS = (OSError, KochiError, AlreadyBegunError, AlreadyCancelledError)


@dataclass(frozen=True)
class _Fork:
    """The process of a job, which waits for its release."""

    log: Log
    allotment: Allotment
    child: Child
    skipped_runners: str


class Starts:
    """Starts the jobs of one worker; `logs` has those that were made before."""

    def __init__(
        self,
        machine: MachinePaths,
        environment: Mapping[str, str],
        runners: Runners,
        devices: Devices,
        together: Together,
        is_presumed_dead: Callable[[], bool],
    ) -> None:
        self._machine = machine
        self.logs = Logs(machine, together)
        self._environment = environment
        self._runners = runners
        self._devices = devices
        self._together = together
        self._is_presumed_dead = is_presumed_dead
        self._oom = OomWatch()

    def start(self, claims: Sequence[Claim]) -> list[Slot | Exception]:
        """Start claimed tickets; return for each its running job, or why it did not start.

        That is an OSError or KochiError if a file or a process cannot be made, AlreadyBegunError,
        or AlreadyCancelledError. In these cases nothing of the job has been executed and nothing of
        it is left.
        """
        logs = self.logs.open(claims)
        try:
            forks = [self._fork(log) if isinstance(log, Log) else log for log in logs]
        finally:
            for log in logs:
                if isinstance(log, Log):
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

    def _fork(self, log: Log) -> _Fork | Exception:
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
            self._check_not_over(fork.log)
        except BaseException:
            file.close()
            raise
        return file

    def _check_not_over(self, log: Log) -> None:
        """Look whether others gave this attempt up, or ended the job, before it was recorded.

        If the answer is unknown, the job does not start: another worker may be running it already.
        """
        job, attempt = log.claim.ticket.job, log.claim.ticket.attempt
        paths = self._machine.job(job)
        if log.is_new:
            is_given_up, is_cancelled = is_there(paths.ended(attempt)), False
        else:
            names = list_names(paths.directory)
            is_given_up = paths.ended(attempt).name in names or paths.result.name in names
            is_cancelled = paths.cancel.name in names
        if is_given_up:
            # This worker was suspended after the claim, and was presumed dead.
            raise AlreadyBegunError(f"attempt {attempt} of job {job} has been given up by others")
        if is_cancelled:
            raise AlreadyCancelledError(f"job {job} was cancelled before it began")

    def _release(self, fork: _Fork, file: AttemptFile | Exception) -> Slot | Exception:
        """Have the process of a recorded attempt begin; otherwise end it."""
        log = fork.log
        if isinstance(file, AttemptFile) and self._is_presumed_dead():
            # The node slept during these calls, for example. Others may have run the job meanwhile,
            # and packed its files: then nothing in its directory tells.
            file.close()
            file = AlreadyBegunError(f"job {log.claim.ticket.job} has been given to others")
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
            "PWD": ticket.directory,
            **ticket.environment,
            **allotment.environment,
            "KOCHI_MACHINE": self._machine.name,
            "KOCHI_WORKER_ID": str(claim.worker),
            "KOCHI_QUEUE": ticket.queue,
            "KOCHI_JOB_ID": str(ticket.job),
            "KOCHI_JOB_NAME": ticket.name,
            "KOCHI_ATTEMPT": str(ticket.attempt),
            NONCE_VARIABLE: claim.nonce,
            **({HELD_VARIABLE: this_node().host} if needs_lock(ticket) else {}),
        }
