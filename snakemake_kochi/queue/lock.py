"""The lock of a queue: flock(2) through filelock, or a clear refusal; never another kind."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import make_directory

_log = logging.getLogger(__name__)

# What the kernel answers when the filesystem has no flock at all. Contention is EAGAIN (or EACCES
# on some filesystems) and filelock keeps those apart: a busy lock is waited for, this is not.
_UNSUPPORTED = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL})
# Seconds; with filelock's default of 50 ms a busy queue would make 20 claims a second.
_POLL_INTERVAL = 0.003


@contextmanager
def queue_lock(path: Path, complain_after: float = 30.0) -> Iterator[None]:
    """Hold the lock at `path`; the file is made with mode 0600 and never unlinked.

    Waits as long as another holds it, and says so every `complain_after` seconds. Not reentrant.
    Raises KochiError when the filesystem does not support flock or the file cannot be opened.
    """
    lock = FileLock(
        path,
        mode=0o600,
        poll_interval=_POLL_INTERVAL,
        # Else filelock changes to a lock by existence where flock is missing: a kill -9 would
        # leave it locked, and two nodes could each be using another kind.
        fallback_to_soft=False,
        preserve_lock_file=True,
    )
    # filelock would make a missing directory too, but one that others can read.
    make_directory(path.parent)
    while True:
        try:
            lock.acquire(timeout=complain_after)
            break
        except Timeout:
            _log.warning(
                "still waiting for the lock %s (its holder: `fuser -v %s` on that node)", path, path
            )
        except OSError as error:
            raise _refusal(path, error) from error
    try:
        yield
    finally:
        lock.release()


def _refusal(path: Path, error: OSError) -> KochiError:
    if error.errno in _UNSUPPORTED:
        return KochiError(
            f"the filesystem of {path.parent} does not support file locks "
            f"(flock: {error.strerror})",
            "Put KOCHI_ROOT on a filesystem on which flock works; try with: flock FILE true",
        )
    return KochiError(f"the lock {path} cannot be opened: {error.strerror}")
