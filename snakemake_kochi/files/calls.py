"""Filesystem calls that are repeated if that helps, and the meaning of their errors."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

from snakemake_kochi.files.names import random_word

Answer = TypeVar("Answer")

PRIVATE_DIRECTORY = 0o700
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Seconds. GlusterFS answers ESTALE for some tenths of a second after another node has replaced a
# file, and for longer while it heals.
_STALE_PATIENCE = 2.0
_STALE_PAUSE = 0.05
# How often the directory above a new one may vanish before that is an error.
_MOST_REMOVALS = 3
# The errors when there is no room, for all users or for this user.
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
# The errors of network filesystems while a server is away, or while another takes its place.
TRANSIENT = frozenset(
    {
        errno.ESTALE,
        errno.EIO,
        errno.EREMOTEIO,
        errno.ETIMEDOUT,
        errno.ENOTCONN,
        errno.ECONNRESET,
        errno.ECONNABORTED,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ESHUTDOWN,
    }
)


def answered(call: Callable[[], Answer]) -> Answer:
    """Make a call that may be repeated; repeat it after ESTALE, for two seconds at most.

    Raises what the call raises. An OSError other than FileNotFoundError means that the answer is
    unknown now.
    """
    until = time.monotonic() + _STALE_PATIENCE
    while True:
        try:
            return call()
        except OSError as error:
            if error.errno != errno.ESTALE or time.monotonic() > until:
                raise
        time.sleep(_STALE_PAUSE)


def is_there(path: Path | str) -> bool:
    """Whether a file or directory exists. Raises OSError when that is unknown now.

    Path.exists raises or returns False in that case, depending on the version of Python, and
    os.path.exists always returns False. A job whose result was not seen for a moment would then be
    run again.
    """
    try:
        answered(partial(os.stat, path))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def list_names(directory: Path | str) -> list[str]:
    """The names in a directory, in no order; none if there is no such directory.

    Raises OSError when they are unknown now.
    """
    try:
        return answered(partial(os.listdir, directory))
    except (FileNotFoundError, NotADirectoryError):
        return []


def note_use(path: Path) -> bool:
    """Give a file the present time, so that it counts as used now; False if it is gone."""
    try:
        answered(partial(os.utime, path))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass  # it is there, and counts as used when it was last
    return True


def modified(path: Path) -> float:
    """When a file or directory was changed, in seconds since the epoch. Raises OSError."""
    with contextlib.suppress(OSError):
        # Opened, because a network filesystem has the present times only of open files.
        descriptor = answered(partial(os.open, path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK))
        try:
            return os.fstat(descriptor).st_mtime
        finally:
            os.close(descriptor)
    return answered(path.lstat).st_mtime


def time_of_server(directory: Path) -> float:
    """The time of the file server, in seconds since the epoch; that of this host on a full disk."""
    with contextlib.suppress(OSError):
        return time_of_new_file(directory)
    return time.time()


def time_of_new_file(directory: Path) -> float:
    """The time that a file has which is made in a directory now. Raises OSError.

    Not by `tempfile`, which loads ten other modules, for each run.
    """
    name = None
    try:
        descriptor = os.open(directory, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    except OSError:  # not every filesystem has such files
        name = directory / f".{random_word(8)}.tmp"
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if name is not None:
            os.unlink(name)
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)


def is_removed(path: Path) -> bool:
    """Whether a file or directory that once existed has certainly been removed.

    Raises OSError when that is unknown now.
    """
    if is_there(path):
        return False
    # If the directory above is missing too, the filesystem is away and may come back. That
    # directory is listed because for up to a minute an NFS client believes that a name is missing
    # that it once did not find.
    return is_there(path.parent) and path.name not in list_names(path.parent)


def show_new_files(directory: Path | str) -> None:
    """Make files visible that other nodes have just made in a directory.

    An NFS client takes a name that it once did not find for missing for up to a minute. When a
    directory is opened, the client asks the server whether it has changed (close-to-open
    consistency, see nfs(5)), and then looks for such names again; so a listing shows them. A new
    directory is seen by listing the one above. If a directory cannot be listed, nothing changes.
    """
    path = os.fspath(directory) or os.curdir
    with contextlib.suppress(OSError):
        try:
            answered(partial(os.listdir, path))
        except FileNotFoundError:
            above = os.path.dirname(path)
            if above != path and path != os.curdir:
                show_new_files(above)
                os.listdir(path)


def move(source: Path | str, target: Path | str) -> None:
    """Rename a file or directory, to a target to which no other process moves anything.

    A network filesystem may rename it and lose the answer. For the repeated request, NFS then
    reports that there is no such file, and others report EIO. If the source no longer exists and
    the target does, the rename counts as done. Raises OSError when it was not done, or when that is
    unknown now.
    """
    try:
        answered(partial(os.rename, source, target))
    except OSError:
        if not _was_moved(source, target):
            raise


def _was_moved(source: Path | str, target: Path | str) -> bool:
    # A client that kept what it knew of these names would take an old answer for the present one.
    for path in (source, target):
        show_new_files(os.path.dirname(path))
    with contextlib.suppress(OSError):
        return not is_there(source) and is_there(target)
    return False


def sync(descriptor: int) -> None:
    """Make the content of an open file, or the names in an open directory, survive a power failure.

    On a filesystem without that call (EINVAL) it does nothing.
    """
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise


def sync_directory(directory: Path) -> None:
    """Put the names in a directory on the disk.

    Otherwise a power failure may remove a name although its content is safe.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> Path:
    """Create a directory and its missing parents with mode 0700; return it.

    `Path.mkdir(parents=True)` would give the parents the default mode, with which other users of a
    cluster could read the files of jobs. A directory that another process removes meanwhile,
    because it is empty, is created again.
    """
    for _ in range(_MOST_REMOVALS):
        with contextlib.suppress(FileNotFoundError):
            _create_directory(path)
            return path
    _create_directory(path)
    return path


def _create_directory(path: Path) -> None:
    # Without a look before: the call itself says whether the directory or the one above exists.
    try:
        _mkdir(path)
    except FileNotFoundError:
        _create_directory(path.parent)
        _mkdir(path)


def _mkdir(path: Path) -> None:
    try:
        path.mkdir(mode=PRIVATE_DIRECTORY)
    except FileNotFoundError:
        raise
    except OSError:
        if not path.is_dir():
            raise
    else:
        _take_inherited_modes(path)


def _take_inherited_modes(directory: Path) -> None:
    """Remove the permissions for others that a new directory has inherited.

    If access control lists are inherited (GPFS, Isilon, ZFS), mkdir(2) does not set the requested
    mode. If the mode cannot be changed, `ownership.check_ours` finds out.
    """
    with contextlib.suppress(OSError):
        mode = answered(partial(os.lstat, directory)).st_mode
        if stat.S_ISDIR(mode) and mode & 0o077:
            os.chmod(directory, stat.S_IMODE(mode) & ~0o077)


def remove_tree(directory: Path | str) -> None:
    """Remove a directory and all in it, as far as that is possible now.

    Not by `shutil`, which loads three compression libraries: a process that has them is copied
    slower, for each short run. No link is followed, also not one that takes the place of a
    directory meanwhile: processes that a script has left may go on in its workspace.
    """
    with contextlib.suppress(OSError):
        _remove(os.fspath(directory), None)


def _remove(name: str, above: int | None) -> None:
    descriptor = os.open(name, _DIRECTORY, dir_fd=above)
    try:
        with os.scandir(descriptor) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for inner, is_directory in found:
            with contextlib.suppress(OSError):
                if is_directory:
                    _remove(inner, descriptor)
                else:
                    os.unlink(inner, dir_fd=descriptor)
    finally:
        os.close(descriptor)
    os.rmdir(name, dir_fd=above)


def times_and_sizes(directory: str, paths: Iterable[str]) -> dict[str, list[int]]:
    """The modification time in nanoseconds and the size of each of these files that is seen."""
    seen = {}
    for path in paths:
        with contextlib.suppress(OSError):
            found = os.stat(os.path.join(directory, path))
            seen[path] = [found.st_mtime_ns, found.st_size]
    return seen


def lacks_room(error: BaseException | None) -> bool:
    """Whether an error is, or was caused by, a full disk or an exhausted quota."""
    return _comes_of(NO_ROOM, error)


def may_pass(error: BaseException | None) -> bool:
    """Whether an error is, or was caused by, a filesystem that is full, faulty or away."""
    return _comes_of(NO_ROOM | TRANSIENT, error)


def _comes_of(numbers: Collection[int], error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in numbers:
            return True
        error = error.__cause__
    return False
