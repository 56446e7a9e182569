"""Calls of a slow filesystem that are made at the same time, because each of them mostly waits."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

Answer = TypeVar("Answer")

# Seconds. Where the last calls took less, threads would cost more than they save.
_SLOW = 0.001
_MOST_THREADS = 8


class Together:
    """Makes independent calls beside each other if the filesystem is slow, else one by one.

    When it returns, no thread is left, so the process may fork. A call is a few operations of the
    filesystem, and is slow if the longest of the last calls was.
    """

    def __init__(self, slow: float = _SLOW) -> None:
        self._slow = slow
        self._took = 0.0  # the longest of the last calls, in seconds

    def __call__(self, calls: Sequence[Callable[[], Answer]]) -> list[Answer | Exception]:
        """Return in the order of the calls what each of them has returned or raised."""
        left = deque(enumerate(calls))
        done: dict[int, tuple[Answer | Exception, float]] = {}

        def work() -> None:
            with contextlib.suppress(IndexError):
                while True:
                    number, call = left.popleft()
                    began = time.monotonic()
                    outcome = _outcome(call)
                    done[number] = outcome, time.monotonic() - began

        is_slow = self._took >= self._slow
        others = min(len(calls), _MOST_THREADS) - 1 if is_slow else 0
        threads = [threading.Thread(target=work, daemon=True) for _ in range(others)]
        started: list[threading.Thread] = []
        try:
            with contextlib.suppress(RuntimeError):  # the user may have no more threads
                for thread in threads:
                    thread.start()
                    started.append(thread)
            work()
        finally:
            for thread in started:
                thread.join()
        if calls:
            self._took = max(took for _, took in done.values())
        return [done[number][0] for number in range(len(calls))]


def _outcome(call: Callable[[], Answer]) -> Answer | Exception:
    try:
        return call()
    except Exception as error:
        return error
