"""Calls of a slow filesystem that are made at the same time, because each of them mostly waits.

`Together` makes some at once, and returns when all have been answered. `Background` makes them
while its owner goes on.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Answer = TypeVar("Answer")
Key = TypeVar("Key")

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

    @property
    def is_slow(self) -> bool:
        """Whether the last calls were slow."""
        return self.took >= self._slow

    def all(self, calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
        """As a call of the object, but the first of the exceptions is raised at the end."""
        answers: list[Answer] = []
        for outcome in self(calls):
            if isinstance(outcome, Exception):
                raise outcome
            answers.append(outcome)
        return answers


class Background(Generic[Key, Answer]):
    """Makes calls in threads, a few at a time, in the order in which they were begun.

    A thread ends when no call is left. Before the process forks, it must call `settle`. A loop can
    poll the object: it is readable after the end of a call, until `attend`.
    """

    def __init__(self) -> None:
        # It stays open: a thread may end later than its owner.
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._threads = 0
        self._left: deque[tuple[Key, Callable[[], Answer]]] = deque()
        self._done: deque[tuple[Key, Answer | Exception]] = deque()

    def begin(self, key: Key, call: Callable[[], Answer]) -> None:
        """Begin a call; `take` returns its outcome with this key."""
        self._left.append((key, call))
        with self._lock:
            if self._threads == _MOST_THREADS:
                return
            self._threads += 1
        try:
            _BackgroundThread(target=self._work, daemon=True).start()
        except RuntimeError:  # the user may have no more threads
            self._work()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._left:
                    self._threads -= 1
                    return
                key, call = self._left.popleft()
            self._done.append((key, outcome_of(call)))
            os.eventfd_write(self._event, 1)

    def fileno(self) -> int:
        return self._event

    def attend(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)

    def wait(self) -> None:
        """Wait until `take` has something to return; a call must have been begun since the last."""
        poll = select.poll()
        poll.register(self._event, select.POLLIN)
        while not self._done:
            poll.poll()
            self.attend()

    def take(self) -> list[tuple[Key, Answer | Exception]]:
        """What the calls that have ended since the last time have returned or raised."""
        return [self._done.popleft() for _ in range(len(self._done))]


class _BackgroundThread(threading.Thread):
    """A thread of a `Background`."""


def settle() -> None:
    """Wait for all calls in the background: a fork would copy the locks that their threads hold."""
    for thread in threading.enumerate():
        if isinstance(thread, _BackgroundThread):
            thread.join()


def outcome_of(call: Callable[[], Answer]) -> Answer | Exception:
    """What a call returns or raises."""
    try:
        return call()
    except Exception as error:
        return error
