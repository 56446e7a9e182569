"""The waiting tickets that one worker skips, and the tickets postponed after a fault.

A worker skips tickets that it can never run and, for a while, tickets in front of those for which
it was requested.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import answered, list_names
from snakemake_kochi.paths import QueuePaths
from snakemake_kochi.queue.entries import (
    Entry,
    directory_entries,
    remove_empty,
    waiting_directories,
)
from snakemake_kochi.queue.job_set import JobSet
from snakemake_kochi.queue.ticket import Ticket, read_ticket
from snakemake_kochi.queue.waiting import in_order, is_of_one_submission

_log = logging.getLogger(__name__)

_RELIST = 0.1  # seconds
_TICK = 20_000_000  # nanoseconds


@dataclass(frozen=True)
class _Seen:
    """A directory that had only skipped tickets.

    `first` and `last` are the times (monotonic seconds) of the first and the last look that found
    it so with the modification time `modified` (None if that was not asked for).
    """

    modified: int | None
    first: float
    last: float


@dataclass(frozen=True)
class _Listing:
    """The directories of waiting tickets, and the modification time of the one above.

    Until the time `until` (monotonic seconds) they are not listed again.
    """

    names: list[str]
    modified: int | None
    until: float


@dataclass(frozen=True)
class ClaimSettings:
    """How a worker looks for tickets.

    `looks_per_lock` is how many tickets it opens, in addition to those that it takes, while others
    wait for the lock. `settling` is the number of seconds for which the modification time of a
    directory must have stood still before it is relied upon. Some filesystems have times in whole
    seconds, and two changes within one second leave the same time. `trust` is the number of seconds
    for which it is then relied upon, because a network filesystem's attributes may be a minute old.
    `longest_before` is the number of seconds for which a worker takes its own tickets before the
    first one of the queue.
    """

    looks_per_lock: int = 256
    settling: float = 3.0
    trust: float = 60.0
    longest_before: float = 600.0


_DEFAULTS = ClaimSettings()


class SkippedTickets:
    """The skipped tickets of a queue; `entries` lists the other waiting tickets.

    Each skipped ticket was opened once. A directory that has only skipped tickets is not listed
    again until it changes. So a hundred thousand foreign tickets in front of a worker's own cost it
    nothing if they are those of large submissions, and otherwise one stat(2) for every 256.
    """

    def __init__(self, settings: ClaimSettings = _DEFAULTS) -> None:
        self._settings = settings
        self._jobs = JobSet()
        self._directories_with_some: set[str] = set()
        self._seen: dict[str, _Seen] = {}
        self._listed: _Listing | None = None

    def add(self, entry: Entry) -> None:
        """Skip a ticket from now on."""
        self._jobs.add(entry.job)
        self._directories_with_some.add(entry.path.parent.name)

    @property
    def is_empty(self) -> bool:
        """Whether no skipped ticket was seen by the last look."""
        return not self._directories_with_some

    def __contains__(self, entry: Entry) -> bool:
        return entry.job in self._jobs

    def entries(
        self, queue: QueuePaths, first_shard: str = "", tidy: bool = False
    ) -> Iterator[Entry]:
        """The waiting tickets that are not skipped, in their order, from a shard on.

        With `tidy`, all empty directories are removed. Use it only with the queue's lock held.
        """
        names, is_fresh = self._directories(queue)
        yield from self._look_through(queue, names, first_shard, tidy)
        if not is_fresh:
            known = set(names)
            self._listed = None
            names, _ = self._directories(queue)
            new = [name for name in names if name not in known]
            yield from self._look_through(queue, new, first_shard, tidy)

    def _look_through(
        self, queue: QueuePaths, names: list[str], first_shard: str, tidy: bool
    ) -> Iterator[Entry]:
        waiting = str(queue.waiting)
        # The path is a string: with a hundred thousand foreign tickets, only this check is repeated
        # each time.
        changed = (
            name
            for name in names
            if name >= first_shard and not self._has_nothing_new(name, f"{waiting}/{name}")
        )
        return in_order(changed, partial(self._look_into, queue.waiting, tidy))

    def _directories(self, queue: QueuePaths) -> tuple[list[str], bool]:
        """The names of the directories, and whether they were listed just now.

        With a hundred thousand tickets the listing takes as long as the rest of a claim, so it is
        done ten times a second.
        """
        moment, modified = time.monotonic(), _modified(queue.waiting)
        known = self._listed
        if known is not None and moment < known.until and modified == known.modified:
            return known.names, False
        names = waiting_directories(queue)
        for gone in self._directories_with_some.difference(names):
            self._directories_with_some.remove(gone)
            self._seen.pop(gone, None)
        # A change within one tick of the clock leaves the same time. If the file server's clock
        # differs, a requeued ticket may be overtaken for a moment; none is missed.
        is_usable = modified is not None and time.time_ns() - modified > _TICK
        self._listed = _Listing(names, modified, moment + _RELIST) if is_usable else None
        return names, True

    def _look_into(self, waiting: Path, tidy: bool, name: str) -> Iterator[Entry]:
        path = waiting / name
        # The time is read before the listing, so that a change in between shows as a newer time.
        moment = time.monotonic()
        modified = None if is_of_one_submission(name) else _modified(path)
        names = list_names(path)
        has_others = False
        skipped = _SkippedIn(name, self._jobs, self._directories_with_some)
        for entry in directory_entries(path, skipped, names):
            yield entry
            has_others |= entry.job not in self._jobs
        if not names or name not in self._directories_with_some:
            # To the directory of one submission nothing is ever added, so that needs no lock. While
            # nothing waits, a look would otherwise find what a killed process has left each time.
            if tidy or (not names and is_of_one_submission(name)):
                remove_empty([path])
        elif not has_others:
            seen = self._seen.get(name)
            first = seen.first if seen is not None and seen.modified == modified else moment
            self._seen[name] = _Seen(modified, first, moment)

    def _has_nothing_new(self, name: str, path: str) -> bool:
        seen = self._seen.get(name)
        if seen is None or time.monotonic() - seen.last >= self._settings.trust:
            return False
        if is_of_one_submission(name):
            # A second listing shows what the first one may have missed while others claimed.
            return seen.last > seen.first
        return (
            seen.modified is not None
            and seen.last - seen.first >= self._settings.settling
            and _modified(path) == seen.modified
        )


@dataclass(frozen=True)
class _SkippedIn:
    """The jobs of skipped tickets, for a look into one directory, which is noted if it has one.

    A ticket may have come there from the directory in which it was seen: as a claim that went back,
    it is in that of its shard.
    """

    name: str
    jobs: JobSet
    directories_with_some: set[str]

    def __contains__(self, job: object) -> bool:
        if job not in self.jobs:
            return False
        self.directories_with_some.add(self.name)
        return True


def _modified(directory: Path | str) -> int | None:
    try:
        return answered(partial(os.stat, directory)).st_mtime_ns
    except FileNotFoundError:
        return None


# How far behind the first ticket, in job numbers, a worker looks for its own tickets.
_FARTHEST = 1000
# The most tickets that are opened in one claim to find them. The first claim looks farther: the
# first jobs of a worker decide whether it has enough time left for the tickets for which it was
# requested.
_MOST_OPENED = 64
# The most tickets that a worker takes before the first one of the queue.
_MOST_BEFORE = 32


class PreferredTickets:
    """Finds one worker's own tickets, without the lock; opens each other ticket once."""

    def __init__(
        self, is_first: Callable[[Ticket], bool], settings: ClaimSettings = _DEFAULTS
    ) -> None:
        self._is_first = is_first
        self._settings = settings
        self._others = SkippedTickets(settings)
        self._has_looked = False
        self._head: int | None = None
        self._taken_before = 0
        self._head_since = 0.0

    def may_overtake(self, head: Entry) -> bool:
        """Whether other tickets may still be taken before the first ticket of the queue.

        Without a limit, a ticket that needs a whole worker would wait for ever while others keep
        coming.
        """
        if head.job != self._head:
            self._head, self._taken_before, self._head_since = head.job, 0, time.monotonic()
        has_time = time.monotonic() - self._head_since < self._settings.longest_before
        return has_time and self._taken_before < _MOST_BEFORE

    def taken(self, jobs: Sequence[int]) -> None:
        """Note that these tickets were taken, whatever was in front of them."""
        self._taken_before += sum(self._head is not None and job > self._head for job in jobs)

    def find(
        self,
        queue: QueuePaths,
        head: Entry,
        limit: int,
        skipped: SkippedTickets,
        may_have: Callable[[Ticket], bool],
    ) -> list[Entry]:
        """Up to `limit` of the worker's own tickets, in the order of the queue.

        Skipped tickets are left out. A ticket that cannot be read is left until its turn comes.
        """
        found: list[Entry] = []
        opened, most = 0, _MOST_OPENED if self._has_looked else _FARTHEST
        self._has_looked = True
        for entry in self._others.entries(queue, queue.shard_name(head.job)):
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


class Postponed:
    """Tickets that could not be processed, by their files, with the time of the next try.

    Each look meets a full disk or an unreadable file again. That must neither fill the log nor
    delay the other tickets.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: dict[Path, float] = {}

    def __contains__(self, path: Path) -> bool:
        return path in self._due

    def is_due(self, path: Path) -> bool:
        """Whether the ticket may be tried, for the first time or again."""
        return self._due.get(path, self._clock()) <= self._clock()

    def postpone(self, path: Path, seconds: float, why: str) -> None:
        """Do not try the ticket for `seconds`. The reason is logged the first time."""
        if path not in self._due:
            _log.warning("%s", why)
        self._due[path] = self._clock() + seconds

    def forget(self, path: Path) -> None:
        """Forget a ticket that was processed or no longer exists."""
        self._due.pop(path, None)
