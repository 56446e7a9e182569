"""Whether a filesystem is missing on this node, where a directory cannot be found."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from snakemake_kochi.files import is_there

_FSTAB = Path("/etc/fstab")


def unmounted_above(directory: Path) -> Path | None:
    """The nearest directory above a missing one that exists, if it is certain that something
    should be mounted there and is not.

    An empty one is no proof: most missing directories were removed, with all that was beside them,
    and a job that fails for that must not set its node aside. It is one only where the user could
    not have removed anything, or where fstab(5) has it.
    """
    with contextlib.suppress(OSError):
        nearest = next(parent for parent in directory.parents if is_there(parent)).resolve()
        if nearest in _mount_points_of_fstab() and not nearest.is_mount():
            return nearest
        is_bare = nearest == Path("/") or not any(nearest.iterdir())
        if is_bare and _is_out_of_reach(nearest):
            return nearest
    return None


def _is_out_of_reach(directory: Path) -> bool:
    """Whether root alone may remove what is in there, and this user is another."""
    found = directory.stat()
    is_shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return found.st_uid == 0 != os.geteuid() and not is_shared


def _mount_points_of_fstab() -> set[Path]:
    try:
        lines = _FSTAB.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return set()
    rows = [line.split() for line in lines if not line.lstrip().startswith("#")]
    return {Path(_unescaped(row[1])) for row in rows if len(row) > 1 and row[1].startswith("/")}


def _unescaped(text: str) -> str:
    # The only characters that fstab(5) has escapes for.
    return text.replace("\\040", " ").replace("\\011", "\t")
