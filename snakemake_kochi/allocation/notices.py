"""What a person is told of allocations, and not again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from humanfriendly.text import pluralize

from snakemake_kochi.schedulers.interface import Allocation

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

    def notices(self, allocations: Iterable[Allocation]) -> Iterator[str]:
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
