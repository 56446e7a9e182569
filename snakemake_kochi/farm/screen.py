"""What a run of a list tells a person on standard error: messages, and a line of progress."""

from __future__ import annotations

import math
import sys
import time
from typing import Any

from snakemake_kochi.hints import typed
from snakemake_kochi.quantities import format_duration

_PAUSE = 0.2  # seconds between two lines of progress on a terminal
_FIRST_PAUSE, _LONGEST_PAUSE = 10.0, 600.0  # elsewhere, doubled with each


class Screen:
    """Takes the place of a logger, too."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._pause = _PAUSE if self._is_terminal else _FIRST_PAUSE
        self._began, self._due = 0.0, time.monotonic() + self._pause
        self._before = 0

    def info(self, text: str, **_: Any) -> None:
        self.clear()
        print(typed(f"kochi: {text}"), file=sys.stderr, flush=True)

    warning = error = debug = info

    def clear(self) -> None:
        if self._is_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def progress(self, finished: int, failed: int, left: int) -> None:
        """`left`: those that run or wait."""
        now, done = time.monotonic(), finished + failed
        if not self._began:
            self._began, self._before = now, done
        if now < self._due:
            return
        text = f"{done} of {done + left} tasks" + (f", {failed} failed" if failed else "")
        if done > self._before:
            rate = (done - self._before) / (now - self._began)
            text += f", {rate:.3g} per second, {format_duration(math.ceil(left / rate))} left"
        if self._is_terminal:
            print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)
        else:
            self.info(text)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._due = now + self._pause
