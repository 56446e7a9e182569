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
    filesystem. The filesystem is slow if the longest call of the last time was, or if two calls one
    after the other are.
    """

    def __init__(self, slow: float = _SLOW) -> None:
        self._slow = slow
        self.took = 0.0  # the longest of the last calls, in seconds

    def __call__(self, calls: Sequence[Callable[[], Answer]]) -> list[Answer | Exception]:
        """Return in the order of the calls what each of them has returned or raised."""
        left = deque(enumerate(calls))
        done: dict[int, tuple[Answer | Exception, float]] = {}

        def make_next() -> float:
            number, call = left.popleft()
            began = time.monotonic()
            outcome = outcome_of(call)
            done[number] = outcome, time.monotonic() - began
            return done[number][1]

        def make_all() -> None:
            with contextlib.suppress(IndexError):
                while True:
                    make_next()

        took = self.took
        while left and took < self._slow:
            # A single call may have been slow by chance.
            took = min(make_next(), make_next() if left else 0.0)
        self._beside(make_all, len(left))
        if calls:
            self.took = max(took for _, took in done.values())
        return [done[number][0] for number in range(len(calls))]

    def _beside(self, work: Callable[[], None], count: int) -> None:
        """Do the work in as many threads as `count` calls can use, this one among them."""
        started: list[threading.Thread] = []
        try:
            with contextlib.suppress(RuntimeError):  # the user may have no more threads
                for _ in range(min(count, _MOST_THREADS) - 1):
                    thread = threading.Thread(target=work, daemon=True)
                    thread.start()
                    started.append(thread)
            work()
        finally:
            for thread in started:
                thread.join()

    def all(self, calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
        """As a call of the object, but the first of the exceptions is raised at the end."""
        answers: list[Answer] = []
        for outcome in self(calls):
            if isinstance(outcome, Exception):
                raise outcome
            answers.append(outcome)
        return answers


def outcome_of(call: Callable[[], Answer]) -> Answer | Exception:
    """What a call returns or raises."""
    try:
        return call()
    except Exception as error:
        return error
