"""What a person is told of allocations that wait, and pauses that grow while nobody answers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator

from humanfriendly.text import pluralize

from snakemake_kochi.allocation.scheduler import Allocation

# Seconds for which a reason that was told is not told again: that of an allocation changes with
# each look of the scheduler's between a few, Priority and Resources for one.
_QUIET = 1800.0
# What schedulers say before they have looked for a reason.
_NO_REASON = frozenset({"", "None", "(null)"})


class Reasons:
    """Remembers which reasons were told."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: dict[str, float] = {}

    def news(self, allocations: Iterable[Allocation]) -> Iterator[str]:
        """One line for each reason, in the scheduler's own words, for which some of these wait and
        that was not told lately, with what to do about it, if anything."""
        waiting: dict[str, list[Allocation]] = {}
        for allocation in allocations:
            if allocation.state == "pending" and allocation.reason not in _NO_REASON:
                waiting.setdefault(allocation.reason, []).append(allocation)
        now = self._clock()
        for reason, those in waiting.items():
            if now - self._told.get(reason, -_QUIET) < _QUIET:
                continue
            self._told[reason] = now
            advice = those[0].advice
            yield f"{_name(those)}: {reason}{f'. {advice}' if advice else ''}"


def _name(those: list[Allocation]) -> str:
    if len(those) == 1:
        return f"Allocation {those[0].id} waits"
    return f"{pluralize(len(those), 'allocation')} wait ({those[0].id} to {those[-1].id})"


class Pauses:
    """Seconds until somebody who does not answer is asked again: twice as many each time, between
    two limits; with jitter, so that many runs do not ask at the same time."""

    def __init__(self, first: float = 10.0, most: float = 120.0) -> None:
        self._first = first
        self._most = most
        self._failures = 0

    def next(self) -> float:
        """After one more question without an answer."""
        pause = min(self._most, self._first * 2.0 ** min(self._failures, 30))
        self._failures += 1
        return pause * random.uniform(0.75, 1.0)

    def answered(self) -> None:
        """Begin with the least again."""
        self._failures = 0
