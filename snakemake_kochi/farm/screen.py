"""What a run of a list tells a person: messages, a line of progress, and the numbers at the end."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from typing import Any

from humanfriendly.text import pluralize

from snakemake_kochi.farm.state import Standing, State
from snakemake_kochi.hints import typed
from snakemake_kochi.quantities import format_duration

_PAUSE = 0.2  # seconds between two lines of progress on a terminal
_FIRST_PAUSE, _LONGEST_PAUSE = 10.0, 600.0  # elsewhere, with the pauses doubled
_WINDOW = 60.0  # seconds of which the rate is


class Screen:
    """Takes the place of a logger, too. All but results goes to standard error."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._pause = _PAUSE if self._is_terminal else _FIRST_PAUSE
        self._due = time.monotonic() + self._pause
        self._done: deque[tuple[float, int]] = deque()
        self._has_line = False

    def info(self, text: str, **_: Any) -> None:
        self.clear()
        print(typed(f"kochi: {text}"), file=sys.stderr, flush=True)

    warning = error = debug = info

    def clear(self) -> None:
        if self._has_line:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._has_line = False

    def progress(self, finished: int, failed: int, left: int) -> None:
        """`left`: those that run or wait."""
        now, done = time.monotonic(), finished + failed
        if not self._done:
            self._done.append((now, done))
        if now < self._due:
            return
        while len(self._done) > 1 and now - self._done[0][0] > _WINDOW:
            self._done.popleft()
        since, before = self._done[0]
        rate = (done - before) / (now - since) if now > since else 0.0
        self._done.append((now, done))
        text = f"{done} of {done + left} tasks"
        text += f", {failed} failed" if failed else ""
        if rate:
            rest = format_duration(math.ceil(left / rate))
            text += f", {rate:.3g} per second, {rest} left"
        if self._is_terminal:
            print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)
            self._has_line = True
        else:
            print(f"kochi: {text}", file=sys.stderr, flush=True)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._due = now + self._pause


def numbers(standing: Standing) -> dict[str, int]:
    finished, failed, left = len(standing.finished), len(standing.failed), len(standing.left)
    total = {"tasks": finished + failed + left, "finished": finished, "failed": failed}
    return {**total, "left": left, "gone": standing.gone}


def summary(state: State, standing: Standing, name: str) -> list[str]:
    """The sentences of a list at rest; `name`: what a person types for it."""
    found = numbers(standing)
    text = f"{found['finished']} of {pluralize(found['tasks'], 'task')} finished"
    for word in ("failed", "left", "gone"):
        text += f", {found[word]} {word}" if found[word] else ""
    lines = [text]
    if standing.failed:
        lines.append(
            f"Logs of failed tasks: {state.directory}/logs. "
            f"To run these again, type: kochi farm {name} --retry"
        )
    if standing.left:
        lines.append(f"To go on, type: kochi farm {name}")
    return lines
