"""The progress of a run: how much is done, the time left, and when to say so."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

_SOONEST = 5.0  # seconds between two lines, and before the first
_LATEST = 60.0
_SHARE = 20  # a line for each twentieth of the elapsed time
_STEPS = 3  # fewer steps tell nothing about the others


class Progress:
    """Counts steps. `clock` gives seconds, and all results are in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = self._said = clock()
        self._seen: deque[tuple[float, int]] = deque([(self._began, 0)])
        self._total = 0

    def begin(self) -> None:
        """The first step has started: the time before does not count."""
        self._began = self._said = self._clock()
        self._seen = deque([(self._began, 0)])

    def note(self, done: int, total: int) -> None:
        """Note how many of all steps are done."""
        self._total = total
        self._seen.append((self._clock(), done))
        # The second half predicts the rest best: the first may have been builds.
        while len(self._seen) > 2 and self._seen[1][1] <= done / 2:
            self._seen.popleft()

    def said(self) -> None:
        """The progress was just told."""
        self._said = self._clock()

    def due_in(self) -> float:
        """Seconds until it should be told again; 0 or less: now."""
        now = self._clock()
        pause = min(_LATEST, max(_SOONEST, (now - self._began) / _SHARE))
        return self._said + pause - now

    def left(self, failed: int = 0) -> float | None:
        """How long the rest is likely to take, without failed steps; None where that is not known
        yet."""
        (began, before), (_, done) = self._seen[0], self._seen[-1]
        took = self._clock() - began
        todo = self._total - done - failed
        if todo <= 0 or done - before < _STEPS or took < _SOONEST:
            return None
        return todo * took / (done - before)
