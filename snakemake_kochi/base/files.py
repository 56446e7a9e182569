"""Calls of a filesystem that several nodes share: those of `tickets` and the loop of a worker.

The simulator replaces those of the first half, in tests: call them as `files.move()`, never keep
one. Every call raises OSError. After an error nobody knows whether the call was done: see
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


def listed(directory: str) -> list[str]:
    return os.listdir(directory)


def move(source: str, target: str) -> None:
    """Rename, in place of what had the name."""
    os.rename(source, target)


def make(directory: str) -> None:
    """Make one directory that only the user may enter."""
    os.mkdir(directory, 0o700)
    # Where access control lists are inherited (GPFS, Isilon, ZFS), it has another mode.
    with suppress(OSError):
        if (mode := os.lstat(directory).st_mode) & 0o077:
            os.chmod(directory, stat.S_IMODE(mode) & ~0o077)


def write(path: str, data: bytes, flags: int, sync: bool) -> None:
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


def open_end(path: str) -> int:
    """The descriptor of a file, made if it is not there, that processes write to at its end."""
    return os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600)


def close(number: int) -> None:
    os.close(number)


def read(path: str, most: int = -1) -> bytes:
    """The content of a file, or the beginning of it: `most` bytes."""
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    with open(number, "rb") as file:  # it asks for the size: GlusterFS may have an old one
        return file.read(most)


@contextmanager
def mapped(path: str) -> Iterator[bytes | mmap.mmap]:
    """The content of a file of which a part is read, perhaps the last one."""
    with open(path, "rb") as file:
        if not file.seek(0, os.SEEK_END):
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


def try_lock(path: str) -> int | None:
    number = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(number)
        return None
    return number


def unlock(number: int) -> None:
    os.close(number)


def unlink(path: str) -> None:
    os.unlink(path)


def rmdir(path: str) -> None:
    """Remove an empty directory."""
    os.rmdir(path)


def sync_names(directory: str) -> None:
    number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fsync(number)
    finally:
        os.close(number)


# ---- of these


def names(directory: str) -> list[str]:
    """The names in a directory, in no order. The system may list one twice that moves meanwhile."""
    return list(dict.fromkeys(listed(directory)))


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


def write_new(path: str, data: bytes, sync: bool = False) -> None:
    """Write a file that does not exist. `sync`: wait until the disk has it."""
    write(path, data, os.O_CREAT | os.O_EXCL, sync)


def overwrite(path: str, data: bytes) -> None:
    """Write over the beginning of a file. Data of one length and one call are read whole."""
    write(path, data, os.O_CREAT, False)


def append(path: str, data: bytes, sync: bool = False) -> None:
    """Write at the end of a file that exists. `sync`: wait until the disk has it."""
    write(path, data, os.O_APPEND, sync)


@contextmanager
def tried_lock(path: str) -> Iterator[bool]:
    """Whether the lock was free, and is held; False, too, where there are no locks.

    Some filesystems keep a lock on its node: nothing may depend on it.
    """
    number = None
    with suppress(OSError):
        number = try_lock(path)
    try:
        yield number is not None
    finally:
        if number is not None:
            with suppress(OSError):
                unlock(number)


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
        sync_names(directory)
