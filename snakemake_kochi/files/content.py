"""The content of files: written as a whole, and read; JSON objects with a `version`."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

from snakemake_kochi.errors import DamagedFileError, printable
from snakemake_kochi.files.calls import (
    answered,
    lacks_room,
    sync,
    sync_directory,
)
from snakemake_kochi.files.names import random_word

_PRIVATE = 0o600
# The mode of a person's file, less the bits that the umask removes.
OF_A_PERSON = 0o666
# Bytes. A smaller file may need no block of its own, and could be written although the disk is
# full.
_PAGE = 4096
# Bytes that are read at once; much more is taken from the kernel, and given back, each time.
BLOCK = 1 << 16
# Of contents that are often large, read in no short process.
LARGE_BLOCK = 1 << 20
# The errors when files cannot be linked, within a directory or between two directories.
LINK_REFUSED = frozenset({errno.EPERM, errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK})
_MOST_OF_LINE = 500  # characters of the line of a log in a message
# `indent` is not set: it would select the encoder written in Python, ten times slower.
_encode = json.JSONEncoder(ensure_ascii=False).encode


def read_file(path: Path | str) -> bytes:
    """The content of a file. Raises OSError.

    With four calls of the kernel; an open file of Python makes nine.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Joined at the end: to add each part to the others would copy them each time.
        parts = [os.read(descriptor, BLOCK)]
        while part := os.read(descriptor, BLOCK):
            parts.append(part)
        return b"".join(parts)
    except OSError as error:
        error.filename = os.fspath(path)  # of a directory, or of what a server does not answer
        raise
    finally:
        os.close(descriptor)


def blocks_of(stream: IO[bytes], size: int = BLOCK) -> Iterator[bytes]:
    """The rest of an open file, in blocks of so many bytes at most."""
    while block := stream.read(size):
        yield block


def copy_stream(reader: IO[bytes], writer: IO[bytes], size: int = BLOCK) -> int:
    """Copy the rest of an open file into another, in such blocks; return the number of bytes."""
    copied = 0
    for block in blocks_of(reader, size):
        copied += len(block)
        while block:
            block = block[writer.write(block) :]
    return copied


def copy_file(source: Path, target: Path) -> None:
    """Copy the content of a file to another, which is made, or emptied first. Not by `shutil`: see
    `remove_tree`.

    Raises OSError, also if both are the same file by a link: it would be emptied.
    """
    with source.open("rb", buffering=0) as reader:
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(reader.fileno()), os.stat(target)):
                raise OSError(errno.EINVAL, "it would be copied to itself", str(source))
        with target.open("wb", buffering=0) as writer:
            copy_stream(reader, writer)


def write_file(path: Path | str, content: bytes) -> None:
    """Write a file that no other process reads yet, over an old one if there is one.

    Raises OSError; then the file may have a part. A Python object around an open file takes longer
    than its few bytes.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    descriptor = os.open(path, flags, OF_A_PERSON)
    try:
        try:
            while content:
                content = content[os.write(descriptor, content) :]
        finally:
            os.close(descriptor)
    except OSError as error:
        error.filename = os.fspath(path)  # also that of the close: NFS writes only then
        raise


def has_room(directory: Path) -> bool:
    """Whether a small file can be written in a directory. Raises OSError when that is unknown now.

    The call tries it, because no system call tells on all filesystems how much a user's quota
    leaves.
    """
    try:
        _write_temporary(directory / "room", bytes(_PAGE), durable=False).unlink(missing_ok=True)
    except OSError as error:
        if not lacks_room(error):
            raise
        return False
    return True


def write_new(
    path: Path | str, content: bytes, durable: bool = False, mode: int = _PRIVATE
) -> None:
    """Write a new file at a path that no process reads yet, all of it or none.

    Its mode is `mode`, less the bits that the umask removes. Raises FileExistsError when the file
    exists.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(content)
            if durable:
                stream.flush()
                sync(stream.fileno())
    except BaseException as error:
        # A full disk is reported here: no half-written file may stay behind.
        os.unlink(path)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = os.fspath(path)  # the error of a write does not name the file
        raise


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name[:200]}.{random_word()}.tmp")


def _write_temporary(path: Path, content: bytes, durable: bool, mode: int = _PRIVATE) -> Path:
    temporary = _beside(path)
    write_new(temporary, content, durable, mode)
    return temporary


def write_atomically(path: Path, content: bytes, durable: bool = False) -> None:
    """Replace a file as a whole; readers see the old content or the new, never a mixture.

    With `durable`, the content is on the disk before the name is.
    """
    _put(_write_temporary(path, content, durable), path)


def edit_atomically(path: Path, content: bytes) -> None:
    """Replace a person's file as a whole, or make it; after a failure, nothing has changed.

    The file keeps its mode, and a symbolic link keeps its target.
    """
    target = path.resolve()
    try:
        mode = stat.S_IMODE(target.stat().st_mode)
        temporary = _write_temporary(target, content, durable=True, mode=mode)
        with contextlib.suppress(PermissionError):  # the mount may fix the modes
            temporary.chmod(mode)
    except FileNotFoundError:
        temporary = _write_temporary(target, content, durable=True, mode=OF_A_PERSON)
    _put(temporary, target)


def _put(temporary: Path, path: Path) -> None:
    try:
        answered(partial(os.replace, temporary, path))
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_exclusively(path: Path, content: bytes, durable: bool = False) -> bool:
    """Create a file that must not exist yet; return False, and change nothing, if it exists.

    link(2) fails for the second of two writers on every filesystem, including NFS. Unlike O_EXCL,
    which serves where there are no hard links, it never shows an empty file to a reader.
    """
    temporary = _write_temporary(path, content, durable)
    try:
        return _link(temporary, path)
    except OSError as error:
        if error.errno not in LINK_REFUSED:
            raise
    finally:
        temporary.unlink(missing_ok=True)
    with contextlib.suppress(FileExistsError):
        write_new(path, content, durable)
        return True
    return False


def _link(source: Path, path: Path) -> bool:
    """Give a file a second name; return False if that name exists already."""
    try:
        answered(partial(os.link, source, path))
    except FileExistsError:
        # NFS also reports this when the link was made and the answer got lost; then the file is
        # ours.
        with contextlib.suppress(FileNotFoundError):
            return os.path.samefile(source, path)
        return False
    return True


def write_last(path: Path, content: bytes, tree: Path) -> None:
    """Write a file which says that the directory `tree` around it is complete. Raises OSError.

    The file is on the disk after all the content of the tree. One syncfs(2) does that: to fsync
    each of three thousand small files took 25 times as long. The call also waits for data that
    others have just written to the same filesystem.
    """
    import subprocess

    done = subprocess.run(["sync", "-f", tree], capture_output=True, check=False)
    if done.returncode != 0:
        said = os.fsdecode(done.stderr).strip() or f"status {done.returncode}"
        raise OSError(errno.EIO, f"not written to the disk: sync: {said}", os.fspath(tree))
    write_atomically(path, content, durable=True)
    sync_directory(path.parent)


def to_json(data: Mapping[str, Any]) -> bytes:
    """JSON for people: an object with a line for each key.

    The keys are not sorted; their order is the order of reading.
    """
    lines = [f" {_encode(key)}: {_encode(value)}" for key, value in data.items()]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    return text.encode("utf-8", "surrogateescape")


def read_json(path: Path, version: int | None = None, is_ours: bool = False) -> dict[str, Any]:
    """Read a JSON object of this program; with `is_ours`, only if this user owns the file.

    The owner is determined from the open file. Raises FileNotFoundError when the file does not
    exist. Raises DamagedFileError when it is not a JSON object, when its "version" is newer than
    `version`, or when another user has put it there.
    """
    content = _content_of_ours(path) if is_ours else answered(partial(read_file, path))
    return parse_json(content, path, version)


def parse_json(content: bytes, path: Path, version: int | None = None) -> dict[str, Any]:
    """The JSON object that a file of this program has; `path` is for messages.

    Raises DamagedFileError as `read_json`.
    """
    try:
        data = _decode(content.decode("utf-8", "surrogateescape"))
        if b"\\ud" in content.lower():
            _encode(data).encode("utf-8", "surrogateescape")  # half a character: no name of a file
    except ValueError as error:
        raise DamagedFileError(f"{path}: not valid JSON ({error})") from error
    except RecursionError:
        raise DamagedFileError(f"{path}: not valid JSON (nested too deeply)") from None
    if not isinstance(data, dict):
        raise DamagedFileError(f"{path}: a JSON object was expected, not {type(data).__name__}")
    if version is not None:
        found = data.get("version")
        if not isinstance(found, int):
            raise DamagedFileError(f"{path}: key 'version' is missing or not a number")
        if found > version:
            raise DamagedFileError(
                f"{path}: written by a newer snakemake_kochi (format {found}, this one reads "
                f"up to {version})",
                "Install a newer snakemake_kochi.",
            )
    return data


def _content_of_ours(path: Path) -> bytes:
    # No link is followed, because it may lead to another file of this user. O_NONBLOCK avoids
    # waiting for a writer to a FIFO.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

    def read() -> bytes:
        try:
            descriptor = os.open(path, flags)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise DamagedFileError(f"{path}: a file was expected, not a link") from error
            raise
        with open(descriptor, "rb") as stream:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise DamagedFileError(f"{path}: a regular file was expected")
            if found.st_uid != os.geteuid():
                raise DamagedFileError(
                    f"{path}: the file belongs to user {found.st_uid}, not to you, and is not used"
                )
            return stream.read()

    return answered(read)


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:20]} is too large")
    return number


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a number")


# With these, no number in a file is infinite or NaN.
_decode = json.JSONDecoder(parse_float=_finite, parse_constant=_no_number).decode


def last_lines(path: Path, count: int) -> list[str]:
    """The last lines of a log for a message, printable and at most 500 characters long each; none
    if it cannot be read.

    The log is read from its end, because it may be large.
    """
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - 16384))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [printable(line.expandtabs(), _MOST_OF_LINE) for line in text.splitlines()[-count:]]
