"""A program in a pseudo-terminal: how it starts, what it reads and writes, how it is told to
end."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pty
import signal
import struct
import termios
import time
from collections.abc import Sequence

from snakemake_kochi.terminal.protocol import Size

_CHUNK = 1 << 16
_MOST_TYPED = 1 << 20
# Seconds for a program to end after its terminal was closed, within the 5 s that a worker gives.
_GRACE = 3.0
# Seconds in which the output of an ended program must have come, if another process still has its
# terminal.
_LAST_OUTPUT = 0.2
# Seconds until a program without its terminal may have opened it again.
_LOOK = 1.0
_NOT_FOUND, _CANNOT_EXECUTE = 127, 126  # as in shells
# ioctl_tty(2) and termbits.h; Python's termios lacks it: the terminal erases whole characters.
_IUTF8 = 0o040000
# A worker that was started in the background, or under nohup, ignores some of these.
_OF_A_TERMINAL = (
    *(signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGPIPE),
    *(signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGXFSZ),
)


class Program:
    """A program, and the side of its pseudo-terminal that stands for a person.

    `status`: how it ended, as the exit status, or the negative number of a signal; None until
    then. `why`: it was told to end. `is_silent`: no process had its terminal at the last look.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._input = bytearray()
        self._master = -1
        self.pid = 0
        self.status: int | None = None
        self.why = ""
        self.is_silent = False
        self._ended_at = self._give_up = 0.0

    def start(self, size: Size) -> None:
        """Start it; it leads a session of its own. Raises OSError."""
        self._master, slave = pty.openpty()
        self.resize(size)
        settings = termios.tcgetattr(slave)
        settings[0] |= _IUTF8
        termios.tcsetattr(slave, termios.TCSANOW, settings)
        self.pid = os.fork()
        if self.pid == 0:
            _become(self._words, slave)
        os.close(slave)
        os.set_blocking(self._master, False)

    @property
    def has_begun(self) -> bool:
        return self.pid != 0

    @property
    def is_open(self) -> bool:
        """Whether the program may have a terminal."""
        return self._master >= 0

    @property
    def has_terminal(self) -> bool:
        """Whether a process has it. A program that has none may open it again, as /dev/tty."""
        return self.is_open and not self.is_silent

    def fileno(self) -> int:
        return self._master

    @property
    def has_input(self) -> bool:
        """Whether something waits that its terminal has not taken yet."""
        return self.is_open and bool(self._input)

    def give(self, data: bytes) -> None:
        """Type something; `push` hands it over. As in a terminal, what a program does not read for
        long is lost."""
        if len(self._input) < _MOST_TYPED:
            self._input += data

    def push(self) -> None:
        with contextlib.suppress(BlockingIOError):
            try:
                del self._input[: os.write(self._master, self._input)]
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                self._input.clear()

    def read(self) -> bytes | None:
        """What it has printed; None if there is nothing now, and then `has_terminal` tells whether
        anybody can print more."""
        try:
            if data := os.read(self._master, _CHUNK):
                return data
        except BlockingIOError:
            return None
        except OSError as error:
            # Linux reports this when no process has the terminal any more.
            if error.errno != errno.EIO:
                raise
        self.is_silent = True
        return None

    def read_rest(self) -> bytes:
        """What an ended program has printed and nobody has read."""
        found, until = b"", time.monotonic() + _LAST_OUTPUT
        while self.is_open and time.monotonic() < until and (data := self.read()):
            found += data
        return found

    def resize(self, size: Size) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", *size.numbers))

    def redraw(self) -> None:
        """Have the program in the foreground draw its screen again, as after a new size."""
        with contextlib.suppress(OSError):
            os.killpg(os.tcgetpgrp(self._master), signal.SIGWINCH)

    def close(self) -> None:
        """Take the terminal away. The kernel signals the processes that have it."""
        if self.is_open:
            os.close(self._master)
            self._master = -1

    def look(self) -> None:
        """Notice that it has ended."""
        if self.has_begun and self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._note_end(os.waitstatus_to_exitcode(status))

    def end(self, why: str) -> None:
        """Tell it to end, for a reason that is not its own, by what a program gets when its
        terminal is closed. Shells end their jobs then."""
        if self.status is not None or self.why:
            return
        self.why = why
        self._give_up = time.monotonic() + _GRACE
        if not self.has_begun:
            self._note_end(-signal.SIGHUP)
            return
        with contextlib.suppress(OSError):
            os.killpg(os.tcgetpgrp(self._master), signal.SIGHUP)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGHUP)
            os.kill(self.pid, signal.SIGCONT)

    @property
    def is_over(self) -> bool:
        """Whether nothing is to be waited for: it has ended, or does not though it was told to, and
        has printed all."""
        now = time.monotonic()
        if self.status is None:
            return bool(self._give_up) and now >= self._give_up
        # Somebody else may have the terminal, as a program in the background has.
        return not self.has_terminal or now >= self._ended_at + _LAST_OUTPUT

    @property
    def due(self) -> float | None:
        """When to look again, although nothing happens."""
        if self.status is not None:
            return self._ended_at + _LAST_OUTPUT
        if self._give_up:
            return self._give_up
        return time.monotonic() + _LOOK if self.is_silent else None

    def _note_end(self, status: int) -> None:
        self.status = status
        self._ended_at = time.monotonic()
        self.is_silent = False  # it may have printed something at its end


def shell_status(status: int) -> int:
    """A `status` as shells have it: 128 + n after signal n."""
    return status if status >= 0 else 128 - status


def _become(words: Sequence[str], slave: int) -> None:
    """Live as the child up to exec."""
    status = _CANNOT_EXECUTE
    try:
        os.login_tty(slave)
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            if number in _OF_A_TERMINAL or callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execvp(words[0], list(words))
    except FileNotFoundError:
        status = _NOT_FOUND
        _say(f"{words[0]}: command not found")
    except BaseException as error:
        _say(f"{words[0]}: {getattr(error, 'strerror', None) or error!r}")
    finally:
        os._exit(status)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"kochi: {text}\n".encode("utf-8", "surrogateescape"))
