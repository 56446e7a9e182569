"""Writing files as a whole: new ones, replacements, and the last file of a tree."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from functools import partial
from pathlib import Path

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files.calls import (
    answered,
    lacks_room,
    sync,
    sync_directory,
)

_PRIVATE = 0o600


# The mode of a person's file, less the bits that the umask removes.
OF_A_PERSON = 0o666


# Bytes. A smaller file may need no block of its own, and could be written although the disk is
# full.
_PAGE = 4096


# The errors when files cannot be linked, within a directory or between two directories.
LINK_REFUSED = frozenset({errno.EPERM, errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK})


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


def _write_temporary(path: Path, content: bytes, durable: bool, mode: int = _PRIVATE) -> Path:
    temporary = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.tmp")
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
    it never shows an empty file to a reader. Raises KochiError on a filesystem without hard links,
    because there is no substitute for them.
    """
    temporary = _write_temporary(path, content, durable)
    try:
        answered(partial(os.link, temporary, path))
    except FileExistsError:
        # NFS also reports this when the link was made and the answer got lost; then the file is
        # ours.
        with contextlib.suppress(FileNotFoundError):
            return os.path.samefile(temporary, path)
        return False
    except OSError as error:
        if error.errno in LINK_REFUSED:
            raise _no_links(path.parent, error) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _no_links(directory: Path, error: OSError) -> KochiError:
    return KochiError(
        f"the filesystem of {directory} has no hard links (link: {error.strerror}), by which two "
        "processes tell who was first",
        "Choose a KOCHI_ROOT on another one, which all nodes share. To examine it: kochi doctor",
    )


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
        raise OSError(errno.EIO, f"not on the disk, sync says: {said}", os.fspath(tree))
    write_atomically(path, content, durable=True)
    sync_directory(path.parent)


def link_atomically(path: Path, target: Path) -> None:
    """Replace the file at `path` with a symbolic link to `target`, relative."""
    temporary = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.tmp")
    temporary.symlink_to(os.path.relpath(target, path.parent))
    try:
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
