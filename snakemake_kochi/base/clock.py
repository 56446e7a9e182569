"""Time, and threads that wait, for `tickets`, the loop of a worker and its jobs.

The simulator replaces the functions, in tests: call them as `clock.now()`, never keep one.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Protocol

# Seconds between two signs of life; in every process the same. Tests shorten it.
HEARTBEAT = float(os.environ.get("KOCHI_HEARTBEAT") or 5.0)


class Mailbox(Protocol):
    """What one thread waits for, and others put there."""

    def put(self, item: Any) -> None: ...

    def get(self, seconds: float) -> Any:
        """The next item; None if there is none in so many seconds."""


class _Queue:
    def __init__(self) -> None:
        self._items: SimpleQueue[Any] = SimpleQueue()
        self.put = self._items.put

    def get(self, seconds: float) -> Any:
        try:
            if seconds <= 0:
                return self._items.get(False)
            return self._items.get(True, None if seconds == math.inf else seconds)
        except Empty:
            return None


def now() -> float:
    """Seconds since the computer started, those included in which it slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def mailbox() -> Mailbox:
    return _Queue()


_idle: list[SimpleQueue[Callable[[], Any]]] = []  # of threads, which the next call uses again
os.register_at_fork(after_in_child=_idle.clear)


def spawn(function: Callable[[], Any]) -> None:
    """Call it in a thread that does not keep the process alive."""
    try:
        _idle.pop().put(function)
    except IndexError:
        threading.Thread(target=_live, args=(function,), daemon=True).start()


def _live(function: Callable[[], Any]) -> None:
    functions: SimpleQueue[Callable[[], Any]] = SimpleQueue()
    while True:
        function()
        del function  # and what it holds
        _idle.append(functions)
        function = functions.get()
