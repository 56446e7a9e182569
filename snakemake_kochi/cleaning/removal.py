"""Deleting and counting: everything gets another name by one rename, and is then deleted.

So no process sees half of it, and a clean-up that was killed leaves hidden directories
(`.removed-<nonce>-<name>`), which the next one deletes. Where a process may begin to use a thing
meanwhile, it is first moved aside (`.aside-<nonce>-<name>`), and the question "is it used?" is
asked a second time: a process that said so before the rename is seen, and the thing goes back; one
that says so later finds that the thing is gone. What a killed clean-up has moved aside goes back.
An error of the filesystem is no answer: then the thing stays.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import is_there, list_names, modified, move, random_word
from snakemake_kochi.paths import aside_path, is_being_removed, original_path, removed_path

_log = logging.getLogger(__name__)

BLOCK = 512  # bytes, the unit of st_blocks
# Seconds. No process needs so long between two steps; older temporary files are leftovers.
LEFTOVER_AGE = 24 * 3600.0


class TimeUpError(Exception):
    """The clean-up has had its time; the next one goes on."""


@dataclass
class Freed:
    """How many things of a kind were deleted, with how many inodes and bytes on the disk."""

    count: int = 0
    inodes: int = 0
    bytes: int = 0

    def add(self, other: Freed) -> None:
        self.count += other.count
        self.inodes += other.inodes
        self.bytes += other.bytes


@dataclass
class Removal:
    """One clean-up. With `is_dry`, it deletes nothing and counts what it would delete.

    `now` is the time of the file server, in seconds since the epoch: all ages are those of files.
    `deadline` is by the monotonic clock. `gone` are the things that were deleted, or would be.
    """

    is_dry: bool
    now: float
    deadline: float
    freed: dict[str, Freed] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    gone: set[Path] = field(default_factory=set)

    def is_older(self, path: Path, age: float) -> bool:
        """Whether a file or directory has not changed for so many seconds.

        Raises FileNotFoundError, and OSError when that is unknown now.
        """
        return self.age_of(path) >= age

    def age_of(self, path: Path) -> float:
        return self.now - modified(path)

    def check_time(self) -> None:
        """Raise TimeUpError after the deadline."""
        if time.monotonic() >= self.deadline:
            raise TimeUpError

    @contextlib.contextmanager
    def tolerating(self, what: str) -> Iterator[None]:
        """Go on with the next thing after an error: this one stays."""
        try:
            yield
        except (OSError, KochiError, KeyError, TypeError, ValueError) as error:
            # The last three: a file whose content nobody has written as it is.
            if not isinstance(error, FileNotFoundError):
                said = error.message if isinstance(error, KochiError) else str(error)
                self.faults.append(f"{what}: {said}")

    def remove(self, kind: str, path: Path, is_used: Callable[[Path], bool] | None = None) -> bool:
        """Delete a file or directory, and count it; return whether it is gone.

        `is_used` gets the path to which it was moved. Raises OSError.
        """
        self.check_time()
        if self.is_dry:
            self.gone.add(path)
            self.count(kind, measure(path))
            return True
        if is_used is None:
            return self._remove_now(kind, path, path)
        aside = move_aside(path)
        return aside is not None and self.finish(kind, aside, is_used)

    def finish(
        self,
        kind: str,
        aside: Path,
        is_used: Callable[[Path], bool],
        to_go_back: Callable[[Path], None] | None = None,
    ) -> bool:
        """Delete what was moved aside, or put it back if it is used; return whether it is gone.

        `to_go_back` does the latter, by default `put_back`.
        """
        if self._is_to_go_back(aside, is_used):
            (to_go_back or put_back)(aside)
            return False
        return self._remove_now(kind, aside, original_path(aside) or aside)

    def _remove_now(self, kind: str, path: Path, original: Path) -> bool:
        """Delete what nobody puts back any more: a reader must not see half of it."""
        if (removed := _moved(path, removed_path(original, random_word()))) is None:
            return False
        self.gone.add(original)
        self.count(kind, delete(removed))
        return True

    def _is_to_go_back(self, aside: Path, is_used: Callable[[Path], bool]) -> bool:
        try:
            return is_used(aside)
        except (OSError, KochiError) as error:
            self.faults.append(f"{aside}: {error}")
            return True

    def count(self, kind: str, freed: Freed) -> None:
        """Add to what was freed; for other parts, what they have deleted themselves."""
        self.freed.setdefault(kind, Freed()).add(freed)

    def sweep(self, directory: Path) -> None:
        """Delete temporary files in a directory, and what an earlier clean-up was deleting.

        What that has moved aside, and did not decide about, goes back.
        """
        with self.tolerating(f"leftovers in {directory}"):
            for name in list_names(directory):
                path = directory / name
                is_temporary = name.startswith(".") and name.endswith(".tmp")
                with contextlib.suppress(FileNotFoundError):
                    if original_path(path) is not None and not self.is_dry:
                        put_back(path)
                    elif is_being_removed(path) or (
                        is_temporary and self.is_older(path, LEFTOVER_AGE)
                    ):
                        self._delete_leftover(path)

    def _delete_leftover(self, path: Path) -> None:
        self.count("leftovers", measure(path) if self.is_dry else delete(path))


def move_aside(path: Path) -> Path | None:
    """Move a thing to a name from which it can go back; None if it is gone. Raises OSError."""
    return _moved(path, aside_path(path, random_word()))


def _moved(path: Path, target: Path) -> Path | None:
    try:
        move(path, target)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return path  # this filesystem cannot rename directories
    return target


def put_back(aside: Path) -> None:
    """Move a thing back, unless there is a new one of its name. Raises OSError."""
    original = original_path(aside)
    if original is None:
        return
    if is_there(original):
        _moved(aside, removed_path(original, random_word()))
    else:
        move(aside, original)


def measure(path: Path) -> Freed:
    """One thing with its inodes and bytes. What vanishes meanwhile is not counted."""
    return _walk(path, is_deleted=False)


def delete(path: Path) -> Freed:
    """Delete a file or directory, and return what it had. The next clean-up deletes the rest."""
    return _walk(path, is_deleted=True)


def _walk(path: Path, is_deleted: bool) -> Freed:
    freed = Freed(1)
    with contextlib.suppress(OSError):
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            _visit(os.fspath(path), freed, os.unlink if is_deleted else None)
            return freed
    _walk_tree(path, freed, is_deleted)
    if is_deleted and os.path.lexists(path):
        # A script may have made a directory in it read-only.
        _make_writable(path)
        _walk_tree(path, freed, is_deleted)
    return freed


def _walk_tree(path: Path, freed: Freed, is_deleted: bool) -> None:
    for parent, directories, files in os.walk(path, topdown=False):
        for name in files:
            _visit(f"{parent}/{name}", freed, os.unlink if is_deleted else None)
        for name in directories:
            if os.path.islink(f"{parent}/{name}"):
                _visit(f"{parent}/{name}", freed, os.unlink if is_deleted else None)
        _visit(parent, freed, os.rmdir if is_deleted else None)


def _make_writable(path: Path) -> None:
    for parent, directories, _ in os.walk(path):
        for each in (parent, *(f"{parent}/{name}" for name in directories)):
            with contextlib.suppress(OSError):
                mode = os.lstat(each).st_mode
                if stat.S_ISDIR(mode) and mode & 0o700 != 0o700:
                    os.chmod(each, stat.S_IMODE(mode) | 0o700)


def _visit(path: str, freed: Freed, remove: Callable[[str], None] | None) -> None:
    with contextlib.suppress(OSError):
        found = os.lstat(path)
        if remove is not None:
            remove(path)
        # The other name of a file with two names keeps its blocks.
        if found.st_nlink == 1 or stat.S_ISDIR(found.st_mode):
            freed.inodes += 1
            freed.bytes += found.st_blocks * BLOCK
