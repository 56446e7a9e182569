"""The end of a run: it cancels its jobs, or leaves them to the next run, and tidies up."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.backoff import wait_until
from snakemake_kochi.errors import KochiError
from snakemake_kochi.executor.internals import keep_empty_directories, leave_to_adopter
from snakemake_kochi.executor.results import Results
from snakemake_kochi.executor.run import Run
from snakemake_kochi.executor.submission import Submission
from snakemake_kochi.files import has_room
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import cancel_all, find_job, remove_private_queues
from snakemake_kochi.queue.result import has_result

_PATIENCE = 15.0  # seconds
_PATIENCE_ON_FULL_DISK = 1.0
_PAUSE = 0.05
_LEAST_BEFORE_BREAK = 5.0  # seconds from the second interrupt of a run to one that breaks it off
_BROKEN_OFF = b"""\
kochi: broken off: a step of the shutdown does not end; perhaps a filesystem does not answer.
The workers of this run end with it; the next run in this directory adopts or cancels other jobs.
"""


class Shutdown:
    """Ends a run, in Snakemake's scheduler thread.

    Each step may be repeated: Snakemake calls once more after an interrupt or an error of ours.
    """

    def __init__(
        self, run: Run, submission: Submission, results: Results, has_own_queues: bool
    ) -> None:
        """`has_own_queues`: whether the run made queues, which are removed at its end."""
        self._run = run
        self._submission = submission
        self._results = results
        self._has_own_queues = has_own_queues
        self._ending: set[int] = set()  # the jobs that were cancelled
        self._has_given_summary = False
        self._has_reported_cancelling = False
        self._has_left = False  # its jobs that go on
        self.further_interrupts = FurtherInterrupts()

    def cancel_jobs(self) -> None:
        """Withdraw the waiting jobs, end the running ones, and name those that are left."""
        run = self._run
        # A separate report for each cancelled job would bury the important messages.
        self._results.stop()
        run.failed.set()
        if run.inbox.adopter is not None:
            return
        if run.workers.go_on_alone and _has_time_up(run.machine):
            self._leave_jobs()
            return
        try:
            cancelling = self._cancel_all()
            cancelling.wait(self._is_urgent)
        finally:
            # Any error of reading or writing: no worker stays behind.
            run.workers.stop(self._is_urgent)
        for queue in self._submission.used_queues:
            run.queue_watch.recover(queue)
        if not self._has_reported_cancelling:
            cancelling.report()
            self._has_reported_cancelling = True

    def _is_urgent(self) -> bool:
        return self.further_interrupts.is_noted

    def _cancel_all(self) -> Cancelling:
        self._forget_what_is_not_handed_over()
        self._ending.update(self._run.pending.numbers())
        return Cancelling(self._run.machine, sorted(self._ending), self._run.logger)

    def _leave_jobs(self) -> None:
        """Leave the jobs: the time of the controller is over, but not that of its workers.

        Everything goes on as after the controller's death, and the next run adopts the jobs.
        """
        if self._has_left:
            return
        self._has_left = True
        self._forget_what_is_not_handed_over()
        left = _Left.of(self._run.machine, self._run.pending.numbers())
        self._run.workers.leave(is_needed=left.waiting > 0)
        keep_empty_directories(self._run.workflow)
        self._run.logger.warning(left.describe())

    def _forget_what_is_not_handed_over(self) -> None:
        for job in self._submission.never_handed_over():
            self._run.pending.end(job)
        self._submission.forget_held()

    def end(self) -> None:
        """End the workers, if they do not go on, and tidy up."""
        run = self._run
        self._results.stop()
        if self._results.has_broken_off:
            # Snakemake shuts down without waiting for jobs or cancelling them.
            self._results.has_broken_off = False
            self.cancel_jobs()
        if run.inbox.adopter is None and not self._has_left:
            run.workers.stop(self._is_urgent)
        self._close()

    def end_unused(self) -> None:
        """End a run without jobs, which Snakemake does not shut down."""
        if not self._submission.used_queues:
            self.end()

    def _close(self) -> None:
        run = self._run
        if run.inbox.adopter is not None:
            # Jobs, queues and allocations belong to the adopter. Local workers end with this
            # process.
            leave_to_adopter(run.workflow)
            run.inbox.leave()
            return
        self._tidily(lambda: run.adoption.end(not run.failed.is_set()))
        self._tidily(self._give_summary)
        if self._has_own_queues and not self._has_left:
            self._tidily(lambda: remove_private_queues(run.machine, run.inbox.identity))
        if self._has_left or self._has_unended():
            run.inbox.leave()
        else:
            run.inbox.close()

    def _tidily(self, step: Callable[[], object]) -> None:
        """A step of tidying up; if it fails, the run has ended all the same."""
        try:
            step()
        except (OSError, KochiError) as error:
            self._run.logger.warning(
                f"The run has ended, but not all of its last steps worked: {error}"
            )

    def _give_summary(self) -> None:
        self._run.record.end()
        if self._has_given_summary:
            return
        self._has_given_summary = True
        unreported = self._run.pending.tickets()
        if lines := self._run.summary.lines(self._run.record.first_worker, unreported):
            self._run.logger.info("\n".join(lines))

    def _has_unended(self) -> bool:
        """Whether jobs of this run may go on after it, as far as is known.

        No other run may then start beside them.
        """
        jobs = self._ending.union(self._run.pending.numbers())
        try:
            return any(not has_result(self._run.machine.job(job)) for job in jobs)
        except OSError:
            return True


class FurtherInterrupts:
    """While entered, an interrupt (Ctrl-C) raises nothing and is only noted.

    As an exception in the middle of the shutdown it would leave the rest of the jobs running. But
    one that comes when the shutdown has had its time ends the process: a thread may wait for a file
    server for ever.
    """

    def __init__(self) -> None:
        self._noted = threading.Event()
        self._first = 0.0
        self._previous: Any = None

    @property
    def is_noted(self) -> bool:
        return self._noted.is_set()

    def __enter__(self) -> FurtherInterrupts:
        # Only the main thread can set handlers, and interrupts are raised only there.
        with contextlib.suppress(ValueError):
            self._previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.is_noted:
            self._noted.set()
            self._first = time.monotonic()
        elif time.monotonic() >= self._first + _LEAST_BEFORE_BREAK:
            # No buffered stream: the signal may have come while that was written to.
            os.write(sys.stderr.fileno(), _BROKEN_OFF)
            os._exit(128 + number)


class Cancelling:
    """Cancels jobs, all at once when this is made, and waits for their ends."""

    def __init__(
        self, machine: MachinePaths, jobs: Sequence[int], logger: LoggerExecutorInterface
    ) -> None:
        self._machine = machine
        self._jobs = jobs
        self._logger = logger
        outcomes: Mapping[int, str | Exception]
        try:
            outcomes = cancel_all(machine, jobs)
        except OSError as error:
            # Even the queues cannot be listed: the run's own workers end their jobs all the same.
            outcomes = dict.fromkeys(jobs, error)
        # On a full disk, for example: the other jobs are cancelled all the same.
        untold = {job: why for job, why in outcomes.items() if isinstance(why, Exception)}
        self._told = [job for job in jobs if job not in untold]
        self._cancelled = sum(
            outcome != "ended" for job, outcome in outcomes.items() if job not in untold
        )
        for why, those in _by_reason(untold).items():
            logger.error(f"kochi jobs {_numbers(those)} could not be cancelled: {why}")

    def wait(self, is_urgent: Callable[[], bool]) -> None:
        """Wait until all cancelled jobs have ended, for a limited time.

        The wait stops when the end becomes urgent. On a full disk no end can be written, and none
        is awaited.
        """
        patience = _PATIENCE if self._has_room() else _PATIENCE_ON_FULL_DISK
        left = self._told

        def is_over() -> bool:
            nonlocal left
            left = self._not_ended(left)
            return not left or is_urgent()

        wait_until(is_over, patience, _PAUSE)

    def _has_room(self) -> bool:
        with contextlib.suppress(OSError):
            return has_room(self._machine.directory)
        return True  # as far as is known

    def _not_ended(self, jobs: Sequence[int]) -> list[int]:
        return [job for job in jobs if not self._has_ended(job)]

    def _has_ended(self, job: int) -> bool:
        with contextlib.suppress(OSError):
            return has_result(self._machine.job(job))
        return False  # as far as is known

    def report(self) -> None:
        """Report the number of cancelled jobs, or name those that are left."""
        left = self._not_ended(self._jobs)
        numbers = _numbers(left)
        if left and not self._has_room():
            self._logger.error(
                f"KOCHI_ROOT is full: the ends of kochi jobs {numbers} could not be written. The "
                "jobs in this run's own workers have ended. Free some space; the next run in this "
                "directory adopts or cancels the others."
            )
        elif left:
            self._logger.error(
                f"Cancelled, but not ended yet: kochi jobs {numbers}. To see them, type: kochi "
                f"show jobs\nIf they do not end, type: kochi cancel {numbers}"
            )
        elif self._jobs:
            jobs = "1 kochi job" if self._cancelled == 1 else f"{self._cancelled} kochi jobs"
            self._logger.info(f"Cancelled {jobs}; nothing of this run is left.")


def _by_reason(outcomes: Mapping[int, Exception]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for job, error in outcomes.items():
        # Without the name of the file, which differs for each job.
        why = error.strerror if isinstance(error, OSError) else None
        found[why or str(error)].append(job)
    return found


def _numbers(jobs: Sequence[int]) -> str:
    return " ".join(map(str, jobs))


@dataclass(frozen=True)
class _Left:
    """The jobs that a run leaves to the next one, unless they are known to have ended.

    It counts the running and the waiting jobs.
    """

    jobs: tuple[int, ...]
    running: int
    waiting: int

    @classmethod
    def of(cls, machine: MachinePaths, jobs: Iterable[int]) -> _Left:
        states = {job: _state_of(machine, job) for job in jobs}
        many = Counter(states.values())
        unended = tuple(job for job, state in states.items() if state != "ended")
        return cls(unended, many["running"], many["waiting"])

    def describe(self) -> str:
        """The text for a run that its time limit ends."""
        text = "This run has reached its time limit and ends. "
        if self.jobs:
            text += (
                f"{self.running} kochi jobs continue in their allocations, {self.waiting} wait "
                f"for one. To end them, type: kochi cancel {_numbers(self.jobs)}\n"
            )
        return f"{text}To continue, type the same command again; it does nothing twice."


def _state_of(machine: MachinePaths, job: int) -> str:
    with contextlib.suppress(OSError, KochiError):
        return find_job(machine, job).state
    return "unknown"


def _has_time_up(machine: MachinePaths) -> bool:
    # Imported here: it matters at an interrupt only.
    from snakemake_kochi.detached.launches import has_time_up

    return has_time_up(machine)
