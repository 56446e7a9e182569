"""The tickets that a worker was asked for, behind others in the queue: how far it looks for them,
and for how long what is in front may be skipped."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.paths import QueuePaths
from snakemake_kochi.queue.entries import Entry
from snakemake_kochi.queue.overlooked import Overlooked
from snakemake_kochi.queue.ticket import Ticket, read_ticket

# Job numbers behind that of the first ticket among which a worker looks for its own.
_FARTHEST = 1000
# Tickets that are opened for one claim to find them. The first one looks farther: what a worker
# begins with decides whether it still has the time for what it was asked for.
_MOST_OPENED = 64
# Tickets that a worker takes before the first one of the queue, and seconds for which it does.
_MOST_BEFORE = 32
_LONGEST_BEFORE = 600.0


class Preferred:
    """Looks for one worker's own tickets, outside the lock, and opens each of the others once."""

    def __init__(self, is_first: Callable[[Ticket], bool]) -> None:
        self._is_first = is_first
        self._others = Overlooked()
        self._has_looked = False
        self._head: int | None = None
        self._taken_before = 0
        self._head_since = 0.0

    def may_overtake(self, head: Entry) -> bool:
        """Whether others may still be taken before the first ticket of the queue: else one that
        needs a whole worker would wait for ever while others keep coming."""
        if head.job != self._head:
            self._head, self._taken_before, self._head_since = head.job, 0, time.monotonic()
        has_time = time.monotonic() - self._head_since < _LONGEST_BEFORE
        return has_time and self._taken_before < _MOST_BEFORE

    def taken(self, jobs: Sequence[int]) -> None:
        """These were taken, whatever was in front."""
        self._taken_before += sum(self._head is not None and job > self._head for job in jobs)

    def find(
        self,
        queue: QueuePaths,
        head: Entry,
        limit: int,
        overlooked: Overlooked,
        may_have: Callable[[Ticket], bool],
    ) -> list[Entry]:
        """Up to `limit` of them, in the order of the queue, but those that are overlooked. One that
        cannot be read is left to its turn."""
        found: list[Entry] = []
        opened, most = 0, _MOST_OPENED if self._has_looked else _FARTHEST
        self._has_looked = True
        for entry in self._others.entries(queue, head.path.parent.name):
            if len(found) == limit or opened == most or entry.job >= head.job + _FARTHEST:
                break
            if entry.job < head.job:
                continue
            if entry in overlooked:
                self._others.add(entry)
                continue
            opened += 1
            try:
                ticket = read_ticket(entry.path)
            except (DamagedFileError, OSError):
                continue
            if may_have(ticket) and self._is_first(ticket):
                found.append(entry)
            else:
                self._others.add(entry)
        return found
