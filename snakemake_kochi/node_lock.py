"""The lock of a computer: an exclusive job runs alone, other jobs beside each other.

All workers of a user on one computer take it, of whatever project and KOCHI_ROOT.

DIRECTORY/kochi-<number of the user>/   mode 0700
  turn    held by who comes next, until it has `jobs`, in the same way: no ordinary job passes an
          exclusive one, so a stream of them does not keep it waiting for ever
  jobs    held by each running job, by an exclusive one alone, which writes there who it is
  cpus    a byte for each CPU, locked while a job is pinned to it (`worker/node/devices.py`)

The locks are flocks: they end with their process, however it ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from snakemake_kochi.errors import KochiError

VARIABLE = "KOCHI_NODE_LOCK"
# For a job that has the lock: the host on which it has it, for all that it starts there.
HELD_VARIABLE = "KOCHI_NODE_LOCK_HELD"
_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
_MOST_NAMED = 5  # processes
PAUSE = 0.02  # seconds between two tries to take the lock
# Not $TMPDIR: it may differ between two terminals.
_SHARED_MEMORY, _TEMPORARY = Path("/dev/shm"), Path("/tmp")


class NodeLockError(KochiError):
    """The directory of the lock cannot be used."""


def lock_directory() -> Path:
    """The directory of the lock of this computer, made if it is missing. Raises NodeLockError."""
    has_memory = os.access(_SHARED_MEMORY, os.W_OK | os.X_OK)
    storage = Path(os.environ.get(VARIABLE) or (_SHARED_MEMORY if has_memory else _TEMPORARY))
    directory = storage / f"kochi-{os.geteuid()}"
    hint = f"Name a directory of this computer in which you may write: export {VARIABLE}=DIRECTORY"
    try:
        with suppress(FileExistsError):
            os.mkdir(directory, 0o700)
        entry = os.lstat(directory)
    except OSError as error:
        message = f"{directory} for the lock of exclusive jobs cannot be made: {error.strerror}"
        raise NodeLockError(message, hint) from error
    # Whoever may open the files can keep all jobs waiting.
    is_private = entry.st_uid == os.geteuid() and not entry.st_mode & 0o077
    if not (stat.S_ISDIR(entry.st_mode) and is_private):
        expected = "a directory of yours with mode 0700 was expected"
        raise NodeLockError(f"{directory} for the lock of exclusive jobs: {expected}", hint)
    return directory


def has_lock() -> bool:
    """Whether this process is part of a job that has the lock of this computer."""
    return os.environ.get(HELD_VARIABLE) == os.uname().nodename


class Wish:
    """One job's wish for the lock; it waits nowhere in the kernel, so it can be given up."""

    def __init__(self, directory: Path, is_exclusive: bool, who: str) -> None:
        """`who`: the job, for the people whose jobs wait."""
        self._directory, self._is_exclusive, self._who = directory, is_exclusive, who
        self._turn: int | None = None

    def take(self) -> int | None:
        """The descriptor that holds the lock; None while another process is in the way: call it
        again. No other job passes this one meanwhile, once it has `turn`. Raises OSError.
        """
        # A logout, or what cleans /tmp, may delete the directory under workers that go on.
        with suppress(FileExistsError):
            os.mkdir(self._directory, 0o700)
        how = fcntl.LOCK_EX if self._is_exclusive else fcntl.LOCK_SH
        if self._turn is None:
            self._turn = _try_lock(self._directory / "turn", how)
        if self._turn is None:
            return None
        if (jobs := _try_lock(self._directory / "jobs", how)) is None:
            return None
        self.give_up()
        os.ftruncate(jobs, 0)  # a killed one has left its name
        if self._is_exclusive:
            os.pwrite(jobs, self._who.encode("utf-8", "surrogateescape"), 0)
        return jobs

    def give_up(self) -> None:
        """Let other jobs pass."""
        if self._turn is not None:
            _unlock(self._turn)
            self._turn = None


def acquire(directory: Path, is_exclusive: bool, who: str, wait: bool = True) -> int | None:
    """Take the lock for one job; return the descriptor that holds it.

    Without `wait` the result is None if another process is in the way. Raises OSError.
    """
    wish = Wish(directory, is_exclusive, who)
    try:
        while (found := wish.take()) is None and wait:
            time.sleep(PAUSE)
        return found
    finally:
        wish.give_up()


def _try_lock(path: Path, how: int) -> int | None:
    """None if it is not free, or not any more the file of that name."""
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(number, how | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(number), os.stat(path)):
            return number
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            _warn(error)
            return number
        os.close(number)
        raise
    _unlock(number)
    return None


def _warn(error: OSError) -> None:
    """Say that the directory of the lock has no locks: jobs run all the same."""
    import logging  # loaded only where it is needed: see `tests/phases/test_run.py`

    logging.getLogger(__name__).warning(
        f"kochi: exclusive jobs are not kept apart on this computer: {error.strerror}. "
        f"Name a directory with file locks: export {VARIABLE}=DIRECTORY"
    )


def release(descriptor: int) -> None:
    """Give back the lock of one job."""
    os.ftruncate(descriptor, 0)
    _unlock(descriptor)


@contextmanager
def held(is_exclusive: bool, who: str) -> Iterator[None]:
    """Hold the lock of this computer for a job of this process; say so while it waits for it.

    The worker has it for its jobs. Raises NodeLockError and OSError.
    """
    if has_lock():
        yield
        return
    directory = lock_directory()
    descriptor = acquire(directory, is_exclusive, who, wait=False)
    if descriptor is None:
        print(f"kochi: {who} waits: {holder(directory)}", flush=True)
        descriptor = acquire(directory, is_exclusive, who)
    assert descriptor is not None
    try:
        yield
    finally:
        release(descriptor)


def holder(directory: Path) -> str:
    """Why a job has to wait, as the end of a sentence for people."""
    with suppress(OSError):
        if who := (directory / "jobs").read_bytes():
            return f"{who.decode('utf-8', 'replace')} runs alone on this computer"
    processes = sorted(set(holders(directory)))
    named = ", ".join(map(str, processes[:_MOST_NAMED]))
    more = " and others" if len(processes) > _MOST_NAMED else ""
    of_whom = f" (processes {named}{more})" if named else ""
    return f"other jobs of yours run on this computer{of_whom}"


def holders(directory: Path) -> list[int]:
    """The process of each running job that holds the lock, as far as the kernel shows it.

    proc_locks(5): `1: FLOCK ADVISORY READ PID MAJOR:MINOR:INODE 0 EOF`; `->` marks one that waits.
    """
    with suppress(OSError):
        inode = os.stat(directory / "jobs").st_ino
        line = re.compile(rf"^\d+: FLOCK +\w+ +\w+ +(\d+) \w+:\w+:{inode} ", re.MULTILINE)
        return [int(pid) for pid in line.findall(Path("/proc/locks").read_text())]
    return []


def count_others() -> int | None:
    """How many jobs run on this computer beside that of this process, which has the lock; None if
    it is not known."""
    with suppress(NodeLockError):
        return max(0, len(holders(lock_directory())) - 1)
    return None


def _unlock(descriptor: int) -> None:
    # Closing is not enough: a process that was forked meanwhile has a copy until its exec.
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
