"""Signals as events of a poll loop, and what the kernel does for a parent of jobs."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Collection
from types import FrameType
from typing import Any, NamedTuple

from snakemake_kochi.queue.processes import ProcessIdentity, child_pids

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_PR_SET_PDEATHSIG = 1
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
# Added to a signal's number by a process that passes on what it got itself.
_FORWARDED = 0x80


class Wake(NamedTuple):
    """A pipe that wakes a loop: numbers of signals, a byte each."""

    read: int
    write: int


def make_wake() -> Wake:
    return Wake(*os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC))


def forward_stop(wake: Wake, number: int) -> None:
    """Pass a request to stop on to the process whose Signals have this `wake`."""
    with contextlib.suppress(BlockingIOError):  # full of requests
        os.write(wake.write, bytes([number | _FORWARDED]))


class Signals:
    """While entered, signals only wake the loop: `stops` counts the requests to stop.

    SIGUSR1 is what schedulers can be told to send before the time is up. Requests come directly or
    are forwarded through `wake`. To be entered in the main thread.
    """

    def __init__(self, wake: Wake) -> None:
        self._direct = 0
        self._forwarded = 0
        self.first_stop: str | None = None  # its name
        self._previous: dict[int, Any] = {}
        self._wake = wake

    def __enter__(self) -> Signals:
        for number in (*STOP_SIGNALS, signal.SIGCHLD):
            # Under nohup a closed terminal is to change nothing.
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue
            handler = self._ignore if number == signal.SIGCHLD else self._stop
            self._previous[number] = signal.signal(number, handler)
        # Without it a signal that comes just before poll(2) would be seen after its time-out.
        self._previous_wake = signal.set_wakeup_fd(self._wake.write, warn_on_full_buffer=False)
        # The supervisor had them held back until now.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._previous)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._previous_wake)
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for descriptor in self._wake:
            os.close(descriptor)

    @property
    def stops(self) -> int:
        # A terminal, timeout(1) and schedulers signal all processes at once. That is one request,
        # though it comes both ways, and must not be taken for a second one.
        return max(self._direct, self._forwarded)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._direct += 1
        self.first_stop = self.first_stop or signal.Signals(number).name

    def _ignore(self, number: int, frame: FrameType | None) -> None:
        """A handler all the same: children of a process that ignores SIGCHLD leave no status."""

    def fileno(self) -> int:
        return self._wake.read

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while read := os.read(self._wake.read, 4096):
                for number in (byte - _FORWARDED for byte in read if byte >= _FORWARDED):
                    self._forwarded += 1
                    self.first_stop = self.first_stop or signal.Signals(number).name


def adopt_orphans() -> None:
    """Become the parent of what jobs leave behind, so that it is seen and can be ended."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies; one that is dead already does not
    count."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def reap_orphans(jobs: Collection[int], helpers: Collection[int]) -> list[ProcessIdentity]:
    """The living children of this process that are neither the main process of one of the `jobs`,
    nor one of the `helpers`, nor in the session of one: those wait there to be a job. The dead are
    let go."""
    living = []
    for pid in set(child_pids()).difference(jobs, helpers):
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            is_alive = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG) is None
            if is_alive and os.getsid(pid) not in helpers:
                living.append(ProcessIdentity.of(pid))
    return [process for process in living if process is not None]


def open_process(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None where there is no such
    thing (before Linux 5.3) or no such process."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None
