"""Waiting tickets that a worker need not look at again, because they can never be its own."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from snakemake_kochi.files import answered
from snakemake_kochi.paths import QueuePaths
from snakemake_kochi.queue.entries import Entry, shard_entries, waiting_shards
from snakemake_kochi.queue.job_set import JobSet

# Seconds during which a directory's time must have stood still before it is relied upon: on some
# filesystems it has whole seconds, and two changes within one leave the same time.
_SETTLING = 3.0
# Seconds for which it is relied upon: a network filesystem's attributes may be a minute old.
_TRUST = 60.0
_RELIST = 0.1  # seconds
_TICK = 20_000_000  # nanoseconds


@dataclass(frozen=True)
class _Seen:
    """A shard in which nothing but overlooked tickets was found, and when (monotonic seconds) it
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


class Overlooked:
    """What is known of a queue's waiting tickets: `entries` lists the others.

    Each overlooked ticket was opened once. A shard that has nothing else is not listed again until
    it changes: a hundred thousand foreign tickets in front of a worker's own cost it a stat(2) for
    each 256.
    """

    def __init__(self) -> None:
        self._jobs = JobSet()
        self._shards_with_some: set[str] = set()
        self._seen: dict[str, _Seen] = {}
        self._listed: _Listing | None = None

    def add(self, entry: Entry) -> None:
        """Overlook a ticket from now on."""
        self._jobs.add(entry.job)
        self._shards_with_some.add(entry.path.parent.name)

    def __contains__(self, entry: Entry) -> bool:
        return entry.job in self._jobs

    def entries(
        self, queue: QueuePaths, first_shard: str = "", tidy: bool = False
    ) -> Iterator[Entry]:
        """The waiting tickets that are not overlooked, in their order, from a shard on.

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
            and seen.last - seen.first >= _SETTLING
            and time.monotonic() - seen.last < _TRUST
            and _modified(path) == seen.modified
        )


def _modified(directory: Path | str) -> int | None:
    try:
        return answered(partial(os.stat, directory)).st_mtime_ns
    except FileNotFoundError:
        return None
