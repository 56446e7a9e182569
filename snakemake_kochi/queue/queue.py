"""A queue: tickets in, claims out, results published. Every step is a rename under one lock."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import is_there, move
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.attempt_file import AttemptFile
from snakemake_kochi.queue.cancelling import cancel_all
from snakemake_kochi.queue.claiming import Answer, Claim, Claimer
from snakemake_kochi.queue.ending import complete, end_ticket, set_aside
from snakemake_kochi.queue.entries import (
    Entry,
    QueueRemovedError,
    allocate_ids,
    count_waiting,
    find_entries,
    queue_lock,
    queue_names,
    running_entries,
    waiting_entries,
)
from snakemake_kochi.queue.jobs import JobView, has_ended, jobs_in, view_entry
from snakemake_kochi.queue.observer import Observer
from snakemake_kochi.queue.recovery import give_up, recover
from snakemake_kochi.queue.result import Result, UncountedReason, new_nonce
from snakemake_kochi.queue.skipped import ClaimSettings
from snakemake_kochi.queue.submitting import remove_leftovers, written_aside
from snakemake_kochi.queue.ticket import Ticket
from snakemake_kochi.queue.unread import read_entry
from snakemake_kochi.queue.wakeup import notify_subscribers, subscribers
from snakemake_kochi.queue.workers import find_lost

_log = logging.getLogger(__name__)

# Seconds between two looks for dead workers while there is work to claim.
_RECOVERY_INTERVAL = 1.0
# A slow look is repeated less often: after so many times its duration, and at the latest after the
# longest pause, in seconds.
_RECOVERIES_APART = 20.0
_LONGEST_PAUSE = 5.0
# Seconds between two looks of a process for what killed submissions have left.
_LEFTOVERS_INTERVAL = 3600.0
# Seconds for which a list of the claims shows them as they are.
_JUST_NOW = 1.0


# Errors of a rename that a file server may have made all the same, or makes late: whoever tries it
# again then finds the tickets there.
_PERHAPS_DONE = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTEMPTY, errno.EEXIST)


class Queue:
    """One queue of a machine. Any number of processes may have it open.

    With `controller`, only the tickets that this controller submitted are claimed and count for
    `is_empty`; the others are skipped. Raises KochiError when the name cannot be used. No file is
    written before the first ticket. `observer` is the observer of the process, which its queues
    share.
    """

    def __init__(
        self,
        machine: MachinePaths,
        name: str,
        controller: str | None = None,
        observer: Observer | None = None,
        settings: ClaimSettings | None = None,
    ) -> None:
        self.machine = machine
        self.name = name
        self.paths = machine.queue(name)
        self._observer = observer or Observer()
        self._claimer = Claimer(machine, name, controller, settings or ClaimSettings())
        self._recovery_due = 0.0
        self._leftovers_due = -math.inf
        self._claims_listed: tuple[float, list[Entry]] = (-math.inf, [])

    def submit(self, tickets: Sequence[Ticket]) -> list[Ticket]:
        """Submit tickets, all or none, in this order; return them with their job numbers.

        Raises KochiError when they cannot be written.
        """
        numbered = self.number(tickets)
        self.hand_over(numbered)
        return numbered

    def number(self, tickets: Sequence[Ticket]) -> list[Ticket]:
        """Give job numbers to tickets, for `hand_over`. Raises KochiError."""
        if not tickets:
            return []
        numbers = allocate_ids(self.machine, "job", len(tickets))
        return [
            ticket.handed_over(job, self.name, self.machine.name)
            for ticket, job in zip(tickets, numbers, strict=True)
        ]

    def hand_over(self, numbered: Sequence[Ticket], again: bool = False) -> None:
        """Submit numbered tickets, all or none, in this order.

        With `again`, a submission is repeated after an error that may have come after its success:
        only missing tickets are submitted. Raises KochiError when they cannot be written.
        """
        if not numbered:
            return
        try:
            self.paths.make()
            try:
                self._hand_over(numbered, again)
            except OSError as error:
                if error.errno not in _PERHAPS_DONE:
                    raise
                self._hand_over(numbered, again=True)
        except OSError as error:
            what = "no ticket was submitted"
            if error.errno in _PERHAPS_DONE:
                jobs = f"{numbered[0].job} to {numbered[-1].job}"
                what = f"whether the jobs {jobs} were submitted is not known (see: kochi show jobs)"
            raise KochiError(
                f"{what}: cannot write below {self.paths.directory}: {error.strerror}"
            ) from error
        notify_subscribers(self.machine, self.paths)

    def _hand_over(self, numbered: Sequence[Ticket], again: bool) -> None:
        if again and not (numbered := self.find_missing(numbered)):
            return
        with written_aside(self.paths, new_nonce(), numbered) as written:
            self._tidy_submissions()
            with queue_lock(self.machine, self.name):
                written.move_in()

    def _tidy_submissions(self) -> None:
        if time.monotonic() >= self._leftovers_due:
            self._leftovers_due = time.monotonic() + _LEFTOVERS_INTERVAL
            remove_leftovers(self.paths)

    def find_missing(self, numbered: Sequence[Ticket]) -> list[Ticket]:
        """The tickets that are not in the queue and have not ended.

        Raises OSError and KochiError when that is unknown now.
        """
        there: dict[int, Entry] = {}
        with contextlib.suppress(QueueRemovedError), queue_lock(self.machine, self.name):
            there = find_entries(self.paths, [ticket.job for ticket in numbered])
        left = (ticket for ticket in numbered if ticket.job not in there)
        return [ticket for ticket in left if not has_ended(self.machine, ticket.job)]

    def claim(
        self,
        worker: int,
        accept: Callable[[Ticket], Answer],
        limit: int = 1,
        is_first: Callable[[Ticket], bool] | None = None,
        is_idle: bool = True,
        unread: tuple[int, int] = (0, 0),
        is_poll: bool = False,
    ) -> list[Claim]:
        """See `Claimer.claim`; tickets of dead workers are requeued before.

        That is done once a second, or less often if it takes long. `is_poll`: nobody has said that
        there are tickets, and it costs least to find none.
        """
        if time.monotonic() >= self._recovery_due:
            self.recover()
        if is_poll and not self._observer.kept(self.paths).may_have_waiting():
            return []
        return self._claimer.claim(worker, accept, limit, is_first, is_idle, unread)

    def finish(self, claim: Claim, result: Result, file: AttemptFile | None = None) -> bool:
        """Publish how a claimed ticket ended; its controller is notified before this returns.

        `file` is that of the attempt, if it has begun. Needs no lock. Returns False when the ticket
        had been taken from the worker as lost; then the result is kept beside the one that counts
        and ignored. Raises OSError or KochiError when the result cannot be written; then the call
        can be repeated.
        """
        own_attempt = claim.ticket.attempt
        return end_ticket(self.machine, claim.path, claim.ticket, result, own_attempt, file)

    def requeue(self, claim: Claim, reason: UncountedReason = "drained", detail: str = "") -> None:
        """Give up a claim without a result; its `reason` and `detail` are recorded.

        The processes of the attempt must have ended. Raises OSError or KochiError when it cannot be
        given up; then the call can be repeated.
        """
        (error,) = self.requeue_all([claim], reason, detail)
        if error is not None:
            raise error

    def requeue_all(
        self, claims: Sequence[Claim], reason: UncountedReason = "drained", detail: str = ""
    ) -> list[OSError | KochiError | None]:
        """As `requeue` for each of the claims, under one lock; return what was raised for each.

        Raises OSError or KochiError when the queue cannot be locked.
        """
        with queue_lock(self.machine, self.name):
            errors = [self._requeue_locked(claim, reason, detail) for claim in claims]
        if None in errors:
            self._claimer.look_again()
            notify_subscribers(self.machine, self.paths)
        return errors

    def _requeue_locked(
        self, claim: Claim, reason: UncountedReason, detail: str
    ) -> OSError | KochiError | None:
        try:
            give_up(self.machine, self.paths, claim.entry, claim.ticket, reason, detail)
        except (OSError, KochiError) as error:
            return error
        return None

    def set_aside(self, entry: Entry, why: str) -> None:
        """End a ticket that cannot be read, if it is still there. Raises OSError and KochiError."""
        with queue_lock(self.machine, self.name):
            if is_there(entry.path):
                set_aside(self.machine, self.paths, entry, why)

    def has_unbegun_claims(self, worker: int) -> bool:
        """Whether another worker holds a ticket that it may put back into the queue."""
        return any(
            entry.worker != worker
            and not is_there(self.machine.job(entry.job).attempt(entry.attempt))
            for entry in running_entries(self.paths)
        )

    def list_claims(self) -> list[Entry]:
        """The tickets that workers have. A look for dead workers that follows needs no other list.

        Raises OSError.
        """
        entries = self._observer.kept(self.paths).running()
        self._claims_listed = time.monotonic(), entries
        return entries

    def recover(self) -> list[str]:
        """See `recovery.recover`."""
        began = time.monotonic()
        (listed, entries), self._claims_listed = self._claims_listed, (-math.inf, [])
        running = entries if began - listed < _JUST_NOW else None
        try:
            messages = recover(self.machine, self.name, self._observer, running)
            if messages:
                self._claimer.look_again()
            return messages
        finally:
            ended = time.monotonic()
            pause = max(_RECOVERY_INTERVAL, _RECOVERIES_APART * (ended - began))
            self._recovery_due = began + min(pause, _LONGEST_PAUSE)

    def cancel_jobs(self) -> None:
        """Cancel all jobs that wait or run."""
        cancel_all(self.machine, [view.job for view in self.jobs()])

    def remove(self) -> bool:
        """Remove a queue that only its controller used and whose name is never used again.

        It stays if a ticket waits or runs in it or was set aside. A ticket with a result does
        neither: its process was killed, and no other one may ever look into this queue. Returns
        whether the queue is gone.
        """
        with contextlib.suppress(QueueRemovedError), queue_lock(self.machine, self.name):
            entries = itertools.chain(waiting_entries(self.paths), running_entries(self.paths))
            if not all(map(self._is_over, entries)) or self._has_damaged():
                return False
            self._remove_locked()
        return True

    def _is_over(self, entry: Entry) -> bool:
        """Whether a ticket has a result; then it is taken out."""
        try:
            ticket = read_entry(entry)
            return ticket is None or complete(self.machine, entry.path, ticket)
        except (OSError, DamagedFileError):
            return False

    def _remove_locked(self) -> None:
        removed = self.paths.removed(new_nonce())
        try:
            # The rename comes first and is atomic: a process that waits for the lock then sees that
            # the queue is gone.
            move(self.paths.directory, removed)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            removed = self.paths.directory  # this filesystem cannot rename directories
        shutil.rmtree(removed, ignore_errors=True)

    def _has_damaged(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return next(self.paths.damaged.iterdir(), None) is not None
        return False

    def jobs(self) -> list[JobView]:
        """See `jobs_in`."""
        return jobs_in(self.machine, self.name)

    def waiting(self) -> list[JobView]:
        return self._views(list(waiting_entries(self.paths)))

    def running(self) -> list[JobView]:
        return self._views(running_entries(self.paths))

    def _views(self, entries: list[Entry]) -> list[JobView]:
        views = (view_entry(self.machine, entry) for entry in entries)
        return [view for view in views if view is not None]

    def is_empty(self) -> bool:
        """See `Claimer.is_empty`."""
        return self._claimer.is_empty()


@dataclass(frozen=True)
class QueueView:
    """A queue at one moment: how many tickets wait and run, and which live workers serve it."""

    name: str
    waiting: int
    running: int
    workers: tuple[int, ...]


def list_queues(machine: MachinePaths) -> list[QueueView]:
    """All queues that ever had a ticket or a worker, by name."""
    views = []
    for name in queue_names(machine):
        paths = machine.queue(name)
        serving = subscribers(paths)
        lost = find_lost(machine, serving)
        views.append(
            QueueView(
                name=name,
                waiting=count_waiting(paths),
                running=len(running_entries(paths)),
                workers=tuple(worker for worker in serving if worker not in lost),
            )
        )
    return views


def private_queue(controller: str) -> str:
    """The queue for those jobs of a run that name no queue.

    The names of further queues of the run begin with this name and a dash.
    """
    return f"run-{controller}"


def remove_private_queues(machine: MachinePaths, controller: str) -> None:
    """Remove a run's own queues, except those that still hold a ticket."""
    first = private_queue(controller)
    for name in queue_names(machine):
        if name == first or name.startswith(f"{first}-"):
            Queue(machine, name).remove()
