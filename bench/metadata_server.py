"""The process of a slow filesystem: it passes a directory through FUSE, with late answers.

A program: BACKING MOUNTPOINT DELAY CACHE_SECONDS ROLES. It ends with its standard input. A line
there is a question: a number sets the delay in seconds, and has all answered that waits; an empty
line only asks. The answer is a line of JSON with the operations counted since the last one:
`[[area, role, operation, count], ...]`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import select
import stat
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from pass_through import PassThrough

from bench import fuse_protocol as fuse
from bench.fuse_nodes import Nodes
from bench.fuse_protocol import Device, Request

# Clients of network filesystems keep the names of directories for a while: NFS for 30 s, others as
# long as nobody changes them. Without that, each name of a path would be asked for each time.
_DIRECTORY_SECONDS = 30.0
# What an answer says of a file serves the call that asked, and one that directly follows.
_SHORTLY = 0.01
_LOCK_RETRY = 0.005
_SETATTR = struct.Struct("<2I6Q8I")

Operation = Callable[[Request], bytes]


class _WaitsError(Exception):
    """The lock is held by somebody else."""


class Filesystem:
    """Does the requests of `device` in `backing`."""

    def __init__(
        self,
        device: Device,
        backing: str,
        delay: float,
        cache_seconds: float,
        roles: list[tuple[str, str]],
    ) -> None:
        self._device = device
        self._calls = PassThrough(backing)
        self._backing = backing
        self._delay, self._cache_seconds = delay, cache_seconds
        self._roles = roles
        self._nodes = Nodes()
        self._listings: dict[int, bytes] = {}
        self._next_listing = 1
        self._waiting: list[tuple[Request, str, Operation]] = []
        self.counts: Counter[tuple[str, str, str]] = Counter()
        # An operation without a name waits for no file server, or is no matter of metadata.
        self._operations: dict[int, tuple[str, Operation]] = {
            fuse.LOOKUP: ("lookup", self._lookup),
            fuse.GETATTR: ("getattr", self._getattr),
            fuse.SETATTR: ("setattr", self._setattr),
            fuse.READLINK: ("readlink", self._readlink),
            fuse.SYMLINK: ("symlink", self._symlink),
            fuse.MKNOD: ("mknod", self._mknod),
            fuse.MKDIR: ("mkdir", self._mkdir),
            fuse.UNLINK: ("unlink", self._unlink),
            fuse.RMDIR: ("rmdir", self._rmdir),
            fuse.RENAME: ("rename", self._rename),
            fuse.LINK: ("link", self._link),
            fuse.OPEN: ("open", self._open),
            fuse.READ: ("", self._read),
            fuse.WRITE: ("", self._write),
            fuse.STATFS: ("statfs", self._statfs),
            fuse.RELEASE: ("", self._release),
            fuse.FSYNC: ("fsync", self._fsync),
            fuse.OPENDIR: ("", self._opendir),
            fuse.READDIR: ("readdir", self._readdir),
            fuse.RELEASEDIR: ("", self._releasedir),
            fuse.FSYNCDIR: ("", lambda _: b""),
            fuse.SETLK: ("flock", self._flock),
            fuse.SETLKW: ("flock", self._wait_for_flock),
            fuse.CREATE: ("create", self._create),
        }

    # ---- requests and answers

    def set_delay(self, seconds: float) -> None:
        self._delay = seconds
        self._device.send_due(float("inf"))

    def seconds_until_due(self) -> float | None:
        due = self._device.next_due - time.monotonic()
        seconds = max(0.0, min(due, _LOCK_RETRY if self._waiting else due))
        return None if seconds == float("inf") else seconds

    def work(self) -> None:
        """Send the answers that are due, and try the locks again that somebody waits for."""
        self._device.send_due(time.monotonic())
        waiting, self._waiting = self._waiting, []
        for request, name, operation in waiting:
            self._do(request, name, operation)

    def receive(self) -> None:
        request = self._device.receive()
        if request is None:
            return
        if request.call in (fuse.FORGET, fuse.BATCH_FORGET):
            for node, lookups in request.forgotten():
                self._nodes.forget(node, lookups)
        elif request.call == fuse.INTERRUPT:
            self._interrupt(*struct.unpack_from("<Q", request.body))
        elif request.call not in self._operations:
            self._device.answer(request, b"", errno.ENOSYS)
        else:
            name, operation = self._operations[request.call]
            if request.call == fuse.READDIR and struct.unpack_from("<2Q", request.body)[1]:
                name = ""  # the rest of a listing
            if name:
                self._count(request, name)
            self._do(request, name, operation)

    def _do(self, request: Request, name: str, operation: Operation) -> None:
        try:
            error, payload = 0, operation(request)
        except _WaitsError:
            self._waiting.append((request, name, operation))
            return
        except OSError as raised:
            error, payload = raised.errno or errno.EIO, b""
        self._device.answer(request, payload, error, self._delay if name else 0.0)

    def _interrupt(self, unique: int) -> None:
        """A process that waits for a lock has got a signal."""
        for each in self._waiting:
            if each[0].unique == unique:
                self._waiting.remove(each)
                self._device.answer(each[0], b"", errno.EINTR)
                return

    # ---- who asks for what

    def _count(self, request: Request, name: str) -> None:
        area = self._nodes.area(request.node)
        if not area and request.call == fuse.LOOKUP:
            (area,) = request.names()
        self.counts[area, self._role(request.process), name] += 1

    def _role(self, process: int) -> str:
        # Looked up each time: what a process forks has its words until it becomes another program.
        try:
            words = Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            words = ""
        return next((role for role, sign in self._roles if sign in words), "others")

    # ---- names

    def _path(self, number: int, name: str | None = None) -> str:
        return self._nodes.path(number, name)

    @property
    def _kept(self) -> float:
        return max(self._cache_seconds, self._delay + _SHORTLY)

    def _entry(self, parent: int, name: str) -> bytes:
        """The answer that gives a name a node."""
        found = os.lstat(self._backing + self._path(parent, name))
        number = self._nodes.look_up(parent, name, found.st_ino)
        name_kept = _DIRECTORY_SECONDS if stat.S_ISDIR(found.st_mode) else self._kept
        return fuse.entry(number, name_kept, self._kept, found)

    def _lookup(self, request: Request) -> bytes:
        return self._entry(request.node, request.names()[0])

    def _getattr(self, request: Request) -> bytes:
        handle = self._nodes.handle_of_removed(request.node)
        if handle is not None:
            return fuse.status(self._kept, os.fstat(handle))
        return fuse.status(self._kept, os.lstat(self._backing + self._path(request.node)))

    def _setattr(self, request: Request) -> bytes:
        fields = _SETATTR.unpack_from(request.body)
        valid, handle, size = fields[0], fields[2], fields[3]
        path = self._path(request.node)
        if valid & fuse.MODE:
            self._calls.chmod(path, fields[11])
        if valid & (fuse.UID | fuse.GID):
            uid = fields[13] if valid & fuse.UID else -1
            self._calls.chown(path, uid, fields[14] if valid & fuse.GID else -1)
        if valid & fuse.SIZE:
            self._calls.truncate(path, size, handle if valid & fuse.HANDLE else None)
        if valid & (fuse.ATIME | fuse.MTIME):
            old, now = os.lstat(self._backing + path), time.time_ns()
            atime, mtime = old.st_atime_ns, old.st_mtime_ns
            if valid & fuse.ATIME:
                atime = now if valid & fuse.ATIME_NOW else fields[5] * 10**9 + fields[8]
            if valid & fuse.MTIME:
                mtime = now if valid & fuse.MTIME_NOW else fields[6] * 10**9 + fields[9]
            self._calls.utimens(path, (atime, mtime))
        return self._getattr(request)

    def _readlink(self, request: Request) -> bytes:
        return os.fsencode(self._calls.readlink(self._path(request.node)))

    def _symlink(self, request: Request) -> bytes:
        name, target = request.names()
        self._calls.symlink(self._path(request.node, name), target)
        return self._entry(request.node, name)

    def _mknod(self, request: Request) -> bytes:
        mode, device = struct.unpack_from("<2I", request.body)
        (name,) = request.names(16)
        self._calls.mknod(self._path(request.node, name), mode, device)
        return self._entry(request.node, name)

    def _mkdir(self, request: Request) -> bytes:
        (mode,) = struct.unpack_from("<I", request.body)
        (name,) = request.names(8)
        self._calls.mkdir(self._path(request.node, name), mode)
        return self._entry(request.node, name)

    def _unlink(self, request: Request) -> bytes:
        (name,) = request.names()
        self._calls.unlink(self._path(request.node, name))
        self._nodes.remove(request.node, name)
        return b""

    def _rmdir(self, request: Request) -> bytes:
        (name,) = request.names()
        self._calls.rmdir(self._path(request.node, name))
        self._nodes.remove(request.node, name)
        return b""

    def _rename(self, request: Request) -> bytes:
        (there,) = struct.unpack_from("<Q", request.body)
        old, new = request.names(8)
        before, after = self._path(request.node, old), self._path(there, new)
        self._calls.rename(before, after)
        if os.path.lexists(self._backing + before):
            return b""  # two names of one file: nothing is done
        self._nodes.rename(request.node, old, there, new)
        return b""

    def _link(self, request: Request) -> bytes:
        (number,) = struct.unpack_from("<Q", request.body)
        (name,) = request.names(8)
        self._calls.link(self._path(request.node, name), self._path(number))
        return self._entry(request.node, name)

    # ---- open files

    def _open(self, request: Request) -> bytes:
        (flags,) = struct.unpack_from("<I", request.body)
        handle = self._calls.open(self._path(request.node), flags)
        self._nodes.opened(request.node, handle)
        return fuse.opened(handle)

    def _create(self, request: Request) -> bytes:
        flags, mode = struct.unpack_from("<2I", request.body)
        (name,) = request.names(16)
        path = self._backing + self._path(request.node, name)
        handle = os.open(path, flags & ~os.O_APPEND | os.O_CREAT, mode)
        number = self._nodes.look_up(request.node, name, os.fstat(handle).st_ino)
        self._nodes.opened(number, handle)
        return fuse.entry(number, self._kept, self._kept, os.fstat(handle)) + fuse.opened(handle)

    def _release(self, request: Request) -> bytes:
        (handle,) = struct.unpack_from("<Q", request.body)
        self._nodes.closed(request.node, handle)
        self._calls.release("", handle)
        return b""

    def _read(self, request: Request) -> bytes:
        handle, offset, size = struct.unpack_from("<2QI", request.body)
        return self._calls.read("", size, offset, handle)

    def _write(self, request: Request) -> bytes:
        handle, offset, size = struct.unpack_from("<2QI", request.body)
        written = self._calls.write("", request.body[40 : 40 + size], offset, handle)
        return struct.pack("<2I", written, 0)

    def _fsync(self, request: Request) -> bytes:
        (handle,) = struct.unpack_from("<Q", request.body)
        self._calls.fsync("", 0, handle)
        return b""

    def _statfs(self, request: Request) -> bytes:
        found = self._calls.statfs(self._path(request.node))
        blocks = ("f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree")
        sizes = ("f_bsize", "f_namemax", "f_frsize")
        values = [found[name] for name in (*blocks, *sizes)]
        return struct.pack("<5Q10I", *values, *[0] * 7)

    def _flock(self, request: Request) -> bytes:
        """Locks the file beneath, where all mounts of it meet."""
        handle, _, _, _, kind, _, flags = struct.unpack_from("<4Q3I", request.body)
        if not flags & fuse.IS_FLOCK:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        how = {fcntl.F_RDLCK: fcntl.LOCK_SH, fcntl.F_WRLCK: fcntl.LOCK_EX}.get(kind, fcntl.LOCK_UN)
        fcntl.flock(handle, how | fcntl.LOCK_NB)
        return b""

    def _wait_for_flock(self, request: Request) -> bytes:
        try:
            return self._flock(request)
        except BlockingIOError:
            raise _WaitsError from None

    # ---- directories

    def _opendir(self, request: Request) -> bytes:
        self._path(request.node)
        number, self._next_listing = self._next_listing, self._next_listing + 1
        return fuse.opened(number)

    def _readdir(self, request: Request) -> bytes:
        number, offset, size = struct.unpack_from("<2QI", request.body)
        if not offset:
            found = self._calls.readdir(self._path(request.node), 0)
            entries = ((name, each["st_ino"], each["st_mode"]) for name, each, _ in found)
            self._listings[number] = fuse.listing(entries)
        return fuse.part(self._listings[number], offset, size)

    def _releasedir(self, request: Request) -> bytes:
        (number,) = struct.unpack_from("<Q", request.body)
        self._listings.pop(number, None)
        return b""


def _serve(backing: str, mountpoint: str, delay: str, cache_seconds: str, roles: str) -> None:
    os.umask(0)
    with contextlib.suppress(PermissionError):
        os.nice(-10)  # a file server has processors of its own
    device = Device(mountpoint)
    try:
        served = Filesystem(device, backing, float(delay), float(cache_seconds), json.loads(roles))
        print("mounted", flush=True)
        with contextlib.suppress(fuse.UnmountedError):
            _loop(served, device)
    finally:
        device.unmount()


def _loop(served: Filesystem, device: Device) -> None:
    while True:
        ready, _, _ = select.select([device, sys.stdin], [], [], served.seconds_until_due())
        served.work()
        if device in ready:
            served.receive()
        if sys.stdin in ready:
            line = sys.stdin.readline()
            if not line:
                return
            if line.strip():
                served.set_delay(float(line))
            print(json.dumps([[*key, n] for key, n in served.counts.items()]), flush=True)
            served.counts.clear()


if __name__ == "__main__":
    _serve(*sys.argv[1:])
