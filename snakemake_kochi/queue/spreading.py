"""Duplicates spread over workers: a worker leaves tickets like those that it has taken to others.

It does so for a while and as long as there is something else to do, so that no ticket waits for
ever and no worker is idle. A worker remembers only what it has taken itself.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from snakemake_kochi.tickets.ticket import Ticket

# The label of a ticket: tickets with the same one should run on different nodes.
SPREAD = "spread"
# Tickets that one claim leaves to others: it opens so many more at most.
MOST_LEFT = 32
# Claims in which a worker leaves one ticket.
MOST_TIMES = 100
# Labels and tickets that a worker remembers.
_REMEMBERED = 20_000


class Spreading:
    """What one worker has taken of a queue, and what it leaves to others for now."""

    def __init__(self) -> None:
        self._taken: dict[str, None] = {}  # the oldest first
        self._left: dict[Hashable, int] = {}  # in how many claims, by job; the oldest first

    def is_left(self, job: Hashable) -> bool:
        """Whether the worker still leaves a ticket that it has seen before."""
        return self._left.get(job, MOST_TIMES) < MOST_TIMES

    def leaves(self, ticket: Ticket, job: Hashable) -> bool:
        """Whether the worker leaves a ticket to others, because it has taken one like it.

        `job`: what names it.
        """
        label = ticket.labels.get(SPREAD)
        if label is None or label not in self._taken:
            return False
        if job not in self._left:
            self._left[job] = 0
            _shorten(self._left)
        return self.is_left(job)

    def took(self, ticket: Ticket, job: Hashable) -> None:
        """Note a ticket that the worker has taken."""
        self._left.pop(job, None)
        if (label := ticket.labels.get(SPREAD)) is not None:
            self._taken.pop(label, None)
            self._taken[label] = None
            _shorten(self._taken)

    def overtaken(self, jobs: Iterable[Hashable]) -> None:
        """Note tickets that were left while another one was taken."""
        for job in jobs:
            if job in self._left:
                self._left[job] += 1


def _shorten(remembered: dict[str, None] | dict[Hashable, int]) -> None:
    while len(remembered) > _REMEMBERED:
        del remembered[next(iter(remembered))]  # type: ignore[arg-type]
