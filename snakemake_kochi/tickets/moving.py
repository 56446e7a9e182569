"""Renames that decide, on filesystems whose answers get lost.

A rename that returned an error may have been done. The directories tell: the source first, then the
target. Never stat, which answers from caches.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress

from snakemake_kochi.base import clock, files

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0


class Pause:
    """Waits longer from time to time, up to a second. Raises the last error after `patience`."""

    def __init__(self, patience: float) -> None:
        self._until = clock.now() + patience
        self._seconds = _FIRST_PAUSE

    def __call__(self, error: OSError) -> None:
        if clock.now() >= self._until:
            raise error
        clock.sleep(self._seconds)
        self._seconds = min(2 * self._seconds, _LONGEST_PAUSE)


def moved(source: str, target: str, patience: float) -> bool:
    """Rename; False if another process has decided before, or has taken the target on already.

    Raises OSError when neither was learned in `patience` seconds: ask again with the same names.
    """
    pause = Pause(patience)
    while True:
        try:
            files.move(source, target)
            return True
        except OSError as error:
            reason = error
        try:
            if not is_listed(source):
                return is_listed(target)
        except OSError as error:
            reason = error
        pause(reason)


def is_listed(path: str) -> bool:
    """Whether a directory has this name. Raises OSError."""
    directory, _, name = path.rpartition("/")
    return name in listing(directory)


def listing(directory: str) -> list[str]:
    """The names in a directory; none if it is not there. Raises OSError, but no FileNotFoundError.

    That it is not there, the directory above must say, too: where a mount is missing for a moment,
    everything is not found.
    """
    try:
        return files.names(directory)
    except FileNotFoundError as error:
        above, _, name = directory.rpartition("/")
        with suppress(FileNotFoundError):
            if name not in files.names(above):
                return []
        raise OSError(errno.ESTALE, "not found, and not missing", directory) from error


def repeated(action: Callable[[], None], patience: float) -> None:
    """Repeat what may be done twice. Raises OSError: the last one; at once if a path is missing."""
    pause = Pause(patience)
    while True:
        try:
            return action()
        except FileNotFoundError:
            raise
        except OSError as error:
            pause(error)


def removed(path: str) -> None:
    """Remove a file, or a directory and what is in it, as far as that can be done now."""
    try:
        files.unlink(path)
    except OSError:
        with suppress(OSError):  # cleaning comes again
            for name in files.names(path):
                removed(f"{path}/{name}")
            files.rmdir(path)
