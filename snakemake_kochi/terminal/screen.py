"""The terminal of a person while a program elsewhere has it: raw mode, its size, and its
restoration."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import struct
import termios
import tty
from collections.abc import Iterator

from snakemake_kochi.terminal.protocol import Size

# Private modes that a program may leave behind: cursor keys, the cursor, mouse, focus, the
# alternate screens, and bracketed paste (xterm's control sequences, "DEC Private Mode Set").
_MODE = re.compile(rb"\x1b\[\?([\d;]+)([hl])")
_WATCHED = frozenset(b"1 25 47 1000 1002 1003 1004 1006 1015 1047 1049 2004".split())
_USUALLY_SET = frozenset((b"25",))
_LONGEST_SEQUENCE = 64
_PLAIN = b"\x1b>\x1b[0m"  # the keypad, and colours


class Modes:
    """Which modes of the terminal a program has changed."""

    def __init__(self) -> None:
        self._changed: set[bytes] = set()
        self._rest = b""

    def note(self, output: bytes) -> None:
        """Look at what the program prints."""
        output = self._rest + output
        if b"\x1b" not in output:
            return
        end = 0
        for found in _MODE.finditer(output):
            end = found.end()
            for mode in _WATCHED & set(found[1].split(b";")):
                if (found[2] == b"h") == (mode in _USUALLY_SET):
                    self._changed.discard(mode)
                else:
                    self._changed.add(mode)
        # A sequence may be cut in two.
        last = output.rfind(b"\x1b", end)
        is_cut = last >= 0 and len(output) - last < _LONGEST_SEQUENCE
        self._rest = output[last:] if is_cut else b""

    def undone(self) -> bytes:
        """What to print so that the terminal is as before; b"" if nothing was left behind."""
        if not self._changed:
            return b""
        parts = [
            b"\x1b[?%s%s" % (mode, b"h" if mode in _USUALLY_SET else b"l")
            for mode in sorted(self._changed)
        ]
        self._changed.clear()
        return b"".join(parts) + _PLAIN


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
        tty.setraw(self._descriptor, termios.TCSADRAIN)

    def leave(self) -> None:
        # A window that is closed has no terminal any more.
        with contextlib.suppress(termios.error, OSError):
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    @contextlib.contextmanager
    def raw(self) -> Iterator[None]:
        self.enter()
        try:
            yield
        finally:
            self.leave()


def write_all(descriptor: int, data: bytes) -> None:
    """Raises OSError."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
