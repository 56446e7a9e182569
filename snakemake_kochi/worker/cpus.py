"""CPU sets: which CPUs of the worker's own a job gets, and that no other worker gives them away.

Two workers of one user on one node, of two runs say, each believe all CPUs to be theirs. They keep
apart by locks on the bytes of one file per node, one byte per CPU: POSIX locks belong to a
process, so they end with it, however it ends, and jobs do not inherit them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

from snakemake_kochi.files import answered, make_directory

# Answers that say what the filesystem is like; any other may be of this moment.
_UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
_TOPOLOGY = Path("/sys/devices/system/cpu")

# CPUs by socket; within one in the order of their numbers.
Layout = tuple[tuple[int, ...], ...]


class LeasesUnsupportedError(Exception):
    """The filesystem has no locks on parts of a file."""


def layout_of(cpus: Iterable[int], topology: Path = _TOPOLOGY) -> Layout:
    """Where nothing is known of sockets, all CPUs are on one."""
    sockets: dict[int, list[int]] = {}
    for cpu in sorted(cpus):
        sockets.setdefault(_socket_of(cpu, topology), []).append(cpu)
    return tuple(tuple(sockets[socket]) for socket in sorted(sockets))


def _socket_of(cpu: int, topology: Path) -> int:
    try:
        return int((topology / f"cpu{cpu}" / "topology" / "physical_package_id").read_text())
    except (OSError, ValueError):
        return -1


def choose_cpus(layout: Layout, free: Collection[int], count: int) -> tuple[int, ...] | None:
    """`count` of the free CPUs, sorted, or None when there are fewer.

    On one socket if possible, and neighbours there: they share caches and memory. The smallest
    gap that will do is taken, so that large ones are left for wide jobs.
    """
    runs = [run for socket in layout for run in _runs(socket, free)]
    if enough := [run for run in runs if len(run) >= count]:
        return min(enough, key=len)[:count]
    left = [tuple(cpu for cpu in socket if cpu in free) for socket in layout]
    if enough := [socket for socket in left if len(socket) >= count]:
        return min(enough, key=len)[:count]
    # As few sockets as possible.
    spread = [cpu for socket in sorted(left, key=len, reverse=True) for cpu in socket]
    return tuple(sorted(spread[:count])) if len(spread) >= count else None


def _runs(socket: Sequence[int], free: Collection[int]) -> list[tuple[int, ...]]:
    groups = groupby(socket, key=lambda cpu: cpu in free)
    return [tuple(run) for is_free, run in groups if is_free]


def format_cpus(cpus: Iterable[int]) -> str:
    """As taskset(1) has it: "0-3,8"."""
    return ",".join(
        str(first) if first == last else f"{first}-{last}" for first, last in _ranges(cpus)
    )


def _ranges(cpus: Iterable[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for cpu in sorted(cpus):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1] = (ranges[-1][0], cpu)
        else:
            ranges.append((cpu, cpu))
    return ranges


class CpuLeases:
    """The CPUs of this node that this process holds. To be made once in a process: closing any
    descriptor of the file gives all locks of the process away."""

    def __init__(self, path: Path) -> None:
        """Raises OSError when there can be no such file."""
        make_directory(path.parent)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._file = answered(partial(os.open, path, flags, 0o600))

    def take(self, cpus: Sequence[int]) -> list[int]:
        """All of the CPUs or none; returns those that somebody else holds: empty when taken.

        Never waits. Raises LeasesUnsupportedError where parts of a file cannot be locked, and
        OSError where it is not known now; then, too, none is taken, as far as can be done about it.
        """
        try:
            for first, last in _ranges(cpus):
                if self._lock(first, last - first + 1):
                    continue
                if held := [cpu for cpu in range(first, last + 1) if not self._lock(cpu, 1)]:
                    self.give_back(set(cpus).difference(held))
                    return held
        except (OSError, LeasesUnsupportedError):
            with contextlib.suppress(OSError):
                self.give_back(cpus)
            raise
        return []

    def _lock(self, first: int, count: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, count, first)
        except (BlockingIOError, PermissionError):  # POSIX allows EAGAIN and EACCES
            return False
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            raise LeasesUnsupportedError(error.strerror) from error
        return True

    def give_back(self, cpus: Iterable[int]) -> None:
        """Those that this process does not hold stay as they are. Raises OSError; then some may be
        held still, and it can be tried again."""
        for first, last in _ranges(cpus):
            fcntl.lockf(self._file, fcntl.LOCK_UN, last - first + 1, first)

    def close(self) -> None:
        os.close(self._file)
