"""Signals as events of a poll loop, and what the kernel does for a parent of jobs."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from types import FrameType
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


class Signals:
    """While entered, signals only wake the loop: `stops` counts the requests to stop.

    SIGUSR1 is what schedulers can be told to send before the time is up. To be entered in the main
    thread.
    """

    def __init__(self) -> None:
        self.stops = 0
        self._previous: dict[int, Any] = {}
        self._awake, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> Signals:
        for number in (*_STOP, signal.SIGCHLD):
            # Under nohup a closed terminal is to change nothing.
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue
            handler = self._ignore if number == signal.SIGCHLD else self._stop
            self._previous[number] = signal.signal(number, handler)
        # Without it a signal that comes just before poll(2) would be seen after its time-out.
        self._previous_wake = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._previous_wake)
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        os.close(self._awake)
        os.close(self._wake)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stops += 1

    def _ignore(self, number: int, frame: FrameType | None) -> None:
        """A handler all the same: children of a process that ignores SIGCHLD leave no status."""

    def fileno(self) -> int:
        return self._awake

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._awake, 4096):
                pass


def adopt_orphans() -> None:
    """Become the parent of what jobs leave behind, so that it is seen and can be ended."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def open_process(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None where there is no such
    thing (before Linux 5.3) or no such process."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None
