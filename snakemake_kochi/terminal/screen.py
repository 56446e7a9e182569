"""The terminal of a person while a program elsewhere has it: its size, raw mode, and how it is
restored."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import struct
import termios
import tty
from collections.abc import Callable, Iterator

from snakemake_kochi.terminal.protocol import Size


def size_of_terminal(*descriptors: int) -> Size:
    """The size of the first of these that is a terminal."""
    for descriptor in descriptors or (0, 1, 2):
        with contextlib.suppress(OSError):
            packed = fcntl.ioctl(descriptor, termios.TIOCGWINSZ, bytes(8))
            size = Size(*struct.unpack("HHHH", packed))
            if size.rows and size.columns:
                return size
    return Size()


class RawTerminal:
    """A terminal that can be switched to raw mode and back."""

    def __init__(self, descriptor: int) -> None:
        """Raises termios.error for something else than a terminal."""
        self._descriptor = descriptor
        self._before = termios.tcgetattr(descriptor)

    def enter(self) -> None:
        _uninterrupted(lambda: tty.setraw(self._descriptor, termios.TCSADRAIN))

    def leave(self) -> None:
        # A window that is closed has no terminal any more.
        with contextlib.suppress(termios.error, OSError):
            _uninterrupted(
                lambda: termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)
            )

    @contextlib.contextmanager
    def raw(self) -> Iterator[None]:
        self.enter()
        try:
            yield
        finally:
            self.leave()


def _uninterrupted(change: Callable[[], object]) -> None:
    """Change a terminal. These calls wait for its output, and Python, which calls others again
    after a signal, gives up these."""
    while True:
        try:
            change()
        except termios.error as error:
            if error.args[0] != errno.EINTR:
                raise
        else:
            return


def write_all(descriptor: int, data: bytes) -> None:
    """Write to a descriptor, which other programs that have it may have made non-blocking. Raises
    OSError."""
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            select.select([], [descriptor], [])
