"""A wake-up FIFO: one process sleeps on it, and any process of the same host can notify it.

A notification carries no data. The process then reads the queue's files, so a lost notification
costs a time-out and nothing else. A FIFO does not reach processes on other nodes, and some
filesystems have no FIFOs. In both cases processes rely on the time-out alone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
from pathlib import Path

from snakemake_kochi.errors import KochiError

# The errors of filesystems without FIFOs.
_NO_FIFOS = frozenset({errno.EPERM, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
# Seconds between two looks of a waiting process without a FIFO.
SILENT_WAIT = 0.1


class WakeUp:
    """The waiting end of a FIFO, which is created (mode 0600) if it does not exist.

    `is_silent` means that the filesystem has no FIFOs, so that no notification arrives.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_silent = False
        try:
            os.mkfifo(path, 0o600)
        except FileExistsError:
            pass
        except OSError as error:
            if error.errno not in _NO_FIFOS:
                raise
            self.is_silent = True
        self._descriptor = self._open()
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)

    def _open(self) -> int:
        if self.is_silent:
            return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        if not stat.S_ISFIFO(self.path.lstat().st_mode):
            raise KochiError(f"{self.path} is in the way: a FIFO was expected there")
        # Opened for writing too: a FIFO without a writer is at its end, and poll would always
        # return at once.
        return os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """The descriptor, for an event loop that waits on other things as well.

        Call `drain` when it is readable.
        """
        return self._descriptor

    def drain(self) -> bool:
        """Consume all notifications so far; return whether there was one."""
        notified = False
        with contextlib.suppress(BlockingIOError):
            while os.read(self._descriptor, 65536):
                notified = True
        return notified

    def wait(self, timeout: float) -> bool:
        """Sleep until notified, at most `timeout` seconds; return whether a notification came."""
        if self.is_silent:
            timeout = min(timeout, SILENT_WAIT)
        if self._poll.poll(max(0.0, timeout) * 1000):
            return self.drain()
        return False

    def close(self) -> None:
        """Close the FIFO. A second call does no harm, as after an interruption of the first."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


def notify(path: Path) -> bool:
    """Notify the process that waits at `path`; return whether a process of this host was listening.

    This never blocks and never raises. A missing FIFO, a FIFO without a listener (ENXIO) and a FIFO
    full of notifications are no errors. A path that is not a FIFO is left alone.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return False
        with contextlib.suppress(BlockingIOError):
            os.write(descriptor, b"!")
        return True
    except BrokenPipeError:
        return False
    finally:
        os.close(descriptor)
