"""A queue: tickets in, claims out, results published. Every step is a rename under one lock."""

from __future__ import annotations

import contextlib
import errno
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import is_there, make_directory, move, to_json, write_exclusively
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.entries import (
    Entry,
    count_waiting,
    find_entries,
    find_entry,
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
    nonce_of,
    set_aside,
    unexecuted_result,
    view_entry,
)
from snakemake_kochi.queue.lock import QueueRemovedError, queue_lock
from snakemake_kochi.queue.observation import Observer
from snakemake_kochi.queue.overlooked import Overlooked
from snakemake_kochi.queue.postponed import Postponed
from snakemake_kochi.queue.preferred import Preferred
from snakemake_kochi.queue.processes import this_node
from snakemake_kochi.queue.recovery import ended_attempt, recover, requeue
from snakemake_kochi.queue.result import Result, UncountedReason
from snakemake_kochi.queue.submission import move_in, written_aside
from snakemake_kochi.queue.ticket import Ticket, read_ticket
from snakemake_kochi.queue.workers import find_lost, notify_subscribers, subscribers

_log = logging.getLogger(__name__)

# Seconds between two looks for dead workers while there is work to claim.
_RECOVERY_INTERVAL = 1.0
# How many tickets are opened, beyond those that are taken, while others wait for the lock.
_LOOKS_PER_LOCK = 256
# Seconds; longer than others take to see that the lock is free.
_PAUSE = 0.005
# Seconds after which a ticket is tried again that could not be read.
_RETRY = 5.0

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
    `is_empty`; the others are skipped. Raises KochiError when the name cannot be used; nothing
    is written before a first ticket. `observer`: the process's own, to be shared by its queues.
    """

    def __init__(
        self,
        machine: MachinePaths,
        name: str,
        controller: str | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.machine = machine
        self.name = name
        self.paths = machine.queue(name)
        self._controller = controller
        self._observer = observer or Observer()
        self._overlooked = Overlooked()
        self._preferred: Preferred | None = None
        self._postponed = Postponed()
        self._claimer: int | None = None
        self._found = False  # whether the last claim did
        self._recovered = -_RECOVERY_INTERVAL

    def submit(self, tickets: Sequence[Ticket]) -> list[Ticket]:
        """Hand tickets over, all or none, in this order; return them with their job numbers.

        Raises KochiError when they cannot be written.
        """
        numbered = self.number(tickets)
        self.hand_over(numbered)
        return numbered

    def number(self, tickets: Sequence[Ticket]) -> list[Ticket]:
        """The tickets with job numbers, for `hand_over`. Raises KochiError."""
        if not tickets:
            return []
        numbers = allocate_ids(self.machine, "job", len(tickets))
        return [
            ticket.handed_over(job, self.name, self.machine.name)
            for ticket, job in zip(tickets, numbers, strict=True)
        ]

    def hand_over(self, numbered: Sequence[Ticket], again: bool = False) -> None:
        """Hand over what was numbered, all or none, in this order. `again`: after an error, which
        may have come when it was done: only what is not there.

        Raises KochiError when they cannot be written.
        """
        if not numbered:
            return
        try:
            self.paths.make()
            if again and not (numbered := self.find_missing(numbered)):
                return
            aside = written_aside(self.paths, new_nonce(), numbered)
            with aside as directory, queue_lock(self.machine, self.name):
                move_in(self.paths, directory)
        except OSError as error:
            raise KochiError(
                f"no ticket was handed over: cannot write below {self.paths.directory}: "
                f"{error.strerror}"
            ) from error
        notify_subscribers(self.machine, self.paths)

    def find_missing(self, numbered: Sequence[Ticket]) -> list[Ticket]:
        """Those of the tickets that are neither in the queue nor have ended. Raises OSError and
        KochiError when that is not known now."""
        there: dict[int, Entry] = {}
        with contextlib.suppress(QueueRemovedError), queue_lock(self.machine, self.name):
            there = find_entries(self.paths, [ticket.job for ticket in numbered])
        left = (ticket for ticket in numbered if ticket.job not in there)
        return [ticket for ticket in left if not is_there(self.machine.job(ticket.job).result)]

    def claim(
        self,
        worker: int,
        accept: Callable[[Ticket], Answer],
        limit: int = 1,
        is_first: Callable[[Ticket], bool] | None = None,
    ) -> list[Claim]:
        """Take up to `limit` tickets for a worker, in the order in which they were handed over, but
        for a while (`Preferred`) those that are `first` before others.

        `accept` answers for each: "take" it, "pass" over one that this worker can never run, or
        "stop" at one that has no room yet: if later ones could overtake it, a ticket that needs a
        whole worker would wait for ever while small ones keep coming. A ticket that was passed
        over is not offered to this worker again. One whose file cannot be read, or not be dealt
        with for lack of space, is passed by for a while. Raises OSError or KochiError when the
        queue cannot be listed or locked.
        """
        if time.monotonic() - self._recovered >= _RECOVERY_INTERVAL:
            self.recover()
        if worker != self._claimer:
            self._claimer, self._overlooked, self._preferred = worker, Overlooked(), None
        if is_first is None:
            return self._claim(worker, accept, limit)
        claims, has_stopped = self._claim_preferred(worker, accept, limit, is_first)
        if has_stopped or len(claims) == limit:
            return claims
        try:
            return claims + self._claim(worker, accept, limit - len(claims))
        except (OSError, KochiError) as error:
            if not claims:
                raise
            _log.warning("queue %s: no more is claimed now: %s", self.name, error)
            return claims

    def _claim_preferred(
        self,
        worker: int,
        accept: Callable[[Ticket], Answer],
        limit: int,
        is_first: Callable[[Ticket], bool],
    ) -> tuple[list[Claim], bool]:
        """The claims of tickets that are `first`, and whether one of them has no room yet."""
        if self._preferred is None:
            self._preferred = Preferred(is_first)
        head = next(self._overlooked.entries(self.paths), None)
        if head is None or not self._preferred.may_overtake(head):
            return [], False
        found = self._preferred.find(self.paths, head, limit, self._overlooked, self._may_have)
        if not found:
            return [], False
        answers: list[Answer] = []

        def noted(ticket: Ticket) -> Answer:
            answers.append(accept(ticket))
            return answers[-1]

        try:
            with queue_lock(self.machine, self.name):
                claims, _ = self._claim_locked(worker, noted, limit, found)
        except QueueRemovedError:
            return [], False
        self._preferred.taken([claim.ticket.job for claim in claims])
        return claims, "stop" in answers

    def _claim(
        self,
        worker: int,
        accept: Callable[[Ticket], Answer],
        limit: int,
    ) -> list[Claim]:
        shard = self._find_claimable(limit)
        while shard is not None:
            try:
                with queue_lock(self.machine, self.name):
                    entries = self._overlooked.entries(self.paths, shard, tidy=True)
                    claims, shard = self._claim_locked(worker, accept, limit, entries)
            except QueueRemovedError:
                claims, shard = [], None  # it was empty
            self._found = bool(claims)
            if claims:
                return claims
            if shard is not None:
                # Many were skipped: now others may have the lock.
                time.sleep(_PAUSE)
                shard = self._find_claimable(limit, shard)
        return []

    def _claim_locked(
        self,
        worker: int,
        accept: Callable[[Ticket], Answer],
        limit: int,
        entries: Iterable[Entry],
    ) -> tuple[list[Claim], str | None]:
        """The claims, and the shard in which to go on looking; None when there is no more."""
        claims: list[Claim] = []
        try:
            shard = self._take_some(claims, worker, accept, limit, entries)
        except (OSError, KochiError) as error:
            # What was taken already would be held for ever by a worker that does not know of it.
            if not claims:
                raise
            _log.warning("queue %s: no more is claimed now: %s", self.name, error)
            shard = None
        return claims, shard

    def _take_some(
        self,
        claims: list[Claim],
        worker: int,
        accept: Callable[[Ticket], Answer],
        limit: int,
        entries: Iterable[Entry],
    ) -> str | None:
        looks = 0
        for entry in entries:
            if len(claims) == limit:
                break
            if looks == limit + _LOOKS_PER_LOCK:
                return entry.path.parent.name
            looks += 1
            ticket = self._readable(entry)
            if ticket is None:
                continue
            answer = accept(ticket) if self._may_have(ticket) else "pass"
            if answer == "stop":
                break
            if answer == "pass":
                self._overlooked.add(entry)
                continue
            claims += self._take(entry, ticket, worker)
        return None

    def _may_have(self, ticket: Ticket) -> bool:
        return self._controller is None or ticket.controller == self._controller

    def _find_claimable(self, limit: int, first_shard: str = "") -> str | None:
        """The shard of the first ticket that may be claimed, looked for without the lock, or None.
        For a worker of one controller up to `limit` are looked for, so that it opens the tickets
        of others outside the lock."""
        if self._controller is None:
            if self._found:
                # There was one, so it is likely that there is another.
                return first_shard
            first = next(self._overlooked.entries(self.paths, first_shard), None)
            return None if first is None else first.path.parent.name
        found: list[Entry] = []
        for entry in self._overlooked.entries(self.paths, first_shard):
            try:
                if not self._may_have(read_ticket(entry.path)):
                    self._overlooked.add(entry)
                    continue
            except FileNotFoundError:
                continue
            except (DamagedFileError, OSError):
                pass  # to be dealt with under the lock
            found.append(entry)
            if len(found) == limit:
                break
        return found[0].path.parent.name if found else None

    def _readable(self, entry: Entry) -> Ticket | None:
        """The ticket, if it can be run; else it is dealt with and None is returned."""
        if not self._postponed.is_due(entry.path):
            return None
        try:
            ticket = self._checked(entry)
        except OSError as error:
            why = f"job {entry.job} is passed by for now: {error}"
            self._postponed.postpone(entry.path, _RETRY, why)
            return None
        self._postponed.forget(entry.path)
        return ticket

    def _checked(self, entry: Entry) -> Ticket | None:
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
        if is_there(self.machine.job(entry.job).cancel):
            result = unexecuted_result(self.machine, entry, "cancelled")
            end_ticket(self.machine, entry.path, ticket, result)
            return None
        return ticket

    def _take(self, entry: Entry, ticket: Ticket, worker: int) -> list[Claim]:
        target = self.paths.running_ticket(entry.job, entry.attempt, worker)
        try:
            move(entry.path, target)
        except FileNotFoundError:
            return []  # only where the lock does not keep others out: the rename still does
        return [Claim(ticket, worker, new_nonce(), target)]

    def finish(self, claim: Claim, result: Result) -> bool:
        """Publish how a claimed ticket ended; its controller is told before this returns.

        Returns False when the ticket had been taken from the worker as lost: then the result is
        kept beside the one that counts and ignored. Raises OSError when it cannot be written; then
        it can be tried again.
        """
        (outcome,) = self.finish_all([(claim, result)])
        if isinstance(outcome, (OSError, KochiError)):
            raise outcome
        return outcome

    def finish_all(
        self, ended: Sequence[tuple[Claim, Result]]
    ) -> list[bool | OSError | KochiError]:
        """`finish` for several under one lock: for each what that returns or raises."""
        with queue_lock(self.machine, self.name):
            return [self._finish(claim, result) for claim, result in ended]

    def _finish(self, claim: Claim, result: Result) -> bool | OSError | KochiError:
        paths = self.machine.job(claim.ticket.job)
        try:
            make_directory(paths.directory)
            if is_there(claim.path):
                return end_ticket(self.machine, claim.path, claim.ticket, result)
            if nonce_of(paths) == result.nonce:
                return True  # published before, and then an answer was lost
            write_exclusively(paths.late_result(result.nonce), to_json(result.to_dict()))
        except (OSError, KochiError) as error:
            return error
        return False

    def requeue(self, claim: Claim, reason: UncountedReason = "drained", detail: str = "") -> None:
        """Give up a claim without a result, for a `reason` that is noted with its `detail`. The
        processes of the attempt must have ended."""
        with queue_lock(self.machine, self.name):
            if is_there(claim.path):
                host = this_node().host
                end = ended_attempt(self.machine, claim.entry, reason, claim.worker, host, detail)
                requeue(self.machine, self.paths, claim.entry, claim.ticket, end)
        notify_subscribers(self.machine, self.paths)

    def recover(self) -> list[str]:
        """See `recovery.recover`."""
        self._recovered = time.monotonic()
        return recover(self.machine, self.name, self._observer)

    def remove(self) -> bool:
        """Remove a queue that only its controller used and whose name is never used again, unless
        a ticket waits or runs there or was set aside. Returns whether it is gone."""
        with contextlib.suppress(QueueRemovedError), queue_lock(self.machine, self.name):
            if has_waiting(self.paths) or running_entries(self.paths) or self._has_damaged():
                return False
            self._remove_locked()
        return True

    def _remove_locked(self) -> None:
        removed = self.paths.removed(new_nonce())
        try:
            # Renamed first and at once: who waits for the lock learns from it that it is gone.
            move(self.paths.directory, removed)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            removed = self.paths.directory  # no rename for directories there
        shutil.rmtree(removed, ignore_errors=True)

    def _has_damaged(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return next(self.paths.damaged.iterdir(), None) is not None
        return False

    def jobs(self) -> list[JobView]:
        """All tickets that wait or run: also those that are moved meanwhile. Raises OSError and
        KochiError when the queue cannot be listed or locked."""
        entries: dict[int, Entry] = {}
        with contextlib.suppress(QueueRemovedError), queue_lock(self.machine, self.name):
            entries = find_entries(self.paths)
        views = (self._present_view(entry) for _, entry in sorted(entries.items()))
        return [view for view in views if view is not None]

    def _present_view(self, entry: Entry) -> JobView | None:
        """None when its job has ended."""
        present: Entry | None = entry
        while present is not None:
            if (view := view_entry(self.machine, present)) is not None:
                return view
            # It was claimed, or requeued, since it was listed.
            present = find_entry(self.paths, entry.job)
            if present is None and not is_there(self.machine.job(entry.job).result):
                with queue_lock(self.machine, self.name):
                    present = find_entry(self.paths, entry.job)
        return None

    def waiting(self) -> list[JobView]:
        return self._views(list(waiting_entries(self.paths)))

    def running(self) -> list[JobView]:
        return self._views(running_entries(self.paths))

    def _views(self, entries: list[Entry]) -> list[JobView]:
        views = (view_entry(self.machine, entry) for entry in entries)
        return [view for view in views if view is not None]

    def is_empty(self) -> bool:
        """Whether no ticket waits that may be claimed here, those aside that were skipped;
        some may be running."""
        self._found = False
        return self._find_claimable(1) is None


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
