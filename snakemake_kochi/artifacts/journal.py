"""The journal, where a result is safe before it is committed.

journal/<identity> (see `entry.py`) appears by one rename, complete and on disk, and is removed once
it is committed. The contents of large files are in their store before it appears.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from snakemake_kochi.artifacts.entry import check_destinations, head_of, read_record
from snakemake_kochi.artifacts.large import Pointer, Store, is_large, opened
from snakemake_kochi.errors import DamagedFileError, KochiError, PhaseError
from snakemake_kochi.files import (
    LARGE_BLOCK,
    is_name,
    is_there,
    list_names,
    make_directory,
    move,
    random_word,
    sync,
    sync_directory,
)
from snakemake_kochi.later_log import LaterLog
from snakemake_kochi.paths import ProjectPaths

_NOT_LEFT = (FileNotFoundError, NotADirectoryError, PermissionError)
_COMMIT_INTERVAL = 5.0  # seconds
# Seconds after which the files of a killed process are removed: no copy takes that long.
_ABANDONED = 24 * 3600

_logger = LaterLog(__name__)


@dataclass(frozen=True)
class Result:
    """The result of one attempt.

    `identity` (a name, see files.is_name) names that attempt; `files` maps each destination to its
    file; `record` is JSON.
    """

    identity: str
    files: Mapping[str, Path]
    record: Mapping[str, Any]


def journal(
    paths: ProjectPaths,
    machine: str,
    result: Result,
    repository: Path | None = None,
    large: int | None = None,
) -> None:
    """Copy a result into the journal; when this returns, it survives a crash of the computer.

    Contents of more than `large` bytes (by default LARGE) go to the store of the repository, if
    that is given. Journaling the same identity again changes nothing. Raises KochiError for an
    invalid destination and for two that exclude each other, PhaseError for a file that is missing
    or no regular file, GitError when the repository cannot be read, OSError when journal or store
    cannot be written. Then nothing is journaled.
    """
    if not is_name(result.identity):
        raise KochiError(f"a result cannot be called {result.identity!r}: not a name")
    check_destinations(result.files)
    directory = make_directory(paths.journal(machine))
    entry = directory / result.identity
    if is_there(entry):
        return
    sizes, pointers = _sizes_and_pointers(result, repository, large)
    head = {
        "identity": result.identity,
        "time": time.time_ns(),
        "files": [{"dest": dest, "size": size} for dest, size in sizes.items()],
        **({"large": pointers} if pointers else {}),
        "record": result.record,
    }
    beside = directory / f".{result.identity}.{random_word()}.tmp"
    try:
        _write(beside, head, result, sizes)
        move(beside, entry)
    except BaseException as error:
        with suppress(OSError):
            beside.unlink()
        # The same result, journaled by another process in the meantime, is just as good.
        if not (isinstance(error, OSError) and is_there(entry)):
            raise
    sync_directory(directory)


def pending(paths: ProjectPaths, machine: str) -> tuple[str, ...]:
    """The identities of the results in the journal. Raises OSError if it cannot be read now."""
    return tuple(sorted(filter(is_name, list_names(paths.journal(machine)))))


def is_commit_due(paths: ProjectPaths, machine: str, now: float | None = None) -> bool:
    """Whether a process that has just journaled a result should commit.

    It should if the last commit was some seconds ago, or if its time is unknown. The result of a
    long run is then committed at once, and those of short runs together. `now`: in
    seconds since the epoch, by default the time of this computer.
    """
    try:
        age = (time.time() if now is None else now) - paths.committed(machine).stat().st_mtime
    except OSError:
        return True
    # The clock of the filesystem may be ahead of ours.
    return not 0 <= age < _COMMIT_INTERVAL


def note_commit(paths: ProjectPaths, machine: str) -> None:
    """Tell `is_commit_due` that a commit happens now."""
    with suppress(OSError):  # on a full disk each run commits by itself
        paths.committed(machine).touch(mode=0o600)


def set_aside(place: Path, entry: Path, why: str) -> None:
    """Move an entry that must not be committed out of the way; never delete it.

    If that fails, it stays, and does not block the other entries.
    """
    try:
        target = make_directory(place) / entry.name
        if is_there(target):
            target = place / f"{entry.name}.{random_word()}"
        move(entry, target)
    except FileNotFoundError:
        return  # where locks do not work, another committer may have committed and removed it
    except OSError as error:
        _logger.warning("%s; it cannot be set aside now: %s", why, error)
    else:
        _logger.warning("%s; set aside in %s", why, target)


def remove_entries(paths: ProjectPaths, machine: str, identities: Iterable[str]) -> None:
    """Remove committed entries, and files of journaling processes that were killed long ago.

    A later commit removes what cannot be removed now.
    """
    directory = paths.journal(machine)
    for identity in identities:
        # If half of a directory is removed, it looks damaged, but its record is in the branch.
        with suppress(OSError):
            remove_entry(directory / identity)
    with suppress(OSError):
        for leftover in directory.glob(".*.tmp"):
            with suppress(OSError):
                if time.time() - leftover.stat().st_mtime > _ABANDONED:
                    remove_entry(leftover)


def remove_entry(place: Path) -> None:
    """Remove an entry, or what a killed process left of one; both may be directories. Raises
    OSError."""
    try:
        place.unlink(missing_ok=True)
    except IsADirectoryError:
        # Imported here: an earlier release made such entries.
        import shutil

        shutil.rmtree(place)


@contextmanager
def _naming(dest: str, source: Path) -> Iterator[None]:
    """Raise PhaseError, with the name of the artifact, for a file that is missing or no file."""
    try:
        # A named pipe would block for ever, here or in open().
        if is_there(source) and not source.is_file():
            raise PhaseError(f"artifact '{dest}': {source} is not a regular file")
        yield
    except OSError as error:
        # Other errors mean "not known now": the products of the run must not be thrown away.
        if error.filename != str(source) or not isinstance(error, _NOT_LEFT):
            raise
        raise PhaseError(
            f"artifact '{dest}': {source} cannot be read ({error.strerror})",
            "The job succeeded without leaving this file; see its `src:`.",
        ) from error


def _sizes_and_pointers(
    result: Result, repository: Path | None, large: int | None
) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """The sizes of the contents that go into the entry, by destination; and the pointers to large
    contents, which are in their store afterwards. Raises as `journal`."""
    store = None
    sizes: dict[str, int] = {}
    pointers: list[dict[str, Any]] = []
    for dest, source in result.files.items():
        with _naming(dest, source), opened(source) as reader:
            if repository is not None and is_large(reader, large):
                store = store or Store.of(repository)
                pointer = store.put(reader, Pointer.of_record(result.record, dest))
                pointers.append({"dest": dest, **asdict(pointer)})
            else:
                sizes[dest] = os.fstat(reader.fileno()).st_size
    return sizes, pointers


def _write(file: Path, head: Mapping[str, Any], result: Result, sizes: Mapping[str, int]) -> None:
    """Write an entry, which is on disk afterwards. Raises as `journal`."""
    with open(file, "xb") as writer:
        writer.write(head_of(head))
        for dest, size in sizes.items():
            with _naming(dest, result.files[dest]):
                _copy(result.files[dest], size, writer)
        writer.flush()
        sync(writer.fileno())


def _copy(source: Path, size: int, target: IO[bytes]) -> None:
    """Copy the first bytes of a file, which may have grown since its size was noted.

    Raises OSError if it has become shorter.
    """
    with opened(source) as reader:
        while size:
            block = reader.read(min(size, LARGE_BLOCK))
            if not block:
                raise OSError(errno.EAGAIN, "it was changed while it was read", str(source))
            target.write(block)
            size -= len(block)


def journaled_jobs(paths: ProjectPaths, machine: str) -> Iterator[str]:
    """The jobs of the results in the journal. Raises KochiError and OSError."""
    for record in journaled_records(paths, machine):
        with suppress(KeyError, TypeError, ValueError):
            yield str(record["job"])


def journaled_records(paths: ProjectPaths, machine: str) -> Iterator[Mapping[str, Any]]:
    """The records of the results in the journal. Raises KochiError and OSError."""
    for identity in pending(paths, machine):
        with suppress(FileNotFoundError, KeyError, TypeError, ValueError, DamagedFileError):
            yield read_record(paths.journal(machine) / identity)
