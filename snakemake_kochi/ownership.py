"""Checks owners and modes of directories: which other users may write where files are read.

Files below KOCHI_ROOT are executed as the user whose processes find them. The rules are those of
sshd for the files of a home directory (sshd_config(5), StrictModes). They are relaxed for people
who share a project's directories: see `examine`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import shlex
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import answered

_ROOT = 0
# The owner that the kernel shows if it has no number for the real one: in an unprivileged user's
# container, that of the system's own directories.
_NOBODY = 65534
_EVERYBODY = "everybody"
_MOST_LINKS = 40  # path_resolution(7)


class OthersError(KochiError):
    """Another user may put files into a directory that must be this user's."""


def examine(top: Path, directory: Path) -> tuple[list[str], bool]:
    """Examine the directory `top`, all directories down to `directory`, and its content.

    They must belong to this user, and no other user may write to them. No other user may replace a
    directory above `top`.

    Returns a sentence for each trusted party that could do so: a group, or another owner of a
    directory above, that shares directories with this user. For root there is no such party. There
    is also a sentence if modes mean nothing on the filesystem. The second value tells whether
    everything exists; missing parts are not examined. Raises OthersError and OSError.
    """
    doubts: list[str] = []
    try:
        who = _examine_above(top)
        doubts += [f"KOCHI_ROOT {top} can be replaced by {each}" for each in who]
        names = (directory / name for name in os.listdir(directory))
        have_modes = [check_ours(each) for each in (top, *_below(top, directory), *names)]
        if not all(have_modes):
            doubts.append(
                f"the filesystem of {top} does not show who may write to a file: make sure that "
                "only you can, because kochi executes files there as you"
            )
    except (FileNotFoundError, NotADirectoryError):
        return doubts, False
    return doubts, True


def check_ours(path: Path) -> bool:
    """Raise OthersError unless a file or directory belongs to this user or root.

    A symbolic link of this user is followed. Other users must not be able to write to a directory.
    Returns False if that is unknown, because the filesystem assigns its own modes to files. Raises
    OSError, too.
    """
    found = _lstat(path)
    if stat.S_ISLNK(found.st_mode):
        _check_owner(path, found)
        found = answered(partial(os.stat, path))
    _check_owner(path, found)
    if not stat.S_ISDIR(found.st_mode) or (who := _who_else_writes(found)) is None:
        return True
    if found.st_uid == os.geteuid() and not _has_modes(path):
        return False
    raise OthersError(
        f"{who} may write to {path}",
        "If it is yours and no other user has put anything there, type: "
        f"chmod go-w {shlex.quote(str(path))}",
    )


def check_followed(file: Path) -> None:
    """Raise OthersError unless a file that says what is executed is safe to read.

    Its reader executes what it says. So it must belong to this user or root, and no other user may
    write to it. Those whom `examine` refuses must not be able to replace it either. Raises OSError,
    too.
    """
    _examine_above(file)
    found = answered(partial(os.stat, file))
    # In an unprivileged user's container, a file of the system has no owner either.
    if found.st_uid != _NOBODY:
        _check_owner(file, found)
    if (who := _who_else_writes(found)) is not None:
        raise OthersError(
            f"{who} may write to {file}",
            f"If its content is as it should be, type: chmod go-w {shlex.quote(str(file))}",
        )


def _has_modes(directory: Path) -> bool:
    """Whether the filesystem shows the mode of a private file.

    CIFS does not, nor does NFSv4 with inherited access control lists. The mode is read from a
    descriptor, because others may have moved a name meanwhile.
    """
    # Imported here: no run needs it, and it loads ten other modules.
    import tempfile

    with tempfile.NamedTemporaryFile(dir=directory) as file:
        with contextlib.suppress(PermissionError):
            os.fchmod(file.fileno(), 0o600)
        return not os.fstat(file.fileno()).st_mode & 0o077


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid not in (os.geteuid(), _ROOT):
        raise OthersError(f"{path} belongs to {_user(found.st_uid)}")


def _below(top: Path, directory: Path) -> Iterator[Path]:
    for part in directory.relative_to(top).parts:
        top /= part
        yield top


def _examine_above(top: Path) -> list[str]:
    """The trusted users and groups that could replace the file or directory at `top`."""
    doubts: list[str] = []
    step = None
    try:
        for next_step in _way(top):
            if step is not None:
                _examine_step(*step, doubts)
            step = next_step
    except FileNotFoundError:
        # Nothing has been made there yet.
        if step is not None:
            _examine_step(*step, doubts)
    return doubts


def _examine_step(
    place: str, found: os.stat_result, around: os.stat_result, doubts: list[str]
) -> None:
    is_fixed = stat.S_ISLNK(found.st_mode) or found.st_mode & stat.S_ISVTX
    who = None if is_fixed else _who_else_writes(found)
    if found.st_uid not in (os.geteuid(), _ROOT, _NOBODY):
        owner = _user(found.st_uid)
        said, doubt = f"{place} belongs to {owner}", f"{owner}, who owns {place}"
        # In a directory like /tmp it may be a trap, unless its owner made it for a group of this
        # user.
        is_ours = stat.S_ISDIR(found.st_mode) and found.st_gid in (os.getegid(), *os.getgroups())
        is_shared = who != _EVERYBODY and (is_ours or not around.st_mode & stat.S_ISVTX)
    elif who is not None:
        said, doubt = f"{who} may write to {place}", f"{who}, which may write to {place}"
        is_shared = who != _EVERYBODY
    else:
        return
    if not is_shared or os.geteuid() == _ROOT:
        raise OthersError(said)
    doubts.append(doubt)


def _way(path: Path) -> Iterator[tuple[str, os.stat_result, os.stat_result]]:
    """The steps of an absolute path below /: each directory and each symbolic link.

    Each step has its lstat result and that of the directory that contains it. The last step is the
    final target of the path.
    """
    place, links = "/", 0
    left = list(reversed(path.parts[1:]))
    while left:
        part = left.pop()
        if part == "..":
            place = os.path.dirname(place)
        if part in ("", ".", ".."):
            continue
        inner = os.path.join(place, part)
        found = _lstat(inner)
        yield inner, found, _lstat(place)
        if not stat.S_ISLNK(found.st_mode):
            place = inner
            continue
        if (links := links + 1) > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), inner)
        target = os.readlink(inner)
        place = "/" if target.startswith("/") else place
        left += reversed(target.split("/"))


def _lstat(path: Path | str) -> os.stat_result:
    return answered(partial(os.lstat, path))


def _who_else_writes(found: os.stat_result) -> str | None:
    if found.st_mode & stat.S_IWOTH:
        return _EVERYBODY
    return _group(found.st_gid) if found.st_mode & stat.S_IWGRP else None


def _group(number: int) -> str | None:
    """The name of a group in a message; None for a user's private group, as many systems make."""
    import grp  # here, because no run needs it

    try:
        group = grp.getgrgid(number)
    except KeyError:
        return f"group {number}"
    try:
        own = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        own = ""
    is_private = group.gr_name == own and set(group.gr_mem) <= {own}
    return None if is_private else f"the group '{group.gr_name}'"


def _user(number: int) -> str:
    try:
        return f"'{pwd.getpwuid(number).pw_name}'"
    except KeyError:
        return f"user {number}"
