"""The events of a worker's loop, with its signals, and kernel services for parents of jobs."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from snakemake_kochi.processes import ProcessIdentity, child_pids
from snakemake_kochi.queue.wakeup import WakeUp
from snakemake_kochi.worker.runners.interface import Watched

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
# A process that forwards a signal adds this to its number.
_FORWARDED = 0x80


class Wake(NamedTuple):
    """A pipe that wakes a loop; it carries signal numbers, one byte each."""

    read: int
    write: int


def make_wake() -> Wake:
    return Wake(*os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC))


def forward_stop(wake: Wake, number: int) -> None:
    """Forward a request to stop to the process whose `Signals` have this `wake`."""
    with contextlib.suppress(BlockingIOError):  # the pipe is full of requests
        os.write(wake.write, bytes([number | _FORWARDED]))


class Signals:
    """While entered, signals only wake the loop; `stops` counts the requests to stop.

    Schedulers can be told to send SIGUSR1 before the time is over. They may send it much too early:
    it is no request if `ends_by_itself` says that the worker's own clock is better. Requests come
    directly or are forwarded through `wake`. Enter it in the main thread.
    """

    def __init__(self, wake: Wake, ends_by_itself: Callable[[], bool]) -> None:
        self._ends_by_itself = ends_by_itself
        self._direct = 0
        self._forwarded = 0
        self.first_stop: str | None = None  # the signal's name
        self._previous: dict[int, Any] = {}
        self._wake = wake

    def __enter__(self) -> Signals:
        for number in (*STOP_SIGNALS, signal.SIGCHLD):
            # Under nohup the worker ignores a closed terminal.
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue
            handler = self._ignore if number == signal.SIGCHLD else self._stop
            self._previous[number] = signal.signal(number, handler)
        # Without it, a signal that arrives just before poll(2) would wake the loop only after the
        # time-out.
        self._previous_wake = signal.set_wakeup_fd(self._wake.write, warn_on_full_buffer=False)
        # The supervisor has blocked these signals until now.
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
        # A terminal, timeout(1) and schedulers signal all processes at once. Such a signal is one
        # request, although it arrives both directly and forwarded.
        return max(self._direct, self._forwarded)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._direct += self._is_request(number)

    def _is_request(self, number: int) -> bool:
        if number == signal.SIGUSR1 and self._ends_by_itself():
            return False
        self.first_stop = self.first_stop or signal.Signals(number).name
        return True

    def _ignore(self, number: int, frame: FrameType | None) -> None:
        """Do nothing: SIGCHLD needs a handler.

        Children of a process that ignores SIGCHLD leave no exit status.
        """

    def fileno(self) -> int:
        return self._wake.read

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while read := os.read(self._wake.read, 4096):
                for number in (byte - _FORWARDED for byte in read if byte >= _FORWARDED):
                    self._forwarded += self._is_request(number)


class Events:
    """While entered, `wait` sleeps until an event.

    Events are a signal, a notification through the wake-up FIFO, the end of the process `parent`,
    and an event of one of the `watched`. `ends_by_itself`: see `Signals`.
    """

    def __init__(
        self,
        wake: Wake,
        fifo: Path,
        parent: ProcessIdentity | None,
        watched: Sequence[Watched],
        ends_by_itself: Callable[[], bool],
    ) -> None:
        self.signals = Signals(wake, ends_by_itself)
        self._fifo = fifo
        self._parent = parent
        self._parent_end: int | None = None  # becomes readable when the parent ends
        self._watched = watched
        self._poll = select.poll()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Events:
        self._stack.enter_context(self.signals)
        self._wakeup = WakeUp(self._fifo)
        self._stack.callback(self._wakeup.close)
        self._poll.register(self.signals, select.POLLIN)
        self._poll.register(self._wakeup, select.POLLIN)
        for watched in self._watched:
            self._poll.register(watched, select.POLLIN)
        if self._parent is not None:
            self._parent_end = _open_process(self._parent.pid)
        if self._parent_end is not None:
            self._stack.callback(os.close, self._parent_end)
            self._poll.register(self._parent_end, select.POLLIN)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def is_silent(self) -> bool:
        """Whether no notification can arrive; see `WakeUp`."""
        return self._wakeup.is_silent

    def wait(self, seconds: float) -> bool:
        """Sleep for `seconds` at most; return whether a notification arrived."""
        for descriptor, _ in self._poll.poll(seconds * 1000):
            if descriptor == self._parent_end:
                # The descriptor stays readable: the loop would never sleep again while it cannot
                # publish the end of a job, for example.
                self._poll.unregister(descriptor)
        self.signals.drain()
        for watched in self._watched:
            watched.attend()
        return self._wakeup.drain()


def reap_orphans(jobs: Collection[int], helpers: Collection[int]) -> list[ProcessIdentity]:
    """The living orphans among the children of this process; reaps the dead ones.

    An orphan is neither the main process of one of the `jobs`, nor a helper, nor a process in the
    session of a helper: there processes wait to become a job.
    """
    living = []
    for pid in set(child_pids()).difference(jobs, helpers):
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            is_alive = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG) is None
            if is_alive and os.getsid(pid) not in helpers:
                living.append(ProcessIdentity.of(pid))
    return [process for process in living if process is not None]


def _open_process(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends.

    None if the process is gone, and before Linux 5.3.
    """
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None
