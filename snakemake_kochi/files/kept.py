"""The names in a directory that one process lists again and again."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from snakemake_kochi.files.calls import answered

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC
# Seconds for which the time of a directory must have stood still before it is relied upon. Some
# filesystems have times in whole seconds, and two changes within one second leave the same time.
_SETTLING = 3.0
# Seconds after which the directory is listed in any case, and its parent found by its path.
_TRUST = 60.0


class KeptNames:
    """The names in one directory; they are kept while its time says that they have not changed.

    A look then costs the file server one call: the directory is opened by its name, which makes a
    client of NFS ask for its present time (close-to-open consistency: LOOKUP_OPEN in fs/nfs/dir.c
    of Linux; opened as ".", older kernels answer from their cache). The name is that below its
    parent, which stays open, so the directories above it are not looked up. Any thread may call
    the methods.
    """

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._clock = clock
        self._lock = threading.Lock()
        self._parent: int | None = None
        self._found_until = 0.0  # when the parent is found by its path again
        self._state = (0, 0)  # inode, and time in nanoseconds
        self._since = 0.0  # when that state was first seen
        self._names: Sequence[str] | None = None  # unless they may change without a new time

    def __del__(self) -> None:
        self._close()

    def close(self) -> None:
        """Close what is open; the next look opens it again."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        parent, self._parent, self._names = self._parent, None, None
        if parent is not None:
            os.close(parent)

    def names(self, is_notified: bool = False) -> Sequence[str]:
        """The names, in no order; none if there is no such directory.

        With `is_notified`, somebody has said that they have changed: they are listed. Raises
        OSError when they are unknown now.
        """
        with self._lock:
            if is_notified:
                self._names = None
            if self._parent is not None and self._clock() < self._found_until:
                # Otherwise the directory was removed, or it is not known now, as below.
                with contextlib.suppress(OSError):
                    return self._look(self._parent)
            try:
                return answered(self._find)
            except (FileNotFoundError, NotADirectoryError):
                return ()

    def _find(self) -> Sequence[str]:
        self._close()
        self._found_until = self._clock() + _TRUST
        self._parent = os.open(self._directory.parent, _FLAGS)
        return self._look(self._parent)

    def _look(self, parent: int) -> Sequence[str]:
        descriptor = os.open(self._directory.name, _FLAGS, dir_fd=parent)
        try:
            found = os.fstat(descriptor)
            moment = self._clock()
            if (state := (found.st_ino, found.st_mtime_ns)) != self._state:
                self._state, self._since, self._names = state, moment, None
            if self._names is not None:
                return self._names
            names = os.listdir(descriptor)
            if moment >= self._since + _SETTLING:
                self._names = names
            return names
        finally:
            os.close(descriptor)
