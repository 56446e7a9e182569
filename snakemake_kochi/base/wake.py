"""Wake-ups on one computer: who waits listens on a FIFO, which others write to.

Nothing depends on them: who is on another node, or has a filesystem without FIFOs, looks now and
then.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from contextlib import suppress

from snakemake_kochi.base import clock

_LONG = 3600.0  # seconds


class Wake:
    """A FIFO of this process, to be closed."""

    def __init__(self, path: str) -> None:
        """Make it, if the filesystem can; `is_silent`: nobody can wake this process."""
        self._path = path
        self._number: int | None = None
        with suppress(OSError):
            with suppress(FileExistsError):
                os.mkfifo(path, 0o600)
            # Also open for writing: it is never at its end when the last writer has closed it.
            self._number = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    @property
    def is_silent(self) -> bool:
        return self._number is None

    def wait(self, seconds: float, *others: int) -> bool:
        """Sleep until somebody writes, or one of these other descriptors is readable.

        Returns whether somebody wrote.
        """
        poll = select.poll()
        for number in (*others, *([] if self._number is None else [self._number])):
            poll.register(number, select.POLLIN)
        poll.poll(1000.0 * seconds)
        is_woken = False
        with suppress(BlockingIOError):
            while self._number is not None and os.read(self._number, 4096):
                is_woken = True
        return is_woken

    def close(self) -> None:
        if self._number is not None:
            with suppress(OSError):
                os.unlink(self._path)
            os.close(self._number)
            self._number = None


class Fifos:
    """The operating system's."""

    def listen(self, path: str, woken: Callable[[], None]) -> None:
        fifo = Wake(path)

        def wait() -> None:
            while not fifo.is_silent:
                if fifo.wait(_LONG):
                    woken()

        clock.spawn(wait)

    def wake(self, path: str) -> None:
        with suppress(OSError):
            number = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(number, b"!")  # a full one wakes, too
            finally:
                os.close(number)


fifos = Fifos()  # the simulator's, in tests


def listen(path: str, woken: Callable[[], None]) -> None:
    """Have a thread call `woken` whenever somebody wakes this FIFO, until the process ends."""
    fifos.listen(path, woken)


def wake(path: str) -> None:
    """Wake who listens on this FIFO, if it is on this computer."""
    fifos.wake(path)
