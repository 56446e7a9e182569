"""The journal, where a result is safe before it is committed, and the promises to commit it.

journal/<identity>/     appears by one rename, complete and on disk; removed once committed
  entry.json            {"version", "identity", "time" (ns since 1970), "files": [{"dest", "file",
                        "size" (bytes)}], "large": [{"dest", "sha256", "size"}], "record"}
  0, 1, ...             the files' contents

Large files are not in the journal: their contents are in the store of `large.py` before the entry
appears. An entry without large files has no such key and the version 1.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, TypeVar

from snakemake_kochi.artifacts.large import Pointer, Store, is_large, opened
from snakemake_kochi.errors import DamagedFileError, KochiError, PhaseError
from snakemake_kochi.files import (
    answered,
    is_name,
    is_there,
    list_names,
    make_directory,
    move,
    read_json,
    sync,
    sync_directory,
    to_json,
    write_new,
)
from snakemake_kochi.later_log import LaterLog
from snakemake_kochi.paths import ProjectPaths

Found = TypeVar("Found")

VERSION = 2
RESERVED = ".kochi"  # kochi's own directory in each directory of a branch
ATTRIBUTES = ".gitattributes"  # kochi's own file in each directory with large files
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


@dataclass(frozen=True)
class JournalEntry:
    """A journaled result.

    `files` maps destinations to the journal's copies and their sizes, `large` those of large files
    to their pointers.
    """

    identity: str
    directory: Path
    time: int
    files: Mapping[str, tuple[Path, int]]
    record: Mapping[str, Any]
    large: Mapping[str, Pointer] = field(default_factory=dict)

    @property
    def destinations(self) -> set[str]:
        return {*self.files, *self.large}


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
    beside = directory / f".{result.identity}.{secrets.token_hex(4)}.tmp"
    make_directory(beside)
    try:
        files: list[dict[str, Any]] = []
        pointers: list[dict[str, Any]] = []
        store = None
        for number, (dest, source) in enumerate(result.files.items()):
            with _naming(dest, source), opened(source) as reader:
                if repository is not None and is_large(reader, large):
                    known = Pointer.of_record(result.record, dest)
                    store = store or Store.of(repository)
                    pointer = store.put(reader, known)
                    pointers.append({"dest": dest, **asdict(pointer)})
                else:
                    size = _copy(reader, beside / str(number))
                    files.append({"dest": dest, "file": str(number), "size": size})
        content = {
            "version": VERSION if pointers else 1,
            "identity": result.identity,
            "time": time.time_ns(),
            "files": files,
            "record": result.record,
        }
        if pointers:
            content["large"] = pointers
        write_new(beside / "entry.json", to_json(content), durable=True)
        sync_directory(beside)
        _rename_new(beside, entry)
        sync_directory(directory)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def check_destinations(destinations: Iterable[str]) -> None:
    """Raise KochiError for destinations that cannot be paths in a directory of the branch.

    This includes two destinations of which one is a directory of the other.
    """
    chosen = set(destinations)
    for dest in sorted(chosen):
        parts = dest.split("/")
        if (
            not all(parts)
            or {".", ".."} & set(parts)
            or ".git" in map(str.lower, parts)
            or "\0" in dest
        ):
            raise KochiError(
                f"artifact destination {dest!r}: a relative path without empty parts, '.', '..' "
                "and '.git' was expected"
            )
        if parts[0] == RESERVED:
            raise KochiError(f"artifact destination {dest!r}: '{RESERVED}/' is for records only")
        if parts[-1].lower() == ATTRIBUTES:
            raise KochiError(f"artifact destination {dest!r}: git would obey such a file")
        for parent in map(str, PurePosixPath(dest).parents):
            if parent in chosen:
                raise KochiError(
                    f"artifact destinations {parent!r} and {dest!r} exclude each other: one would "
                    "be a file and a directory",
                    "Give one of them another `dest:`.",
                )


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


def read_entry(directory: Path) -> JournalEntry:
    """Read a journal entry and check that it is complete.

    Raises DamagedFileError when it certainly is not, FileNotFoundError when it is gone. Another
    OSError or KochiError means that it may be readable later, or by a newer version.
    """
    # The version is checked here: an entry that is too new for this release is not damaged.
    content = _whole(directory, lambda: read_json(directory / "entry.json"))
    try:
        if (version := int(content["version"])) > VERSION:
            raise KochiError(
                f"{directory}: written by a newer snakemake_kochi (format {version}, this one "
                f"reads up to {VERSION})"
            )
        files = {
            str(item["dest"]): (directory / str(int(item["file"])), int(item["size"]))
            for item in content["files"]
        }
        large = {
            str(item["dest"]): Pointer(str(item["sha256"]), int(item["size"]))
            for item in content.get("large", ())
        }
        record, moment = dict(content["record"]), int(content["time"])
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{directory}: not a complete journal entry ({error!r})") from error
    try:
        check_destinations((*files, *large))
    except KochiError as error:
        raise DamagedFileError(f"{directory}: {error.message}") from error
    for file, size in files.values():
        found = _whole(directory, partial(answered, partial(_size, file)))
        if found != size:
            raise DamagedFileError(f"{file}: {size} bytes were expected, {found} are there")
    return JournalEntry(directory.name, directory, moment, files, record, large)


def _whole(directory: Path, read: Callable[[], Found]) -> Found:
    """The result of `read`, which reads an entry.

    An entry appears as a whole. A missing file is damage only if the directory does not list it
    either: a look-up alone may be answered from a cache.
    """
    try:
        return read()
    except (FileNotFoundError, NotADirectoryError) as error:
        file = Path(error.filename)
        if not is_there(directory):
            raise
        if file.name in list_names(directory):
            raise KochiError(f"{file} is listed, but cannot be opened") from error
        raise DamagedFileError(f"{file} is missing") from error


def _size(file: Path) -> int:
    # Opened, because NFS then asks the server; it may answer a stat from its cache.
    with open(file, "rb") as stream:
        return os.fstat(stream.fileno()).st_size


def set_aside(place: Path, entry: Path, why: str) -> None:
    """Move an entry that must not be committed out of the way; never delete it.

    If that fails, it stays, and does not block the other entries.
    """
    try:
        target = make_directory(place) / entry.name
        if is_there(target):
            target = place / f"{entry.name}.{secrets.token_hex(4)}"
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
        # A half-removed entry looks damaged, but its record is in the branch.
        shutil.rmtree(directory / identity, ignore_errors=True)
    with suppress(OSError):
        for leftover in directory.glob(".*.tmp"):
            with suppress(FileNotFoundError):
                if time.time() - leftover.stat().st_mtime > _ABANDONED:
                    shutil.rmtree(leftover, ignore_errors=True)


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


def _copy(reader: IO[bytes], target: Path) -> int:
    """Copy durably and return the size: the bytes read count, because a file may still grow."""
    with open(target, "xb") as writer:
        shutil.copyfileobj(reader, writer, 1 << 20)
        writer.flush()
        sync(writer.fileno())
        return writer.tell()


def _rename_new(beside: Path, entry: Path) -> None:
    try:
        move(beside, entry)
    except OSError:
        # The same result, journaled by another process in the meantime, is just as good.
        if not is_there(entry):
            raise


def journaled_jobs(paths: ProjectPaths, machine: str) -> Iterator[int]:
    """The jobs of the results in the journal. Raises KochiError and OSError."""
    for record in journaled_records(paths, machine):
        with suppress(KeyError, TypeError, ValueError):
            yield int(record["job"])


def journaled_records(paths: ProjectPaths, machine: str) -> Iterator[Mapping[str, Any]]:
    """The records of the results in the journal. Raises KochiError and OSError."""
    for identity in pending(paths, machine):
        with suppress(FileNotFoundError, KeyError, TypeError, ValueError, DamagedFileError):
            yield dict(read_json(paths.journal(machine) / identity / "entry.json")["record"])
