"""Copies of files and of small directories, without a process for each, and their removal.

Not by `shutil`, which loads three compression libraries: a process that has them is copied slower,
for each short run.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from snakemake_kochi.files.content import BLOCK, copy_stream

# Beyond these, cp(1) is faster, and shares blocks where the filesystem can.
_MOST_ENTRIES = 50
_MOST_BYTES = 1 << 20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DEFAULT_ACL = "system.posix_acl_default"  # acl(5)


def copy_small_tree(source: Path, target: Path) -> bool:
    """Copy a directory to a new place as `cp -a` does; False, and nothing is there, if that is left
    to cp.

    It is left for a tree that is not small, has hard links, devices or pipes, belongs to somebody
    else, or cannot be copied: cp says why.
    """
    try:
        entries = _entries(source)
    except OSError:
        return False
    if entries is None or os.path.lexists(target):
        return False
    try:
        if _copy_all(entries, os.fspath(source), os.fspath(target)):
            return True
    except OSError:
        pass
    remove_tree(target)
    return False


def remove_tree(directory: Path | str) -> None:
    """Remove a directory and all in it, as far as that is possible now.

    No link is followed, also not one that takes the place of a directory meanwhile: processes that
    a script has left may go on in its workspace.
    """
    with suppress(OSError):
        _remove(os.fspath(directory), None)


def _remove(name: str, above: int | None) -> None:
    descriptor = os.open(name, _DIRECTORY, dir_fd=above)
    try:
        with os.scandir(descriptor) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for inner, is_directory in found:
            with suppress(OSError):
                if is_directory:
                    _remove(inner, descriptor)
                else:
                    os.unlink(inner, dir_fd=descriptor)
    finally:
        os.close(descriptor)
    os.rmdir(name, dir_fd=above)


def copy_file(source: Path, target: Path) -> None:
    """Copy the content of a file to another, which is made, or emptied first.

    Raises OSError, also if both are the same file by a link: it would be emptied.
    """
    with source.open("rb", buffering=0) as reader:
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(reader.fileno()), os.stat(target)):
                raise OSError(errno.EINVAL, "it would be copied to itself", str(source))
        with target.open("wb", buffering=0) as writer:
            copy_stream(reader, writer)


def _entries(source: Path) -> list[tuple[str, os.stat_result]] | None:
    """What is in a directory and below, by paths relative to it, itself first as ""; None if it is
    not copied here."""
    found = []
    own, size = (os.geteuid(), os.getegid()), 0
    for name, state in _walk(os.fspath(source), "", os.lstat(source)):
        is_file = stat.S_ISREG(state.st_mode)
        size += state.st_size if is_file else 0
        is_simple = stat.S_ISDIR(state.st_mode) or stat.S_ISLNK(state.st_mode)
        if not is_simple and not (is_file and state.st_nlink == 1):
            return None
        if (state.st_uid, state.st_gid) != own or size > _MOST_BYTES:
            return None
        found.append((name, state))
        if len(found) > _MOST_ENTRIES:
            return None
    return found


def _walk(top: str, inner: str, state: os.stat_result) -> Iterator[tuple[str, os.stat_result]]:
    yield inner, state
    if stat.S_ISDIR(state.st_mode):
        with os.scandir(top + inner) as entries:
            for entry in entries:
                below = f"{inner}/{entry.name}"
                yield from _walk(top, below, entry.stat(follow_symlinks=False))


def _copy_all(entries: list[tuple[str, os.stat_result]], source: str, target: str) -> bool:
    directories = []
    for name, state in entries:
        if stat.S_ISDIR(state.st_mode):
            os.mkdir(target + name, 0o700)
            if not name and not _is_as_expected(target):
                return False
            directories.append((name, state))
        elif stat.S_ISLNK(state.st_mode):
            os.symlink(os.readlink(source + name), target + name)
            os.utime(
                target + name, ns=(state.st_atime_ns, state.st_mtime_ns), follow_symlinks=False
            )
            _copy_attributes(source + name, target + name)
        else:
            _copy_file(source + name, target + name, state)
    # Their times change while something is made in them, and they may not be writable afterwards.
    for name, state in reversed(directories):
        _copy_attributes(source + name, target + name)
        os.utime(target + name, ns=(state.st_atime_ns, state.st_mtime_ns))
        os.chmod(target + name, stat.S_IMODE(state.st_mode))
    return True


def _is_as_expected(new: str) -> bool:
    """Whether what is made in this new directory gets the group of this process, and no rights of
    others."""
    return os.lstat(new).st_gid == os.getegid() and _DEFAULT_ACL not in _attributes(new)


def _copy_file(source: str, target: str, state: os.stat_result) -> None:
    reader = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            while block := os.read(reader, min(state.st_size + 1, BLOCK)):
                while block:
                    block = block[os.write(writer, block) :]
            _copy_attributes(reader, writer)
            os.utime(writer, ns=(state.st_atime_ns, state.st_mtime_ns))
            os.fchmod(writer, stat.S_IMODE(state.st_mode))
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def _copy_attributes(source: str | int, target: str | int) -> None:
    """As cp does it, which ignores those that the target cannot have."""
    follow = isinstance(source, int)
    for name in _attributes(source):
        with suppress(OSError):
            value = os.getxattr(source, name, follow_symlinks=follow)
            os.setxattr(target, name, value, follow_symlinks=follow)


def _attributes(file: str | int) -> list[str]:
    try:
        return os.listxattr(file, follow_symlinks=isinstance(file, int))
    except OSError:  # the filesystem has none
        return []
