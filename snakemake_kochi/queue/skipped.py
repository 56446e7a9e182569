"""The waiting tickets that one worker skips: those that it can never run and, for a while, those in
front of the tickets for which it was requested."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import answered
from snakemake_kochi.paths import QueuePaths
from snakemake_kochi.queue.entries import Entry, JobSet, shard_entries, waiting_shards
from snakemake_kochi.queue.ticket import Ticket, read_ticket

_RELIST = 0.1  # seconds
_TICK = 20_000_000  # nanoseconds


@dataclass(frozen=True)
class _Seen:
    """A shard in which nothing but skipped tickets was found, and when (monotonic seconds) it
    was first and last found so with this modification time."""

    modified: int
    first: float
    last: float


@dataclass(frozen=True)
class _Listing:
    """The shards of a queue, the modification time of their directory, and until when (monotonic
    seconds) they are not listed again."""

    names: list[str]
    modified: int | None
    until: float


@dataclass(frozen=True)
class ClaimSettings:
    """How a worker looks for tickets. `looks_per_lock`: how many it opens, beyond those that it
    takes, while others wait for the lock.

    `settling`: seconds during which a directory's time must have stood still before it is relied
    upon, because on some filesystems it has whole seconds, and two changes within one leave the
    same time. `trust`: seconds for which it is relied upon, because a network filesystem's
    attributes may be a minute old.
    """

    looks_per_lock: int = 256
    settling: float = 3.0
    trust: float = 60.0


_DEFAULTS = ClaimSettings()


class SkippedTickets:
    """What is known of a queue's waiting tickets: `entries` lists the others.

    Each skipped ticket was opened once. A shard that has nothing else is not listed again until
    it changes: a hundred thousand foreign tickets in front of a worker's own cost it a stat(2) for
    each 256.
    """

    def __init__(self, settings: ClaimSettings = _DEFAULTS) -> None:
        self._settings = settings
        self._jobs = JobSet()
        self._shards_with_some: set[str] = set()
        self._seen: dict[str, _Seen] = {}
        self._listed: _Listing | None = None

    def add(self, entry: Entry) -> None:
        """Skip a ticket from now on."""
        self._jobs.add(entry.job)
        self._shards_with_some.add(entry.path.parent.name)

    def __contains__(self, entry: Entry) -> bool:
        return entry.job in self._jobs

    def entries(
        self, queue: QueuePaths, first_shard: str = "", tidy: bool = False
    ) -> Iterator[Entry]:
        """The waiting tickets that are not skipped, in their order, from a shard on.

        With `tidy` emptied shards are removed, which would be listed by every later claim; only
        with the queue's lock held.
        """
        names, is_fresh = self._shards(queue)
        yield from self._look_through(queue, names, first_shard, tidy)
        if not is_fresh:
            known = set(names)
            self._listed = None
            names, _ = self._shards(queue)
            new = [name for name in names if name not in known]
            yield from self._look_through(queue, new, first_shard, tidy)

    def _look_through(
        self, queue: QueuePaths, names: list[str], first_shard: str, tidy: bool
    ) -> Iterator[Entry]:
        waiting = str(queue.waiting)
        for name in names:
            # A text: of a hundred thousand foreign tickets only this is done again and again.
            if name >= first_shard and not self._has_nothing_new(name, f"{waiting}/{name}"):
                yield from self._look_into(name, queue.waiting / name, tidy)

    def _shards(self, queue: QueuePaths) -> tuple[list[str], bool]:
        """The names of the shards, and whether they were listed just now: with a hundred thousand
        tickets that takes as long as all the rest of a claim, so it is done ten times a second."""
        moment, modified = time.monotonic(), _modified(queue.waiting)
        known = self._listed
        if known is not None and moment < known.until and modified == known.modified:
            return known.names, False
        names = waiting_shards(queue)
        for gone in self._shards_with_some.difference(names):
            self._shards_with_some.remove(gone)
            self._seen.pop(gone, None)
        # A change within one tick of the clock leaves the same time. Where the file server's clock
        # is another, a requeued ticket may be overtaken for a moment; none is missed.
        is_usable = modified is not None and time.time_ns() - modified > _TICK
        self._listed = _Listing(names, modified, moment + _RELIST) if is_usable else None
        return names, True

    def _look_into(self, shard: str, path: Path, tidy: bool) -> Iterator[Entry]:
        # Before it is listed: a change in between then shows as a newer time.
        moment, modified = time.monotonic(), _modified(path)
        has_others = False
        for entry in shard_entries(path, self._jobs):
            yield entry
            has_others |= entry.job not in self._jobs
        if shard not in self._shards_with_some:
            if tidy:
                with contextlib.suppress(OSError):
                    path.rmdir()
        elif modified is not None and not has_others:
            seen = self._seen.get(shard)
            first = seen.first if seen is not None and seen.modified == modified else moment
            self._seen[shard] = _Seen(modified, first, moment)

    def _has_nothing_new(self, shard: str, path: str) -> bool:
        seen = self._seen.get(shard)
        return (
            seen is not None
            and seen.last - seen.first >= self._settings.settling
            and time.monotonic() - seen.last < self._settings.trust
            and _modified(path) == seen.modified
        )


def _modified(directory: Path | str) -> int | None:
    try:
        return answered(partial(os.stat, directory)).st_mtime_ns
    except FileNotFoundError:
        return None


# Job numbers behind that of the first ticket among which a worker looks for its own.
_FARTHEST = 1000
# Tickets that are opened for one claim to find them. The first one looks farther: what a worker
# begins with decides whether it still has the time for what it was asked for.
_MOST_OPENED = 64
# Tickets that a worker takes before the first one of the queue, and seconds for which it does.
_MOST_BEFORE = 32
_LONGEST_BEFORE = 600.0


class PreferredTickets:
    """Looks for one worker's own tickets, outside the lock, and opens each of the others once."""

    def __init__(
        self, is_first: Callable[[Ticket], bool], settings: ClaimSettings = _DEFAULTS
    ) -> None:
        self._is_first = is_first
        self._others = SkippedTickets(settings)
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
        skipped: SkippedTickets,
        may_have: Callable[[Ticket], bool],
    ) -> list[Entry]:
        """Up to `limit` of them, in the order of the queue, but those that are skipped. One that
        cannot be read is left to its turn."""
        found: list[Entry] = []
        opened, most = 0, _MOST_OPENED if self._has_looked else _FARTHEST
        self._has_looked = True
        for entry in self._others.entries(queue, head.path.parent.name):
            if len(found) == limit or opened == most or entry.job >= head.job + _FARTHEST:
                break
            if entry.job < head.job:
                continue
            if entry in skipped:
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
