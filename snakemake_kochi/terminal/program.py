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
from collections.abc import Sequence

from snakemake_kochi.terminal.protocol import Size

_CHUNK = 1 << 16
_MOST_TYPED = 1 << 20
_NOT_FOUND, _CANNOT_EXECUTE = 127, 126  # as in shells
# ioctl_tty(2) and termbits.h; Python's termios lacks it: the terminal erases whole characters.
_IUTF8 = 0o040000
# A worker that was started in the background, or under nohup, ignores some of these.
_OF_A_TERMINAL = (
    *(signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGPIPE),
    *(signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGXFSZ),
)


class Program:
    """A program, and the side of its pseudo-terminal that stands for a person."""

    def __init__(self, words: Sequence[str], size: Size) -> None:
        """Start it; it leads a session of its own. Raises OSError."""
        self._input = bytearray()
        self._master, slave = pty.openpty()
        self.resize(size)
        settings = termios.tcgetattr(slave)
        settings[0] |= _IUTF8
        termios.tcsetattr(slave, termios.TCSANOW, settings)
        self.pid = os.fork()
        if self.pid == 0:
            _become(words, slave)
        os.close(slave)
        os.set_blocking(self._master, False)

    @property
    def is_open(self) -> bool:
        """Whether the program may still have its terminal."""
        return self._master >= 0

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
        """What it has printed; None if there is nothing now. At the end, closes the terminal."""
        try:
            if data := os.read(self._master, _CHUNK):
                return data
        except BlockingIOError:
            return None
        except OSError as error:
            # Linux reports this when no process has the terminal any more.
            if error.errno != errno.EIO:
                raise
        self.close()
        return None

    def resize(self, size: Size) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", *size.numbers))

    def redraw(self) -> None:
        """Have the program in the foreground draw its screen again, as after a new size."""
        with contextlib.suppress(OSError):
            os.killpg(os.tcgetpgrp(self._master), signal.SIGWINCH)

    def hang_up(self) -> None:
        """Signal what a program gets when its terminal is closed; shells end their jobs then."""
        with contextlib.suppress(OSError):
            os.killpg(os.tcgetpgrp(self._master), signal.SIGHUP)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGHUP)
            os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Take the terminal away. The kernel signals the processes that have it."""
        if self.is_open:
            os.close(self._master)
            self._master = -1

    def poll(self) -> int | None:
        """How it ended, as the exit status, or the negative number of a signal; None while it
        runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return None if pid == 0 else os.waitstatus_to_exitcode(status)


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
