"""The lock of a queue: flock(2) through filelock, or a clear refusal; never another kind."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import lock_descriptor, unlock_descriptor

from snakemake_kochi.errors import KochiError

_log = logging.getLogger(__name__)

# What the kernel answers when the filesystem has no flock at all. Contention is EAGAIN (or EACCES
# on some filesystems) and filelock keeps those apart: a busy lock is waited for, this is not.
_UNSUPPORTED = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL})
# Seconds; with filelock's usual 50 ms a busy queue would make 20 claims a second.
_POLL_INTERVAL = 0.003


class LockRemovedError(KochiError):
    """The directory of the lock does not exist (any more): what it guarded is gone."""


@contextlib.contextmanager
def queue_lock(path: Path, complain_after: float = 30.0) -> Iterator[None]:
    """Hold the lock at `path`; the file is made with mode 0600, its directory is not.

    Waits as long as another holds it, and says so every `complain_after` seconds. Not reentrant.
    Raises KochiError when the filesystem does not support flock or the file cannot be opened, and
    LockRemovedError when its directory is not there, also when it was removed during the wait.
    """
    descriptor = _acquire(path, complain_after)
    try:
        yield
    finally:
        # Closing is not enough: a child that another thread is just starting has it open as well.
        with contextlib.suppress(OSError):
            unlock_descriptor(descriptor)
        os.close(descriptor)


def _acquire(path: Path, complain_after: float) -> int:
    # Not filelock's FileLock, which makes a missing directory: a queue that its controller has
    # removed would be there again.
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError as error:
            raise LockRemovedError(
                f"{path.parent} does not exist: nothing is left to be locked"
            ) from error
        except OSError as error:
            raise _refusal(path, error) from error
        try:
            _wait_for(descriptor, path, complain_after)
            if _is_same_file(descriptor, path):
                return descriptor
        except OSError as error:
            os.close(descriptor)
            raise _refusal(path, error) from error
        except BaseException:
            os.close(descriptor)
            raise
        # Removed while we waited; a lock on it keeps out nobody.
        os.close(descriptor)


def _wait_for(descriptor: int, path: Path, complain_after: float) -> None:
    complain_at = time.monotonic() + complain_after
    while not lock_descriptor(descriptor, blocking=False):
        time.sleep(_POLL_INTERVAL)
        if time.monotonic() >= complain_at:
            complain_at = time.monotonic() + complain_after
            _log.warning(
                "still waiting for the lock %s (its holder: `fuser -v %s` on that node)", path, path
            )


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _refusal(path: Path, error: OSError) -> KochiError:
    if error.errno in _UNSUPPORTED:
        return KochiError(
            f"the filesystem of {path.parent} does not support file locks "
            f"(flock: {error.strerror})",
            "Put KOCHI_ROOT on a filesystem on which flock works; try with: flock FILE true",
        )
    return KochiError(f"the lock {path} cannot be opened: {error.strerror}")
