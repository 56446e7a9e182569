"""Calls of a filesystem that several nodes share: all that `tickets` and the loop of a worker make.

Every call raises OSError. After an error nobody knows whether the call was done: see
`tickets.moving`.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from snakemake_kochi.files import sync as fsync  # nothing, where there is no such call


class Disk:
    """The operating system's calls."""

    def names(self, directory: str) -> list[str]:
        return os.listdir(directory)

    def move(self, source: str, target: str) -> None:
        os.rename(source, target)

    def make(self, directory: str) -> None:
        os.mkdir(directory, 0o700)
        # Where access control lists are inherited (GPFS, Isilon, ZFS), it has another mode.
        with suppress(OSError):
            if (mode := os.lstat(directory).st_mode) & 0o077:
                os.chmod(directory, stat.S_IMODE(mode) & ~0o077)

    def write(self, path: str, data: bytes, flags: int, sync: bool) -> None:
        number = os.open(path, flags | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            while data:
                data = data[os.write(number, data) :]
            if sync:
                fsync(number)
        except OSError as error:
            error.filename = path  # which write(2) and fsync(2) do not know
            raise
        finally:
            os.close(number)

    def open_end(self, path: str) -> int:
        return os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600)

    def close(self, number: int) -> None:
        os.close(number)

    def read(self, path: str, most: int = -1) -> bytes:
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with open(number, "rb") as file:
            return file.read(most)

    @contextmanager
    def mapped(self, path: str) -> Iterator[bytes | mmap.mmap]:
        with open(path, "rb") as file:
            if not file.seek(0, os.SEEK_END):
                yield b""
                return
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                yield data

    def try_lock(self, path: str) -> int | None:
        number = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(number)
            return None
        return number

    def unlock(self, number: int) -> None:
        os.close(number)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def sync(self, directory: str) -> None:
        number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fsync(number)
        finally:
            os.close(number)


disk = Disk()  # the simulator's, in tests


def names(directory: str) -> list[str]:
    """The names in a directory, in no order. The system may list one twice that moves meanwhile."""
    return list(dict.fromkeys(disk.names(directory)))


def move(source: str, target: str) -> None:
    """Rename, in place of what had the name."""
    disk.move(source, target)


def parse(data: bytes) -> dict[str, Any]:
    """The object of a JSON text. Raises ValueError, also if it is nested too deeply."""
    try:
        found = json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError("a JSON object was expected")
    if b"\\ud" in data.lower():  # half a character cannot be shown, and is in no name of a file
        json.dumps(found, ensure_ascii=False).encode("utf-8", "surrogateescape")
    return found


def make(directory: str) -> None:
    """Make one directory that only the user may enter."""
    disk.make(directory)


def write_new(path: str, data: bytes, sync: bool = False) -> None:
    """Write a file that does not exist. `sync`: wait until the disk has it."""
    disk.write(path, data, os.O_CREAT | os.O_EXCL, sync)


def overwrite(path: str, data: bytes) -> None:
    """Write over the beginning of a file. Data of one length and one call are read whole."""
    disk.write(path, data, os.O_CREAT, False)


def append(path: str, data: bytes, sync: bool = False) -> None:
    """Write at the end of a file that exists. `sync`: wait until the disk has it."""
    disk.write(path, data, os.O_APPEND, sync)


def open_end(path: str) -> int:
    """The descriptor of a file, made if it is not there, that processes write to at its end."""
    return disk.open_end(path)


def close(number: int) -> None:
    disk.close(number)


@contextmanager
def mapped(path: str) -> Iterator[bytes | mmap.mmap]:
    """The content of a file of which a part is read, perhaps the last one."""
    with disk.mapped(path) as data:
        yield data


def read(path: str, most: int = -1) -> bytes:
    """The content of a file, or the beginning of it: `most` bytes."""
    return disk.read(path, most)


@contextmanager
def tried_lock(path: str) -> Iterator[bool]:
    """Whether the lock was free, and is held; False, too, where there are no locks.

    Some filesystems keep a lock on its node: nothing may depend on it.
    """
    number = None
    with suppress(OSError):
        number = disk.try_lock(path)
    try:
        yield number is not None
    finally:
        if number is not None:
            with suppress(OSError):
                disk.unlock(number)


def unlink(path: str) -> None:
    disk.unlink(path)


def rmdir(path: str) -> None:
    """Remove an empty directory."""
    disk.rmdir(path)


def make_below(directory: str, *names: str) -> None:
    """Make a directory in a directory that is there, and so on. What is there already, stays.

    Never makes `directory` itself: where a mount is missing, nobody else would see it.
    """
    for name in names:
        directory = f"{directory}/{name}"
        with suppress(FileExistsError):
            make(directory)


def sync(directory: str) -> None:
    """Wait until the disk has the names of a directory, where the filesystem can."""
    with suppress(OSError):
        disk.sync(directory)
