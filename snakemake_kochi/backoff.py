"""Back-off: when to try or to look again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable


def wait_until(
    condition: Callable[[], bool], patience: float, pause: float, longest: float | None = None
) -> bool:
    """Call the condition until it is true; return False if it is not within `patience` seconds.

    The calls are `pause` seconds apart, which double up to `longest` if that is given.
    """
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, longest or pause)
    return True


class GrowingPause:
    """A pause between two looks, which grows by a factor while nothing happens.

    `seconds`: its present length, from `first` to `longest`.
    """

    def __init__(self, first: float, longest: float, factor: float = 1.25) -> None:
        self._first = first
        self._longest = longest
        self._factor = factor
        self.seconds = first

    def grow(self, longest: float | None = None) -> None:
        """Note a look that found nothing; `longest`: another limit for the pause after it."""
        limit = self._longest if longest is None else longest
        self.seconds = min(self._factor * self.seconds, limit)

    def reset(self) -> None:
        """Note that something has happened."""
        self.seconds = self._first


class Backoff:
    """Pauses that double with each failure in a row, between two limits in seconds.

    They have jitter: many runs whose server was away must not all return to it at the same moment.
    """

    def __init__(
        self,
        first: float = 10.0,
        longest: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._first = first
        self._longest = longest
        self._clock = clock
        self._failures = 0
        self._next = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is time for the first or the next try."""
        return self._clock() >= self._next

    def failed(self) -> float:
        """Note a failure; return the seconds until the next try is due."""
        pause = min(self._longest, self._first * 2.0 ** min(self._failures, 30))
        self._failures += 1
        return self.hold(pause * random.uniform(0.75, 1.0))

    def hold(self, seconds: float) -> float:
        """Let no try be due before so many seconds have passed; return the seconds."""
        self._next = self._clock() + seconds
        return seconds

    def worked(self) -> None:
        """Note a success: the next failure begins again with the shortest pause."""
        self._failures = 0
