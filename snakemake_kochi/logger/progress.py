"""How far a run is, how long it will take, and when it is time to say so."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

_SOONEST = 5.0  # seconds between two lines, and before the first
_LATEST = 60.0
_SHARE = 20  # a line for each twentieth of the time that has passed
_STEPS = 3  # fewer tell nothing of the others


class Progress:
    """Counts steps. `clock` gives seconds; so does all that is returned."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = self._said = clock()
        self._seen: deque[tuple[float, int]] = deque([(self._began, 0)])
        self._total = 0

    def begin(self) -> None:
        """The first step is on its way: what was before does not count."""
        self._began = self._said = self._clock()
        self._seen = deque([(self._began, 0)])

    def note(self, done: int, total: int) -> None:
        """So many of all steps are done."""
        self._total = total
        self._seen.append((self._clock(), done))
        # The second half of them tells best of those to come: the first may have been builds.
        while len(self._seen) > 2 and self._seen[1][1] <= done / 2:
            self._seen.popleft()

    def said(self) -> None:
        """How far it is was just told."""
        self._said = self._clock()

    def due_in(self) -> float:
        """After what time it is to be told again; 0 or less: now."""
        now = self._clock()
        pause = min(_LATEST, max(_SOONEST, (now - self._began) / _SHARE))
        return self._said + pause - now

    def left(self, failed: int = 0) -> float | None:
        """How long the rest is likely to take, without those that have failed; None where that
        cannot be told yet."""
        (began, before), (_, done) = self._seen[0], self._seen[-1]
        took = self._clock() - began
        todo = self._total - done - failed
        if todo <= 0 or done - before < _STEPS or took < _SOONEST:
            return None
        return todo * took / (done - before)
