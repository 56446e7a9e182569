"""When an idle worker looks into its queues by itself, for what no wake-up FIFO told it."""

from __future__ import annotations

import random
import time

# Wake-ups do not reach other nodes; more often is of use only while something happens.
_MOST = 5.0  # times the first interval
_GROWTH = 1.5
# A look that is slow is made less often: the filesystem has other users.
_LEAST_PER_COST = 50.0


class Looks:
    """Intervals that begin with `first` seconds, grow to five times that while nothing is found,
    and are never below fifty times what a look costs. Jittered: workers on many nodes must not
    come for the lock at the same moment."""

    def __init__(self, first: float) -> None:
        self._first = first
        self._interval = first
        self._cost = 0.0
        self._next = 0.0
        self._began = 0.0

    @property
    def deadline(self) -> float:
        """When the next look is due, in monotonic seconds."""
        return self._next

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._next

    def reset(self) -> None:
        """Something happened: look more often again."""
        self._interval = self._first

    def put_off(self) -> None:
        """A look was due, and there is no room for what it could find."""
        self._next = time.monotonic() + random.uniform(0.5, 1.0) * self._interval

    def begin(self) -> None:
        """A look begins."""
        self._began = time.monotonic()

    def end(self, found: bool) -> None:
        """A look is over; `found`: it was worth while."""
        moment = time.monotonic()
        self._cost = moment - self._began
        interval = max(self._interval, _LEAST_PER_COST * self._cost)
        self._next = moment + random.uniform(0.5, 1.0) * interval
        grown = min(self._interval * _GROWTH, _MOST * self._first)
        self._interval = self._first if found else grown
