"""A lock between processes, also of several nodes: one of two kinds, or an error."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import answered, random_word, time_of_new_file
from snakemake_kochi.later_log import LaterLog

_log = LaterLog(__name__)

Kind = Literal["flock", "lease"]

# The errors of a filesystem without flock. Contention is EAGAIN.
_UNSUPPORTED = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL})
# Seconds between two tries: a part of the time that it has waited, so the file server is asked less
# often for a lock that was busy for long.
_POLL_INTERVAL = 0.003
_PART_OF_WAIT = 0.1
_LONGEST_POLL_INTERVAL = 0.25
# Each look at a lease costs each waiting process several requests to the file server.
_LEASE_POLL_INTERVAL = 0.02
# Seconds after which a lease that its holder, on another node, does not renew is taken away. All
# processes of a machine must use the same value, so the settled one counts; see settings.py.
LEASE_DURATION = 30.0
# The longest time, in seconds, between two looks at a lease that may be forsaken.
_FORSAKEN_LOOK = 1.0


class LockBusyError(KochiError):
    """Other processes held the lock for the whole time of the wait."""


class LockLostError(KochiError):
    """A lease was taken away from its holder."""


@dataclass(frozen=True)
class Held:
    """A lock that is held.

    The kernel never takes a flock away. A lease is taken away from a process that stands still.
    """

    path: Path
    why_lost: Callable[[], str | None] = lambda: None

    def require(self) -> None:
        """Raise LockLostError if the lock was taken away since.

        Another process may then have done the same work.
        """
        if (why := self.why_lost()) is not None:
            raise LockLostError(
                f"this process lost the lock {self.path} while it held it ({why}): another process "
                "may have worked in the same place",
                "Type your command again.",
            )


@contextlib.contextmanager
def hold(
    path: Path,
    kind: Kind,
    complain_after: float = 30.0,
    patience: float = math.inf,
    lease_duration: float = LEASE_DURATION,
) -> Iterator[Held]:
    """Hold the lock at `path`. Its file is made with mode 0600; its directory is not made.

    Raises LockBusyError when other processes hold it for `patience` seconds (0: a single try).
    Raises KochiError when the filesystem does not support that kind of lock, or when the file
    cannot be opened. The other kind is never used instead, because it would exclude no process.
    """
    times = (complain_after, time.monotonic() + patience)
    held = (
        _hold_flock(path, *times) if kind == "flock" else _hold_lease(path, *times, lease_duration)
    )
    with held as lock:
        yield lock


def is_held(path: Path, kind: Kind, lease_duration: float = LEASE_DURATION) -> bool:
    """Whether a process holds the lock at `path`; this does not wait. Without a file, none does.

    A lease counts as not held when it was not renewed for two durations; both times come from the
    file server. Raises KochiError when the answer is unknown.
    """
    if kind == "lease":
        return _is_renewed(path, lease_duration)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _refusal(path, "open", error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        raise _refusal(path, "flock", error) from error
    finally:
        os.close(descriptor)
    return False


def _is_renewed(path: Path, lease_duration: float) -> bool:
    try:
        renewed = answered(path.stat).st_mtime
        return time_of_new_file(path.parent) - renewed < 2 * lease_duration
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _refusal(path, "open", error) from error


@contextlib.contextmanager
def _hold_flock(path: Path, complain_after: float, deadline: float) -> Iterator[Held]:
    try:
        descriptor = _open(path)
    except OSError as error:
        raise _refusal(path, "open", error) from error
    try:
        _wait_for(descriptor, path, complain_after, deadline)
        try:
            yield Held(path)
        finally:
            # Closing is not enough: a child that another thread is just starting has the descriptor
            # open, too.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    call = partial(os.open, path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        return answered(call)
    except FileExistsError:
        # Some FUSE filesystems make a missing file as a new one. If another node makes it at the
        # same time, they say that it exists.
        return answered(call)


def _wait_for(descriptor: int, path: Path, complain_after: float, deadline: float) -> None:
    began = time.monotonic()
    complain_at = began + complain_after
    try:
        while True:
            with contextlib.suppress(BlockingIOError):
                return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.monotonic() >= deadline:
                raise _busy(path)
            time.sleep(pause_after(time.monotonic() - began))
            if time.monotonic() >= complain_at:
                complain_at = time.monotonic() + complain_after
                _complain(path, f"`fuser -v {path}` on its node shows the holder")
    except OSError as error:
        raise _refusal(path, "flock", error) from error


def pause_after(waited: float) -> float:
    """Seconds until the next try; random, so that waiting processes spread."""
    pause = min(max(_POLL_INTERVAL, _PART_OF_WAIT * waited), _LONGEST_POLL_INTERVAL)
    return pause * _between(0.5, 1.5)


def _between(least: float, most: float) -> float:
    """A random number. Imported here: a run that takes no lock has no generator to seed."""
    import random

    return random.uniform(least, most)


@contextlib.contextmanager
def _hold_lease(
    path: Path, complain_after: float, deadline: float, duration: float
) -> Iterator[Held]:
    from filelock import LeaseSettingsMismatch, SoftFileLease, Timeout

    # One object for all attempts: it remembers since when the holder has not renewed the lease.
    lease = SoftFileLease(
        path, lease_duration=duration, mode=0o600, poll_interval=_LEASE_POLL_INTERVAL
    )
    forsaken = Forsaken(path, duration)
    look = min(_FORSAKEN_LOOK, duration / 5)
    complain_at = time.monotonic() + complain_after
    while True:
        left = min(deadline, complain_at) - time.monotonic()
        try:
            # filelock would make a missing directory, and hold a lock that no other process looks
            # at.
            answered(path.parent.stat)
            lease.acquire(timeout=max(0.0, min(left, look)))
            break
        except Timeout:
            forsaken.look()
            if time.monotonic() >= deadline:
                raise _busy(path) from None
            if time.monotonic() >= complain_at:
                complain_at = time.monotonic() + complain_after
                _complain(path, "the file names the holder")
        except LeaseSettingsMismatch as error:
            raise KochiError(
                f"the lock {path} is held by another version of snakemake_kochi: {error}",
                "End all workers and runs of that version on this machine.",
            ) from error
        except OSError as error:
            raise _refusal(path, "open", error) from error
    try:
        yield Held(path, lambda: None if lease.compromise is None else lease.compromise.reason)
    finally:
        lease.release()
        if lease.compromise is not None:
            _log.warning(
                "the lock %s was taken away while it was held (%s): this process or its filesystem "
                "stood still for %g seconds",
                path,
                lease.compromise.reason,
                duration,
            )


class Forsaken:
    """Removes a lease that is not renewed, if filelock does not; filelock waits only half as long.

    On a filesystem that cannot exchange two names (NFS), present versions of filelock never remove
    the lease of a process that was killed. Without that exchange, a process cannot be sure that it
    does not take away a new lease. This class puts a new lease back in that case. For a moment two
    processes may then hold the lock.
    """

    def __init__(self, path: Path, duration: float) -> None:
        self._path = path
        # The patience is random, so that not all processes remove it at once: the second one may
        # find a new lease.
        self._patience = duration * _between(2.0, 2.5)
        self._seen: tuple[int, ...] = ()
        self._since = 0.0

    def look(self) -> None:
        """Look at the lease; call this repeatedly during the wait."""
        with contextlib.suppress(OSError), open(self._path, "rb") as file:
            # The file is opened because NFS has current times only for open files. And while it is
            # open, no other file gets its inode number.
            found = os.fstat(file.fileno())
            seen = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns)
            if seen != self._seen:
                self._seen, self._since = seen, time.monotonic()
            elif time.monotonic() - self._since >= self._patience:
                self.remove(found)

    def remove(self, expected: os.stat_result) -> None:
        """Remove the lease if it is the expected file."""
        aside = self._path.with_name(f".{self._path.name}-{random_word(8)}")
        self._path.rename(aside)
        try:
            if os.path.samestat(aside.stat(), expected):
                _log.warning("removed the lock %s: its holder no longer renewed it", self._path)
            else:
                with contextlib.suppress(FileExistsError):
                    self._path.hardlink_to(aside)
        finally:
            aside.unlink()


def _complain(path: Path, how_to_find: str) -> None:
    _log.warning(
        "still waiting for the lock %s, which another process holds (%s)", path, how_to_find
    )


def advice(kind: Kind) -> str:
    """What to do if locks of that kind do not work."""
    other = " Without such a directory, set lock_kind: lease." if kind == "flock" else ""
    return (
        "In kochi.yaml, set lock_dir of the machine to a directory where locks work, the same for "
        f"all nodes.{other} To test locks, type: kochi doctor"
    )


def _busy(path: Path) -> LockBusyError:
    return LockBusyError(f"another process holds the lock {path}")


def _refusal(path: Path, call: Literal["open", "flock"], error: OSError) -> KochiError:
    number = errno.errorcode.get(error.errno or 0, str(error.errno))
    if call == "flock" and error.errno in _UNSUPPORTED:
        return KochiError(
            f"the filesystem of {path.parent} does not support file locks "
            f"(flock: {error.strerror}, {number})",
            advice("flock"),
        )
    what = "opened" if call == "open" else "locked"
    return KochiError(f"the lock {path} cannot be {what}: {error.strerror} ({call}: {number})")
