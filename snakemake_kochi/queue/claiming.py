"""Claiming tickets for a worker: which are opened, which are skipped, and in which order."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import move
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.ending import set_aside
from snakemake_kochi.queue.entries import Entry, claim_lock
from snakemake_kochi.queue.paused import PausedBatches
from snakemake_kochi.queue.result import new_nonce
from snakemake_kochi.queue.skipped import ClaimSettings, Postponed, PreferredTickets, SkippedTickets
from snakemake_kochi.queue.spreading import MOST_LEFT, SPREAD, Spreading
from snakemake_kochi.queue.ticket import Ticket, read_ticket
from snakemake_kochi.queue.unread import BegunJobs, UnreadClaims, read_open
from snakemake_kochi.queue.wakeup import subscribers

_log = logging.getLogger(__name__)

# In seconds; other processes need less to see that the lock is free.
_PAUSE = 0.005
# Tickets in a row that a worker must have taken before it claims the next ones without a look.
_ALIKE = 2
# Seconds until a ticket that could not be read is tried again.
_RETRY = 5.0

Answer = Literal["take", "skip", "stop"]


@dataclass(frozen=True)
class Claim:
    """A ticket that one worker holds.

    `path` is the file below running/ that records the claim; the execution is recorded under
    `nonce`.
    """

    ticket: Ticket
    worker: int
    nonce: str
    path: Path

    @property
    def entry(self) -> Entry:
        return Entry(self.path, self.ticket.job, self.ticket.attempt, self.worker)


_DEFAULTS = ClaimSettings()


class Claimer:
    """Claims tickets and remembers what one process has seen of the waiting tickets of a queue.

    With `controller`, only the tickets of that controller may be claimed.
    """

    def __init__(
        self,
        machine: MachinePaths,
        name: str,
        controller: str | None = None,
        settings: ClaimSettings = _DEFAULTS,
    ) -> None:
        self._machine = machine
        self._paths = machine.queue(name)
        self._controller = controller
        self._settings = settings
        self._skipped = SkippedTickets(settings)
        self._preferred: PreferredTickets | None = None
        self._postponed = Postponed()
        self._paused = PausedBatches(machine)
        self._worker: int | None = None
        self._found = False  # whether the last claim found a ticket
        self._spreading = Spreading()
        self._is_idle = True
        self._begun = BegunJobs(machine)
        self._unread = UnreadClaims(machine, self._paths)
        self._alike = 0  # tickets in a row that were taken

    def claim(
        self,
        worker: int,
        accept: Callable[[Ticket], Answer],
        limit: int = 1,
        is_first: Callable[[Ticket], bool] | None = None,
        is_idle: bool = True,
        unread: tuple[int, int] = (0, 0),
    ) -> list[Claim]:
        """Take up to `limit` tickets for a worker, in the order of submission.

        For a while (see `PreferredTickets`), tickets for which `is_first` is true come before
        others.

        `accept` answers for each ticket: "take"; "skip" if this worker can never run it; or "stop"
        if there is no room for it yet. Later tickets must not overtake such a ticket, because a
        ticket that needs a whole worker would wait for ever while small ones keep coming. A skipped
        ticket is not offered to this worker again. A ticket whose file cannot be read, or that
        cannot be ended for lack of space, is tried again after a while.

        Tickets like those that this worker has taken (see `Spreading`) come last. A worker that
        is not `is_idle`, because it has jobs, leaves them while others serve the queue.

        `unread`: how many tickets like the last ones could start at once, and how many more the
        worker would take. If it has taken its last tickets one and all, so many are claimed before
        they are read (see `unread.py`).

        Raises OSError or KochiError when the queue cannot be listed or locked.
        """
        self._is_idle = is_idle
        if worker != self._worker:
            self._worker, self._spreading = worker, Spreading()
            self._forget_skipped()
        # Without a skipped ticket, it is early enough when one is found.
        if not self._skipped.is_empty:
            self._look_for_paused()
        if is_first is None:
            # Shards with skipped tickets would be listed under the lock.
            if sum(unread) > 0 and self._alike >= _ALIKE and self._skipped.is_empty:
                # If there is nothing where tickets were a moment ago, new ones may be elsewhere.
                return self._claim_unread(worker, accept, *unread) or (
                    self._claim(worker, accept, limit) if self._alike else []
                )
            return self._claim(worker, accept, limit)
        claims, has_stopped = self._claim_preferred(worker, accept, limit, is_first)
        if has_stopped or len(claims) == limit:
            return claims
        try:
            return claims + self._claim(worker, accept, limit - len(claims))
        except (OSError, KochiError) as error:
            if not claims:
                raise
            _log.warning("queue %s: cannot claim further tickets now: %s", self._paths.name, error)
            return claims

    def look_again(self) -> None:
        """Note that this process has put tickets back: none may overtake them now."""
        self._unread.look_again()

    def _claim_unread(
        self, worker: int, accept: Callable[[Ticket], Answer], at_once: int, ahead: int
    ) -> list[Claim]:
        def is_wanted(entry: Entry) -> bool:
            return self._postponed.is_due(entry.path)

        if not self._unread.has_some():
            return []
        self._look_for_paused()
        with claim_lock(self._machine, self._paths.name):
            moved = self._unread.move(is_wanted, worker, at_once, ahead)
        self._found = bool(moved)
        claims: list[Claim] = []
        back: list[tuple[Entry, Ticket]] = []
        skipped: list[tuple[Entry, Ticket]] = []
        over: list[tuple[Entry, Ticket]] = []
        damaged: list[Entry] = []
        for entry, ticket in self._unread.read(moved, over, damaged):
            if back or SPREAD in ticket.labels:
                back.append((entry, ticket))  # later tickets do not overtake it
                continue
            answer = accept(ticket) if self._may_have(ticket) else "skip"
            if answer == "take":
                claims.append(Claim(ticket, worker, new_nonce(), entry.path))
            elif answer == "stop":
                back.append((entry, ticket))
            else:
                self._skipped.add(Entry(self._paths.waiting_ticket(entry.job, 1), entry.job, 1))
                skipped.append((entry, ticket))
        if back or skipped or over or damaged:
            self._alike = 0
            try:
                self._unread.put_back([*over, *skipped, *back], damaged)
            except (OSError, KochiError) as error:
                # The claims must be returned. The worker finds those that it does not know about.
                _log.warning("queue %s: claims do not go back now: %s", self._paths.name, error)
        return claims

    def _look_for_paused(self) -> None:
        """Tickets of a paused batch are skipped like others, until any batch is resumed."""
        if self._paused.has_changed():
            self._forget_skipped()

    def _forget_skipped(self) -> None:
        self._preferred = None
        self._skipped = SkippedTickets(self._settings)

    def _claim_preferred(
        self,
        worker: int,
        accept: Callable[[Ticket], Answer],
        limit: int,
        is_first: Callable[[Ticket], bool],
    ) -> tuple[list[Claim], bool]:
        """The claims of preferred tickets, and whether `accept` answered "stop" for one of them."""
        self._look_for_paused()
        if self._preferred is None:
            self._preferred = PreferredTickets(is_first, self._settings)
        head = next(self._skipped.entries(self._paths), None)
        if head is None or not self._preferred.may_overtake(head):
            return [], False
        found = self._preferred.find(self._paths, head, limit, self._skipped, self._may_have)
        if not found:
            return [], False
        answers: list[Answer] = []

        def noted(ticket: Ticket) -> Answer:
            answers.append(accept(ticket))
            return answers[-1]

        with claim_lock(self._machine, self._paths.name):
            claims, _ = self._claim_locked(worker, noted, limit, found)
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
            with claim_lock(self._machine, self._paths.name):
                entries = self._skipped.entries(self._paths, shard, tidy=True)
                claims, shard = self._claim_locked(worker, accept, limit, entries)
            self._found = bool(claims)
            if claims:
                return claims
            if shard is not None:
                # Many tickets were skipped; other processes get the lock now.
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
        """The claims, and the shard in which to continue the search; None when there is no more."""
        claims: list[Claim] = []
        self._begun = BegunJobs(self._machine)
        try:
            shard = self._take_some(claims, worker, accept, limit, entries)
        except (OSError, KochiError) as error:
            # The claims made so far must be returned: the worker would hold their tickets for ever
            # without knowing about them.
            if not claims:
                raise
            _log.warning("queue %s: cannot claim further tickets now: %s", self._paths.name, error)
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
        looks, left, after = 0, list[Entry](), None
        for entry in entries:
            if len(claims) == limit:
                break
            if looks == limit + self._settings.looks_per_lock:
                after = self._paths.shard_name(entry.job)
                break
            looks += 1
            if len(left) < MOST_LEFT and self._spreading.is_left(entry.job):
                left.append(entry)
            elif (ticket := self._readable(entry)) is None:
                continue
            elif len(left) < MOST_LEFT and self._is_left(ticket):
                left.append(entry)
            elif self._offer(entry, ticket, claims, worker, accept):
                break
        if claims:
            self._spreading.overtaken(entry.job for entry in left)
        elif left and (self._is_idle or not self._has_others(worker)):
            for entry in left[:limit]:
                readable = self._readable(entry)
                if readable and self._offer(entry, readable, claims, worker, accept):
                    break
        return after

    def _offer(
        self,
        entry: Entry,
        ticket: Ticket,
        claims: list[Claim],
        worker: int,
        accept: Callable[[Ticket], Answer],
    ) -> bool:
        """Take or skip a ticket as `accept` answers; return whether it answers "stop"."""
        answer = accept(ticket) if self._may_have(ticket) else "skip"
        if answer == "skip":
            self._skipped.add(entry)
            self._alike = 0
        elif answer == "take":
            claims += self._take(entry, ticket, worker)
            self._spreading.took(ticket)
            self._alike = 0 if SPREAD in ticket.labels else self._alike + 1
        return answer == "stop"

    def _is_left(self, ticket: Ticket) -> bool:
        return self._may_have(ticket) and self._spreading.leaves(ticket)

    def _has_others(self, worker: int) -> bool:
        """Whether other workers serve the queue."""
        return any(number != worker for number in subscribers(self._paths))

    def _may_have(self, ticket: Ticket) -> bool:
        is_own = self._controller is None or ticket.controller == self._controller
        return is_own and not self._paused.has(ticket)

    def _find_claimable(self, limit: int, first_shard: str = "") -> str | None:
        """The shard of the first ticket that may be claimed, or None; searched without the lock.

        For a worker of one controller, the search goes on up to `limit` tickets, so that the
        tickets of others are opened outside the lock.
        """
        if self._controller is None:
            if self._found:
                # The last claim found a ticket, so another one is likely.
                self._look_for_paused()
                return first_shard
            first = next(self._skipped.entries(self._paths, first_shard), None)
            if first is None:
                return None
            self._look_for_paused()
            return self._paths.shard_name(first.job)
        found: list[Entry] = []
        for entry in self._skipped.entries(self._paths, first_shard):
            self._look_for_paused()
            try:
                if not self._may_have(read_ticket(entry.path)):
                    self._skipped.add(entry)
                    continue
            except FileNotFoundError:
                continue
            except (DamagedFileError, OSError):
                pass  # handled under the lock
            found.append(entry)
            if len(found) == limit:
                break
        return self._paths.shard_name(found[0].job) if found else None

    def _readable(self, entry: Entry) -> Ticket | None:
        """The ticket if it can be run; otherwise None, after the ticket was handled."""
        if not self._postponed.is_due(entry.path):
            return None
        try:
            ticket = self._checked(entry)
        except OSError as error:
            why = f"job {entry.job} is skipped for now: {error}"
            self._postponed.postpone(entry.path, _RETRY, why)
            return None
        self._postponed.forget(entry.path)
        return ticket

    def _checked(self, entry: Entry) -> Ticket | None:
        try:
            return read_open(self._machine, entry, self._begun)
        except DamagedFileError as error:
            set_aside(self._machine, self._paths, entry, error.message)
            return None

    def _take(self, entry: Entry, ticket: Ticket, worker: int) -> list[Claim]:
        target = self._paths.running_ticket(entry.job, entry.attempt, worker)
        try:
            move(entry.path, target)
        except FileNotFoundError:
            return []  # only where the lock does not exclude others; the rename still does
        return [Claim(ticket, worker, new_nonce(), target)]

    def is_empty(self) -> bool:
        """Whether no ticket waits that may be claimed here, except skipped ones.

        Some tickets may be running.
        """
        self._found = False
        self._look_for_paused()
        return self._find_claimable(1) is None
