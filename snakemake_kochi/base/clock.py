"""Time: the only module that asks the system for it, or waits."""

from __future__ import annotations

import time


class Clock:
    """The computer's clocks."""

    def now(self) -> float:
        """Seconds since the computer started, those included in which it slept."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


clock = Clock()  # the simulator's, in tests


def now() -> float:
    """Seconds since the computer started, those included in which it slept."""
    return clock.now()


def sleep(seconds: float) -> None:
    clock.sleep(seconds)
