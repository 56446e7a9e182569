"""FUSE as the kernel speaks it (linux/fuse.h, version 7.31): requests, and answers that are late.

libfuse has one thread for each answer that is late, and one time-out for all names. Here one thread
reads a request, has it done at once, and keeps the answer until it is due. So no operation holds
another one up.
"""

from __future__ import annotations

import errno
import heapq
import os
import socket
import stat
import struct
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass

ROOT = 1

# The numbers of requests.
LOOKUP, FORGET, GETATTR, SETATTR, READLINK, SYMLINK = 1, 2, 3, 4, 5, 6
MKNOD, MKDIR, UNLINK, RMDIR, RENAME, LINK = 8, 9, 10, 11, 12, 13
OPEN, READ, WRITE, STATFS, RELEASE, FSYNC = 14, 15, 16, 17, 18, 20
INIT, OPENDIR, READDIR, RELEASEDIR, FSYNCDIR = 26, 27, 28, 29, 30
SETLK, SETLKW, CREATE, INTERRUPT, DESTROY, BATCH_FORGET = 32, 33, 35, 36, 38, 42

# What SETATTR sets.
MODE, UID, GID, SIZE, ATIME, MTIME, HANDLE, ATIME_NOW, MTIME_NOW = (1 << bit for bit in range(9))
IS_FLOCK = 1

_LARGEST_WRITE = 1 << 17
_HEADER = struct.Struct("<IIQQIIIHH")
_ANSWER = struct.Struct("<IiQ")
_ATTRIBUTES = struct.Struct("<6Q10I")
_ENTRY = struct.Struct("<4Q2I")
_INIT = struct.Struct("<4I2H2I2H8I")
# ATOMIC_O_TRUNC, BIG_WRITES, FLOCK_LOCKS, PARALLEL_DIROPS
_CAPABILITIES = 1 << 3 | 1 << 5 | 1 << 10 | 1 << 18


class UnmountedError(Exception):
    """The filesystem is not mounted any more."""


@dataclass(frozen=True)
class Request:
    """`call` is one of the numbers above, `node` the number of a file or directory, and `process`
    the thread that asks."""

    call: int
    unique: int
    node: int
    process: int
    body: bytes

    def names(self, offset: int = 0) -> list[str]:
        """The names in the body, after `offset` bytes of other values."""
        return [os.fsdecode(name) for name in self.body[offset:].split(b"\0")[:-1]]

    def forgotten(self) -> list[tuple[int, int]]:
        """Nodes that the kernel forgets, and how many of its lookups of each."""
        if self.call == FORGET:
            return [(self.node, struct.unpack_from("<Q", self.body)[0])]
        (count,) = struct.unpack_from("<I", self.body)
        pairs = struct.unpack_from(f"<{2 * count}Q", self.body, 8)
        return list(zip(pairs[::2], pairs[1::2], strict=True))


class Device:
    """A filesystem that is mounted at `mountpoint`, as fusermount3 does it for a user."""

    def __init__(self, mountpoint: str) -> None:
        self._mountpoint = mountpoint
        self._late: list[tuple[float, int, bytes]] = []
        ours, its = socket.socketpair()
        with ours, its:
            subprocess.run(
                ["fusermount3", "-o", "fsname=slow,subtype=slow", "--", mountpoint],
                env={**os.environ, "_FUSE_COMMFD": str(its.fileno())},
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
                check=True,
            )
            _, (self._device,), _, _ = socket.recv_fds(ours, 1, 1)

    def fileno(self) -> int:
        return self._device

    def unmount(self) -> None:
        # Lazily: somebody may have files open there.
        subprocess.run(["fusermount3", "-u", "-z", self._mountpoint], check=False)

    def receive(self) -> Request | None:
        """The next request for the filesystem, if there is one. Raises UnmountedError."""
        try:
            data = os.read(self._device, _LARGEST_WRITE + 4096)
        except OSError as error:
            if error.errno == errno.ENODEV:
                raise UnmountedError from None
            if error.errno not in (errno.ENOENT, errno.EAGAIN, errno.EINTR):
                raise
            return None  # the request was given up meanwhile
        _, call, unique, node, _, _, process, _, _ = _HEADER.unpack_from(data)
        request = Request(call, unique, node, process, data[_HEADER.size :])
        if call == INIT:
            _, minor, readahead, flags = struct.unpack_from("<4I", request.body)
            sizes = (64, 48, _LARGEST_WRITE, 1, 0, 0, *[0] * 8)
            self.answer(
                request, _INIT.pack(7, min(minor, 31), readahead, flags & _CAPABILITIES, *sizes)
            )
            return None
        if call == DESTROY:
            self.answer(request, b"")
            return None
        return request

    def answer(self, request: Request, payload: bytes, error: int = 0, delay: float = 0.0) -> None:
        """Answer in `delay` seconds. `error`: an errno."""
        size = _ANSWER.size + len(payload)
        answer = _ANSWER.pack(size, -error, request.unique) + payload
        if delay:
            heapq.heappush(self._late, (time.monotonic() + delay, request.unique, answer))
        else:
            self._send(answer)

    def send_due(self, now: float) -> None:
        """Send the answers that are due by `now`, in seconds of the monotonic clock."""
        while self._late and self._late[0][0] <= now:
            self._send(heapq.heappop(self._late)[2])

    @property
    def next_due(self) -> float:
        """When the next answer is due. Infinite if there is none."""
        return self._late[0][0] if self._late else float("inf")

    def _send(self, answer: bytes) -> None:
        try:
            os.write(self._device, answer)
        except OSError as error:
            # The caller was killed, or the filesystem is unmounted.
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise


def attributes(found: os.stat_result) -> bytes:
    times = (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)
    return _ATTRIBUTES.pack(
        *(found.st_ino, found.st_size, found.st_blocks),
        *(each // 10**9 for each in times),
        *(each % 10**9 for each in times),
        *(found.st_mode, found.st_nlink, found.st_uid, found.st_gid, found.st_rdev),
        *(found.st_blksize, 0),
    )


def entry(node: int, name_kept: float, kept: float, found: os.stat_result) -> bytes:
    """The answer to a lookup. The kernel keeps the name for `name_kept` seconds, and the attributes
    for `kept` seconds."""
    (name_seconds, name_rest), (seconds, rest) = _parts(name_kept), _parts(kept)
    return _ENTRY.pack(node, 0, name_seconds, seconds, name_rest, rest) + attributes(found)


def status(kept: float, found: os.stat_result) -> bytes:
    """The answer to GETATTR and SETATTR; the kernel keeps it for `kept` seconds."""
    return struct.pack("<Q2I", *_parts(kept), 0) + attributes(found)


def opened(handle: int) -> bytes:
    return struct.pack("<Q2I", handle, 0, 0)


def listing(names: Iterable[tuple[str, int, int]]) -> bytes:
    """A directory, as names, inode numbers and `st_mode`."""
    made = bytearray()
    for name, inode, mode in names:
        text = os.fsencode(name)
        padded = text.ljust(-(-len(text) // 8) * 8, b"\0")
        # The offset of an entry is where the next one begins.
        following = len(made) + 24 + len(padded)
        made += struct.pack("<2Q2I", inode, following, len(text), stat.S_IFMT(mode) >> 12)
        made += padded
    return bytes(made)


def part(made: bytes, offset: int, size: int) -> bytes:
    """The entries of a listing from `offset`, of at most `size` bytes."""
    end = offset
    while end < len(made):
        (following,) = struct.unpack_from("<Q", made, end + 8)
        if following - offset > size:
            break
        end = following
    return made[offset:end]


def _parts(seconds: float) -> tuple[int, int]:
    nanoseconds = int(1e9 * seconds)
    return nanoseconds // 10**9, nanoseconds % 10**9
