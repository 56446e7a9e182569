"""The lock of a computer: an exclusive job runs alone, other jobs beside each other.

All workers of a user on one computer take it, of whatever project and KOCHI_ROOT.

DIRECTORY/kochi-<number of the user>/   mode 0700
  turn    held by the job that comes next, until it has `jobs`: no other job passes it, so a stream
          of ordinary jobs does not keep an exclusive one waiting for ever
  jobs    held by each running job, by an exclusive one alone, which writes there who it is

The locks are flocks: they end with their process, however it ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from snakemake_kochi.errors import KochiError

VARIABLE = "KOCHI_NODE_LOCK"
# For a job that has the lock: the host on which it has it, for all that it starts there.
HELD_VARIABLE = "KOCHI_NODE_LOCK_HELD"
_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
_MOST_NAMED = 5  # processes
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


class Place:
    """A place in the waiting for the lock, which another thread may give up."""

    def __init__(self) -> None:
        self.is_given_up = False
        self._guard = threading.Lock()  # of the descriptor, which may be another file's later
        self._turn: int | None = None

    def give_up(self) -> None:
        """Let other jobs pass at once. The thread that waits goes on to wait for the jobs that run,
        since nothing ends its system call, and takes nothing then. Raises OSError.
        """
        with self._guard:
            self.is_given_up = True
            if self._turn is not None:
                fcntl.flock(self._turn, fcntl.LOCK_UN)

    @contextmanager
    def turn(self, directory: Path) -> Iterator[int]:
        """The descriptor of `turn`."""
        with _opened(directory / "turn") as turn:
            with self._guard:
                self._turn = turn
            try:
                yield turn
            finally:
                with self._guard:
                    self._turn = None


def acquire(
    directory: Path, is_exclusive: bool, who: str, wait: bool = True, place: Place | None = None
) -> int | None:
    """Take the lock for one job; return the descriptor that holds it.

    `who`: the job, for the people whose jobs wait. The result is None if the place was given up,
    and without `wait` if another process is in the way. Raises OSError.
    """
    place = place or Place()
    # A logout, or what cleans /tmp, may delete the directory under workers that go on.
    while (found := _acquire(directory, is_exclusive, who, wait, place)) is not None:
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(found), os.stat(directory / "jobs")):
                break
        release(found)
    return found


def _acquire(directory: Path, is_exclusive: bool, who: str, wait: bool, place: Place) -> int | None:
    how = 0 if wait else fcntl.LOCK_NB
    with suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    with place.turn(directory) as turn:
        jobs = _open(directory / "jobs")
        try:
            fcntl.flock(turn, fcntl.LOCK_EX | how)
            if not place.is_given_up:
                fcntl.flock(jobs, (fcntl.LOCK_EX if is_exclusive else fcntl.LOCK_SH) | how)
            if place.is_given_up:
                _unlock(jobs)
                return None
            os.ftruncate(jobs, 0)  # a killed one has left its name
            if is_exclusive:
                os.pwrite(jobs, who.encode("utf-8", "surrogateescape"), 0)
        except BaseException as error:
            if isinstance(error, OSError) and error.errno in _UNSUPPORTED:
                _warn(error)
                return jobs
            os.close(jobs)
            if isinstance(error, BlockingIOError):
                return None
            raise
        return jobs


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


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = _open(path)
    try:
        yield descriptor
    finally:
        _unlock(descriptor)


def _unlock(descriptor: int) -> None:
    # Closing is not enough: a process that was forked meanwhile has a copy until its exec.
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
