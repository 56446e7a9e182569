"""Who else may put files where ours are read: owners and modes of directories.

What is found below KOCHI_ROOT is executed as the user who finds it. The rules are those of sshd for
the files of a home directory (sshd_config(5), StrictModes), eased for people who share a project's
directories: see `examine`.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import pwd
import shlex
import stat
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import answered

_ROOT = 0
# What the kernel shows for an owner it has no number for: in a container of an ordinary user's,
# that of the system's own directories.
_NOBODY = 65534
_EVERYBODY = "everybody"
_MOST_LINKS = 40  # path_resolution(7)


class OthersError(KochiError):
    """Somebody else may put files into a directory that has to be ours."""


def examine(top: Path, directory: Path) -> tuple[list[str], bool]:
    """Examine the directory `top`, all from there to `directory`, and what is in that: it has to be
    ours, and nobody else's to write to. Of what is above `top` nobody may replace anything.

    Where somebody could who shares directories with us, a group or another owner of a directory
    above, a sentence is returned about that; root has nobody to share with. So is one where modes
    mean nothing. Returns also whether all is there; what is not is left out. Raises OthersError,
    and OSError.
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
                "nobody else may, for what is there runs as you"
            )
    except (FileNotFoundError, NotADirectoryError):
        return doubts, False
    return doubts, True


def check_ours(path: Path) -> bool:
    """Raise OthersError unless a file or directory, also one that a symbolic link of ours leads to,
    belongs to this user or root, and OSError. A directory may not be one that others may write to;
    return False where that cannot be known, as its filesystem gives files modes of its own."""
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
        "If it is yours, and nobody else has put anything there, type: "
        f"chmod go-w {shlex.quote(str(path))}",
    )


def check_followed(file: Path) -> None:
    """Raise OthersError unless a file that says what is executed as whoever reads it belongs to
    this user or root, and nobody else may write to it or, of those whom `examine` refuses, put
    another one in its place; and OSError."""
    _examine_above(file)
    found = answered(partial(os.stat, file))
    # In a container of an ordinary user's, a file of the system's has no owner either.
    if found.st_uid != _NOBODY:
        _check_owner(file, found)
    if (who := _who_else_writes(found)) is not None:
        raise OthersError(
            f"{who} may write to {file}",
            f"If what is in it is as it should be, type: chmod go-w {shlex.quote(str(file))}",
        )


def _has_modes(directory: Path) -> bool:
    """Whether a file that is to be private is shown so: not by CIFS, nor where NFSv4's access
    control lists are inherited. Asked of a descriptor: a name others may have moved meanwhile."""
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
    """Who could replace what is at `top`, of those whom we have to trust."""
    doubts: list[str] = []
    step = None
    try:
        for next_step in _way(top):
            if step is not None:
                _examine_step(*step, doubts)
            step = next_step
    except FileNotFoundError:
        # Before anything is made there.
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
        # In a directory like /tmp it may be a trap, unless its owner made it for a group of ours.
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
    """What an absolute path leads through below /: each directory and each symbolic link, what
    lstat says of it, and of the directory in which it is. The last one is what the path means."""
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
    """How to call a group; None for one that a user has for themselves, as many systems make."""
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
