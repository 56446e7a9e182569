"""The turns of a worker's jobs on this computer, where other workers of the user may run jobs."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from snakemake_kochi.files.together import outcome_of
from snakemake_kochi.node_lock import Place, acquire, holder, release
from snakemake_kochi.queue.claiming import Claim
from snakemake_kochi.queue.ticket import Ticket


@dataclass(frozen=True, eq=False)
class _Wait:
    claim: Claim
    place: Place = field(default_factory=Place)


class Turns:
    """The lock of this computer for each job of a worker; see `node_lock`.

    The loop never waits for it: a thread does, and makes this object readable when it has the lock.
    """

    def __init__(self, directory: Path | None) -> None:
        """`directory`: None for a worker inside of a job that has the lock."""
        self._directory = directory
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._held: dict[str, int] = {}  # by the nonce of the claim
        self._waiting: _Wait | None = None
        self._arrived: list[tuple[_Wait, int | Exception | None]] = []

    def has(self, claim: Claim) -> bool:
        """Whether the job has the lock, so that it may start now; if not, it waits for its turn.

        Raises OSError.
        """
        ticket = claim.ticket
        if self._directory is None or not needs_lock(ticket) or claim.nonce in self._held:
            return True
        if self._waiting is not None:
            return False
        wanted = self._directory, ticket.resources.exclusive, _described(ticket)
        if (descriptor := acquire(*wanted, wait=False)) is not None:
            self._held[claim.nonce] = descriptor
            return True
        self._waiting = waiting = _Wait(claim)

        def wait() -> None:
            outcome = outcome_of(lambda: acquire(*wanted, place=waiting.place))
            self._arrived.append((waiting, outcome))
            os.eventfd_write(self._event, 1)

        threading.Thread(target=wait, daemon=True).start()
        return False

    @property
    def waits(self) -> str:
        """Which job waits, and why, for people; "" if none does."""
        if self._waiting is None or self._directory is None:
            return ""
        ticket = self._waiting.claim.ticket
        named = f"job {ticket.job} ({ticket.name})"
        return f"{named} waits: {holder(self._directory)}"

    def fileno(self) -> int:
        return self._event

    def attend(self) -> None:
        """Note that the turn of the waiting job has come. Raises OSError."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._event)
        while self._arrived:
            wait, outcome = self._arrived.pop()
            if wait is not self._waiting:  # its job was given up
                if isinstance(outcome, int):
                    release(outcome)
                continue
            self._waiting = None
            if isinstance(outcome, Exception):
                raise outcome
            assert outcome is not None
            self._held[wait.claim.nonce] = outcome

    def keep(self, nonces: Collection[str]) -> None:
        """Give back the lock of all other jobs, or their place: they have ended, or do not start
        after all. Raises OSError.
        """
        if self._waiting is not None and self._waiting.claim.nonce not in nonces:
            self._waiting.place.give_up()
            self._waiting = None
        for nonce in self._held.keys() - nonces:
            release(self._held.pop(nonce))


def needs_lock(ticket: Ticket) -> bool:
    """Whether a job counts: a person's shell is idle most of the time, and may be open for days."""
    return "terminal" not in ticket.labels


def _described(ticket: Ticket) -> str:
    where = ticket.labels.get("project", ticket.directory)
    return f"job {ticket.job} ({ticket.name}) of {where}, process {os.getpid()},"
