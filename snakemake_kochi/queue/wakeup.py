"""A wake-up FIFO: one process sleeps on it, and any process of the same host can notify it.

A notification carries no data. What happened is read from the queue's files, so a lost
notification costs a time-out and nothing else. Processes on other nodes, which a FIFO does not
reach, and all processes on a filesystem without FIFOs rely on the time-out alone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
from pathlib import Path

from snakemake_kochi.errors import KochiError

# What is answered where there are no FIFOs.
_NO_FIFOS = frozenset({errno.EPERM, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
# Seconds between two looks of a waiting process where there is no FIFO.
SILENT_WAIT = 0.1


class WakeUp:
    """The waiting end. Creates the FIFO (mode 0600) when it is not there.

    `is_silent`: the filesystem has no FIFOs, so no notification arrives.
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
        # Opened for writing too: with no writer left a FIFO is at its end, and poll would return
        # at once, for ever.
        return os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """For an event loop that waits on other things as well; call `drain` when readable."""
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
        """Also a second time: who was interrupted in closing closes again."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


def notify(path: Path) -> bool:
    """Wake who waits at `path`; return whether anybody of this host was listening.

    Never blocks and never raises: no FIFO, nobody listening (ENXIO) and a FIFO already full of
    notifications are all fine. A path that is not a FIFO is left alone.
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
