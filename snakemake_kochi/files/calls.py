"""Calls of the filesystem that are made again where that helps, and what their errors mean."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TypeVar

Answer = TypeVar("Answer")


PRIVATE_DIRECTORY = 0o700


# Seconds. GlusterFS answers ESTALE for some tenths of a second after another node has replaced a
# file, and for longer while it heals.
_STALE_PATIENCE = 2.0


_STALE_PAUSE = 0.005


_LONGEST_STALE_PAUSE = 0.2


# What is answered where there is no room, for anybody or for this user.
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


# What network filesystems answer while a server is away, or another takes its place.
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
    """Make a call that may be repeated, again while the answer is ESTALE, for two seconds at most.

    Raises what the call raises; OSError other than FileNotFoundError means: not known now.
    """
    try:
        return call()
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
    # Here: on most filesystems it is never needed, and every short job would pay for the import.
    from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

    again = Retrying(
        retry=retry_if_exception(_is_stale),
        stop=stop_after_delay(_STALE_PATIENCE),
        wait=wait_random_exponential(_STALE_PAUSE, _LONGEST_STALE_PAUSE),
        reraise=True,
    )
    return again(call)


def _is_stale(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno == errno.ESTALE


def is_there(path: Path | str) -> bool:
    """Whether there is such a file or directory. Raises OSError when that is not known now.

    Path.exists raises or says False then, as the version of Python has it, and os.path.exists
    always says False: a job whose result was not seen for a moment would be run again.
    """
    try:
        answered(partial(os.stat, path))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def list_names(directory: Path | str) -> list[str]:
    """The names in a directory, in no order; none where there is no such directory. Raises OSError
    when they are not known now."""
    try:
        return answered(partial(os.listdir, directory))
    except (FileNotFoundError, NotADirectoryError):
        return []


def show_new_files(directory: Path | str) -> None:
    """Have the files in a directory seen that other nodes have made just now.

    A client of NFS takes a name that it once did not find for missing for up to a minute. When a
    directory is opened it asks the server whether that has changed (close-to-open consistency, see
    nfs(5)), and looks for such names anew; so what is listed is seen. A directory that is new
    itself is seen by listing the one above. What cannot be listed stays as it is.
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
    """Rename a file or directory, to a target to which nobody else moves anything.

    A network filesystem may do it and lose the answer: NFS then says to the repeated request that
    there is no such file, others EIO. What is not at the source any more, and is at the target, has
    been moved. Raises OSError when it has not, or that is not known now.
    """
    try:
        answered(partial(os.rename, source, target))
    except OSError:
        if not _was_moved(source, target):
            raise


def _was_moved(source: Path | str, target: Path | str) -> bool:
    with contextlib.suppress(OSError):
        return not is_there(source) and is_there(target)
    return False


def sync(descriptor: int) -> None:
    """Have the content of an open file, or the names in an open directory, outlast a power failure.

    Where the filesystem knows no such thing (EINVAL) there is nothing that could be waited for.
    """
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise


def sync_directory(directory: Path) -> None:
    """Without it a power failure may take a name though its content is safe."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> Path:
    """Create a directory and its missing parents with mode 0700; return it.

    `Path.mkdir(parents=True)` would give the parents the default mode, which lets other users of a
    cluster read what jobs do.
    """
    missing = []
    parent = path
    while not parent.is_dir():
        missing.append(parent)
        parent = parent.parent
    for directory in reversed(missing):
        try:
            directory.mkdir(mode=PRIVATE_DIRECTORY)
        except FileExistsError:
            if not directory.is_dir():
                raise
        else:
            _take_inherited_modes(directory)
    return path


def _take_inherited_modes(directory: Path) -> None:
    """Where access control lists are inherited (GPFS, Isilon, ZFS), mkdir(2) does not make what it
    is told to. Where that cannot be changed, `ownership.check_ours` finds out."""
    with contextlib.suppress(OSError):
        mode = answered(partial(os.lstat, directory)).st_mode
        if stat.S_ISDIR(mode) and mode & 0o077:
            os.chmod(directory, stat.S_IMODE(mode) & ~0o077)


def lacks_room(error: BaseException | None) -> bool:
    """Whether an error is one of a full disk, or of a quota that is used up, or comes of one."""
    return _comes_of(NO_ROOM, error)


def may_pass(error: BaseException | None) -> bool:
    """Whether an error is one of a filesystem that is full, in trouble or away, or comes of one."""
    return _comes_of(NO_ROOM | TRANSIENT, error)


def _comes_of(numbers: Collection[int], error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in numbers:
            return True
        error = error.__cause__
    return False
