"""From a claim to a job that runs: log, process, attempt file, and only then its first step."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial

from snakemake_kochi.files import answered, is_there, make_directory, to_json, write_exclusively
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.processes import NONCE_VARIABLE, this_node
from snakemake_kochi.queue.queue import Claim
from snakemake_kochi.queue.result import Attempt
from snakemake_kochi.queue.ticket import now
from snakemake_kochi.worker.node.devices import Allotment, Devices
from snakemake_kochi.worker.node.memory import OomWatch
from snakemake_kochi.worker.runners.choice import Runners
from snakemake_kochi.worker.runners.interface import Execution
from snakemake_kochi.worker.slot import Slot


class AlreadyBegunError(Exception):
    """Another worker began this very attempt, or was given the next: the claim is not ours."""


class Launcher:
    """Starts the jobs of one worker."""

    def __init__(
        self,
        machine: MachinePaths,
        environment: Mapping[str, str],
        runners: Runners,
        devices: Devices,
    ) -> None:
        self._machine = machine
        self._environment = environment
        self._runners = runners
        self._devices = devices
        self._oom = OomWatch()

    def start(self, claim: Claim) -> Slot:
        """Start a claimed ticket.

        Raises OSError or KochiError when a file or a process cannot be made, and AlreadyBegunError;
        then nothing of the job has been executed and nothing of it is left.
        """
        allotment = self._devices.allot(claim.ticket.resources)
        try:
            return self._start(claim, allotment)
        except BaseException:
            self._devices.release(allotment)
            raise

    def _start(self, claim: Claim, allotment: Allotment) -> Slot:
        paths = self._machine.job(claim.ticket.job)
        make_directory(paths.directory)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        log = answered(partial(os.open, paths.log, flags, 0o600))
        try:
            offset = _write_header(log, claim)
            # The job's processes hold the log itself, not a pipe to the worker: however much they
            # write, and whoever of them stays behind, the worker has nothing to wait for.
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

    def ended(self, slot: Slot) -> None:
        """To be called when the last process of a job is gone: others may have its devices."""
        self._devices.release(slot.allotment)

    def _record(self, claim: Claim, execution: Execution, skipped_runners: str) -> str:
        """Write the attempt file; from then on anybody can find the job's processes."""
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
            # Only where neither the lock nor the rename kept two workers apart; this still does.
            raise AlreadyBegunError(f"{what} was begun by another worker")
        # Where that is not known now it is not started: others may be running it already.
        if is_there(paths.ended(ticket.attempt)) or is_there(paths.result):
            # This worker stood still after the claim, and was presumed dead.
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


def _write_header(log: int, claim: Claim) -> int:
    """Returns where this attempt's output begins in the log, in bytes."""
    attempt = claim.ticket.attempt
    if attempt > 1:
        where = f"worker {claim.worker} on {this_node().host}"
        os.write(log, f"-- attempt {attempt}: {where}, {now()} --\n".encode())
    return os.lseek(log, 0, os.SEEK_END)
