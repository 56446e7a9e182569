"""The directories of waiting tickets, by their names, and the order of the tickets in them.

`<shard>-<first>-<last>` has the tickets of one submission, which came by one rename; no ticket is
ever added to it, so it needs no second look. `<shard>` has those that came one by one: requeued
ones, and the few of a small submission. The numbers in a name tell which tickets a directory can
have, so that a search for a job lists two directories, however many there are.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from snakemake_kochi.paths import SHARD

_NAME = re.compile(r"(\d+)(?:-(\d+)-(\d+))?")


class _Numbered(Protocol):
    @property
    def job(self) -> int: ...


_Entry = TypeVar("_Entry", bound=_Numbered)


@dataclass(frozen=True)
class Span:
    """The numbers of the jobs whose tickets a directory may have."""

    first: int
    last: int

    @property
    def most(self) -> int:
        """How many tickets that are at most."""
        return self.last - self.first + 1

    def has_some(self, jobs: Sequence[int]) -> bool:
        """Whether one of these jobs, which are sorted, may be in the directory."""
        at = bisect.bisect_left(jobs, self.first)
        return at < len(jobs) and jobs[at] <= self.last


def is_of_one_submission(name: str) -> bool:
    """Whether the directory has the tickets of one submission, to which none is added."""
    return "-" in name


def span_of(name: str) -> Span | None:
    """The jobs of a directory; None for what is no directory of tickets."""
    if (match := _NAME.fullmatch(name)) is None:
        return None
    if match[2] is not None:
        return Span(int(match[2]), int(match[3]))
    first = int(match[1]) * SHARD
    return Span(first, first + SHARD - 1)


def in_order(
    names: Iterable[str], look_into: Callable[[str], Iterable[_Entry]]
) -> Iterator[_Entry]:
    """The entries of sorted directories, by job; each is looked into when its turn comes.

    `look_into` returns the entries of one directory by job. The next one of them is asked for only
    when the one before has been dealt with.
    """
    found = ((name, span) for name in names if (span := span_of(name)) is not None)
    return _merged(((span.first, name) for name, span in found), look_into, lambda job: job)


def in_reverse_order(
    names: Iterable[str], look_into: Callable[[str], Iterable[_Entry]]
) -> Iterator[_Entry]:
    """As `in_order`, from the last job to the first, for directories in any order."""
    found = ((-span.last, name) for name in names if (span := span_of(name)) is not None)
    return _merged(sorted(found), look_into, lambda job: -job)


def _merged(
    directories: Iterable[tuple[int, str]],
    look_into: Callable[[str], Iterable[_Entry]],
    rank: Callable[[int], int],
) -> Iterator[_Entry]:
    """The entries by rank; each directory comes with a rank below which it has none."""
    # Its rank, a number that decides between equal ones, the next entry, and those behind it.
    heads: list[tuple[int, int, _Entry, Iterator[_Entry]]] = []
    numbers = itertools.count()

    def advance(entries: Iterator[_Entry]) -> None:
        if (entry := next(entries, None)) is not None:
            heapq.heappush(heads, (rank(entry.job), next(numbers), entry, entries))

    for lowest, name in directories:
        while heads and heads[0][0] < lowest:
            _, _, entry, entries = heapq.heappop(heads)
            yield entry
            advance(entries)
        advance(iter(look_into(name)))
    while heads:
        _, _, entry, entries = heapq.heappop(heads)
        yield entry
        advance(entries)
