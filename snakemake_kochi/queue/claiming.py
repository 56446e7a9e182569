"""Claiming tickets for a worker: which are opened, which skipped, and in which order."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import is_there, move
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.entries import Entry, QueueRemovedError, queue_lock
from snakemake_kochi.queue.jobs import complete, end_ticket, new_nonce, set_aside, unexecuted_result
from snakemake_kochi.queue.observation import Postponed
from snakemake_kochi.queue.skipped import ClaimSettings, PreferredTickets, SkippedTickets
from snakemake_kochi.queue.ticket import Ticket, read_ticket

_log = logging.getLogger(__name__)

# Seconds; longer than others take to see that the lock is free.
_PAUSE = 0.005
# Seconds after which a ticket is tried again that could not be read.
_RETRY = 5.0

Answer = Literal["take", "skip", "stop"]


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


_DEFAULTS = ClaimSettings()


class Claimer:
    """Remembers what one process has seen of the waiting tickets of a queue. With `controller` only
    the tickets of that controller may be claimed."""

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
        self._worker: int | None = None
        self._found = False  # whether the last claim did

    def claim(
        self,
        worker: int,
        accept: Callable[[Ticket], Answer],
        limit: int = 1,
        is_first: Callable[[Ticket], bool] | None = None,
    ) -> list[Claim]:
        """Take up to `limit` tickets for a worker, in the order in which they were handed over, but
        for a while (`PreferredTickets`) those that are `first` before others.

        `accept` answers for each: "take" it, "skip" one that this worker can never run, or
        "stop" at one that has no room yet: if later ones could overtake it, a ticket that needs a
        whole worker would wait for ever while small ones keep coming. A skipped ticket is
        not offered to this worker again. One whose file cannot be read, or that cannot be ended
        for lack of space, is tried again after a while. Raises OSError or KochiError when the
        queue cannot be listed or locked.
        """
        if worker != self._worker:
            self._worker, self._preferred = worker, None
            self._skipped = SkippedTickets(self._settings)
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
            _log.warning("queue %s: no more is claimed now: %s", self._paths.name, error)
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

        try:
            with queue_lock(self._machine, self._paths.name):
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
                with queue_lock(self._machine, self._paths.name):
                    entries = self._skipped.entries(self._paths, shard, tidy=True)
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
            _log.warning("queue %s: no more is claimed now: %s", self._paths.name, error)
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
            if looks == limit + self._settings.looks_per_lock:
                return entry.path.parent.name
            looks += 1
            ticket = self._readable(entry)
            if ticket is None:
                continue
            answer = accept(ticket) if self._may_have(ticket) else "skip"
            if answer == "stop":
                break
            if answer == "skip":
                self._skipped.add(entry)
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
            first = next(self._skipped.entries(self._paths, first_shard), None)
            return None if first is None else first.path.parent.name
        found: list[Entry] = []
        for entry in self._skipped.entries(self._paths, first_shard):
            try:
                if not self._may_have(read_ticket(entry.path)):
                    self._skipped.add(entry)
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
            why = f"job {entry.job} is skipped for now: {error}"
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
            set_aside(self._machine, self._paths, entry, error.message)
            return None
        # A cancel or a result that somebody was killed over.
        if complete(self._machine, entry.path, ticket):
            return None
        if is_there(self._machine.job(entry.job).cancel):
            result = unexecuted_result(self._machine, entry, "cancelled")
            end_ticket(self._machine, entry.path, ticket, result)
            return None
        return ticket

    def _take(self, entry: Entry, ticket: Ticket, worker: int) -> list[Claim]:
        target = self._paths.running_ticket(entry.job, entry.attempt, worker)
        try:
            move(entry.path, target)
        except FileNotFoundError:
            return []  # only where the lock does not keep others out: the rename still does
        return [Claim(ticket, worker, new_nonce(), target)]

    def is_empty(self) -> bool:
        """Whether no ticket waits that may be claimed here, those aside that were skipped;
        some may be running."""
        self._found = False
        return self._find_claimable(1) is None
