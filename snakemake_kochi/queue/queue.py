"""A queue: tickets in, claims out, results published. Every step is a rename under one lock."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import make_directory, to_json, write_atomically, write_exclusively
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.entries import (
    Entry,
    count_waiting,
    has_waiting,
    queue_names,
    running_entries,
    waiting_entries,
)
from snakemake_kochi.queue.ids import allocate_ids
from snakemake_kochi.queue.jobs import (
    JobView,
    complete,
    end_ticket,
    new_nonce,
    set_aside,
    unexecuted_result,
    view_entry,
)
from snakemake_kochi.queue.lock import LockRemovedError, queue_lock
from snakemake_kochi.queue.recovery import recover, requeue
from snakemake_kochi.queue.result import Result
from snakemake_kochi.queue.ticket import Ticket, read_ticket
from snakemake_kochi.queue.workers import find_lost, ring_subscribers, subscribers

# Seconds between two looks for dead workers while there is work to claim.
_RECOVERY_INTERVAL = 1.0

Answer = Literal["take", "pass", "stop"]


@dataclass(frozen=True)
class Claim:
    """A ticket that one worker holds: the file below running/ that says so, and the nonce under
    which the execution is recorded."""

    ticket: Ticket
    worker: int
    nonce: str
    path: Path

    @property
    def entry(self) -> Entry:
        return Entry(self.path, self.ticket.job, self.ticket.attempt, self.worker)


class Queue:
    """One queue of a machine. Any number of processes may have one open.

    With `controller` only the tickets which that controller handed over are claimed and count for
    `is_empty`; the others are passed over. Raises KochiError when the name cannot be used; nothing
    is written before a first ticket.
    """

    def __init__(self, machine: MachinePaths, name: str, controller: str | None = None) -> None:
        self.machine = machine
        self.name = name
        self.paths = machine.queue(name)
        self._controller = controller
        # Jobs of other controllers: that never changes, so each ticket is opened once.
        self._foreign: set[int] = set()
        self._recovered = -_RECOVERY_INTERVAL

    def submit(self, tickets: Sequence[Ticket]) -> list[Ticket]:
        """Hand tickets over, all or none, in this order; return them with their job numbers.

        Raises KochiError when they cannot be written.
        """
        if not tickets:
            return []
        numbers = allocate_ids(self.machine, "job", len(tickets))
        given = [
            replace(ticket, job=job, attempt=1, queue=self.name, machine=self.machine.name)
            for ticket, job in zip(tickets, numbers, strict=True)
        ]
        self.paths.make()
        with queue_lock(self.paths.lock):
            self._write(given)
        ring_subscribers(self.machine, self.paths)
        return given

    def _write(self, tickets: Sequence[Ticket]) -> None:
        written: list[Path] = []
        try:
            for ticket in tickets:
                path = self.paths.waiting_ticket(ticket.job, ticket.attempt)
                if not written or written[-1].parent != path.parent:
                    make_directory(path.parent)
                write_atomically(path, to_json(ticket.to_dict()))
                written.append(path)
        except BaseException as error:
            # Nobody can have claimed one of them: the lock is held.
            for path in written:
                path.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise KochiError(
                    f"no ticket was handed over: cannot write below {self.paths.waiting}: "
                    f"{error.strerror}"
                ) from error
            raise

    def claim(self, worker: int, accept: Callable[[Ticket], Answer], limit: int = 1) -> list[Claim]:
        """Take up to `limit` tickets for a worker, in the order in which they were handed over.

        `accept` answers for each: "take" it, "pass" over one that this worker can never run, or
        "stop" at one that has no room yet: if later ones could overtake it, a ticket that needs a
        whole worker would wait for ever while small ones keep coming.
        """
        if time.monotonic() - self._recovered >= _RECOVERY_INTERVAL:
            self.recover()
        entries = self._candidates(limit)
        if not entries:
            return []
        claims: list[Claim] = []
        with queue_lock(self.paths.lock):
            for entry in waiting_entries(self.paths) if self._controller is None else entries:
                if len(claims) == limit:
                    break
                ticket = self._readable(entry)
                if ticket is None:
                    continue
                answer = accept(ticket)
                if answer == "stop":
                    break
                if answer == "pass":
                    continue
                claims += self._take(entry, ticket, worker)
        return claims

    def _candidates(self, limit: int) -> list[Entry]:
        """The first tickets that may be claimed, looked for without the lock; for a worker of any
        controller's tickets just one, to see whether there is something to take the lock for."""
        if self._controller is None:
            return list(itertools.islice(waiting_entries(self.paths), 1))
        found: list[Entry] = []
        own = 0
        for entry in waiting_entries(self.paths):
            if own == limit:
                break
            if entry.job in self._foreign:
                continue
            try:
                controller = read_ticket(entry.path).controller
            except FileNotFoundError:
                continue
            except DamagedFileError:
                found.append(entry)  # to be set aside, under the lock
                continue
            if controller == self._controller:
                found.append(entry)
                own += 1
            else:
                self._foreign.add(entry.job)
        return found

    def _readable(self, entry: Entry) -> Ticket | None:
        """The ticket, if it can be run; else it is dealt with and None is returned."""
        try:
            ticket = read_ticket(entry.path).with_attempt(entry.attempt)
            if ticket.job != entry.job:
                raise DamagedFileError(f"{entry.path}: holds the ticket of job {ticket.job}")
        except FileNotFoundError:
            return None
        except DamagedFileError as error:
            set_aside(self.machine, self.paths, entry, error.message)
            return None
        # A cancel or a result that somebody was killed over.
        if complete(self.machine, entry.path, ticket):
            return None
        if self.machine.job(entry.job).cancel.exists():
            result = unexecuted_result(self.machine, entry, "cancelled")
            end_ticket(self.machine, entry.path, ticket, result)
            return None
        return ticket

    def _take(self, entry: Entry, ticket: Ticket, worker: int) -> list[Claim]:
        target = self.paths.running_ticket(entry.job, entry.attempt, worker)
        try:
            os.rename(entry.path, target)
        except FileNotFoundError:
            # Only where the lock does not keep others out: the rename still does.
            return []
        with contextlib.suppress(OSError):
            # An emptied shard would be listed by every later claim.
            entry.path.parent.rmdir()
        return [Claim(ticket, worker, new_nonce(), target)]

    def finish(self, claim: Claim, result: Result) -> bool:
        """Publish how a claimed ticket ended; its controller is told before this returns.

        Returns False when the ticket had been taken from the worker as lost: then the result is
        kept beside the one that counts and ignored.
        """
        paths = self.machine.job(claim.ticket.job)
        make_directory(paths.directory)
        with queue_lock(self.paths.lock):
            if claim.path.exists():
                return end_ticket(self.machine, claim.path, claim.ticket, result)
            write_exclusively(paths.late_result(result.nonce), to_json(result.to_dict()))
            return False

    def put_back(self, claim: Claim) -> None:
        """Give up a claim without a result. The processes of the attempt must have ended."""
        with queue_lock(self.paths.lock):
            if claim.path.exists():
                requeue(self.machine, self.paths, claim.entry, claim.ticket)
        ring_subscribers(self.machine, self.paths)

    def recover(self) -> list[str]:
        """See `recovery.recover`."""
        self._recovered = time.monotonic()
        return recover(self.machine, self.name)

    def remove(self) -> bool:
        """Remove a queue that only its controller used and whose name is never used again, unless
        a ticket waits or runs there or was set aside. Returns whether it is gone."""
        with contextlib.suppress(LockRemovedError), queue_lock(self.paths.lock):
            if has_waiting(self.paths) or running_entries(self.paths) or self._has_damaged():
                return False
            # Renamed first: who comes to the lock must find no directory to make a new lock file
            # in. Unlinked before the lock is let go: who waits for it then learns that it is gone.
            removed = self.paths.removed(new_nonce())
            os.rename(self.paths.directory, removed)
            shutil.rmtree(removed, ignore_errors=True)
        return True

    def _has_damaged(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return next(self.paths.damaged.iterdir(), None) is not None
        return False

    def waiting(self) -> list[JobView]:
        return self._views(list(waiting_entries(self.paths)))

    def running(self) -> list[JobView]:
        return self._views(running_entries(self.paths))

    def _views(self, entries: list[Entry]) -> list[JobView]:
        views = (view_entry(self.machine, entry) for entry in entries)
        return [view for view in views if view is not None]

    def is_empty(self) -> bool:
        """Whether no ticket waits that may be claimed here; some may be running."""
        return not self._candidates(1)


@dataclass(frozen=True)
class QueueView:
    """A queue at one moment: how many tickets wait and run, which live workers serve it."""

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
