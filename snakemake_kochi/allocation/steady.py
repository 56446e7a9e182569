"""For how long something has been so."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable


class Steady:
    """Counts from the first time that it is asked, until it is told to forget."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[Hashable, float] = {}

    def seconds(self, what: Hashable) -> float:
        """Seconds since this was asked first; 0.0 the first time."""
        moment = self._clock()
        return moment - self._since.setdefault(what, moment)

    def forget(self, what: Hashable) -> None:
        self._since.pop(what, None)
