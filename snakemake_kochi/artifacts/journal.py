"""The journal: where a result is safe before it is committed.

journal/<identity>/     appears by one rename, complete and on disk, and goes when committed
  entry.json            {"version", "identity", "time" (ns since 1970), "files": [{"dest", "file",
                        "size" (bytes)}], "record"}
  0, 1, ...             the files' contents
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from snakemake_kochi.errors import ArtifactTooLargeError, DamagedFileError, KochiError, PhaseError
from snakemake_kochi.files import (
    is_name,
    make_directory,
    read_json,
    to_json,
    write_exclusively,
)
from snakemake_kochi.paths import ProjectPaths

VERSION = 1
RESERVED = ".kochi"  # the branch's own directory in each machine's
MEBIBYTE = 1 << 20
_BLOCK = MEBIBYTE
COMMIT_INTERVAL = 5.0  # seconds
_ABANDONED = 24 * 3600  # seconds; no copy of files below the size limit takes that long

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """What one attempt leaves behind. `identity` (a name, see files.is_name) names that attempt;
    `files` maps each destination to the file that goes there; `record` is JSON."""

    identity: str
    files: Mapping[str, Path]
    record: Mapping[str, Any]


@dataclass(frozen=True)
class JournalEntry:
    """A journaled result: `files` maps destinations to the journal's copies and their sizes."""

    identity: str
    directory: Path
    time: int
    files: Mapping[str, tuple[Path, int]]
    record: Mapping[str, Any]


def journal(
    paths: ProjectPaths, machine: str, result: Result, size_limit: int = 100 * MEBIBYTE
) -> None:
    """Copy a result into the journal; when this returns it outlives a crash of the computer.

    The same identity a second time changes nothing. Raises KochiError for a destination that
    cannot be one and for two that exclude each other, ArtifactTooLargeError for a file over
    `size_limit` (bytes), PhaseError for a file that is missing or no regular file. Then nothing is
    journaled.
    """
    if not is_name(result.identity):
        raise KochiError(f"a result cannot be called {result.identity!r}: not a name")
    check_destinations(result.files)
    directory = make_directory(paths.journal(machine))
    entry = directory / result.identity
    if entry.exists():
        return
    beside = directory / f".{result.identity}.{secrets.token_hex(4)}.tmp"
    make_directory(beside)
    try:
        files = [
            {
                "dest": dest,
                "file": str(number),
                "size": _copy(dest, source, beside / str(number), size_limit),
            }
            for number, (dest, source) in enumerate(result.files.items())
        ]
        content = {
            "version": VERSION,
            "identity": result.identity,
            "time": time.time_ns(),
            "files": files,
            "record": result.record,
        }
        write_exclusively(beside / "entry.json", to_json(content), durable=True)
        _to_disk(beside)
        _rename_new(beside, entry)
        _to_disk(directory)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def check_destinations(destinations: Iterable[str]) -> None:
    """Raise KochiError for a destination that cannot be a path below the machine's directory of the
    branch, and for two of which one is a directory of the other."""
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
            raise KochiError(f"artifact destination {dest!r}: '{RESERVED}/' is for records")
        for parent in map(str, PurePosixPath(dest).parents):
            if parent in chosen:
                raise KochiError(
                    f"artifact destinations {parent!r} and {dest!r} exclude each other: one would "
                    "be a file and a directory",
                    "Give one of them another `dest:`.",
                )


def pending(paths: ProjectPaths, machine: str) -> tuple[str, ...]:
    """Identities of the results waiting in the journal."""
    try:
        return tuple(sorted(filter(is_name, os.listdir(paths.journal(machine)))))
    except FileNotFoundError:
        return ()


def is_commit_due(paths: ProjectPaths, machine: str) -> bool:
    """Whether a process that has just journaled a result should commit: the last commit was some
    seconds ago. A run that takes long is then committed at once, short ones many together."""
    try:
        age = time.time() - paths.committed(machine).stat().st_mtime
    except FileNotFoundError:
        return True
    # The clock that the filesystem goes by may be ahead of ours.
    return not 0 <= age < COMMIT_INTERVAL


def read_entry(directory: Path) -> JournalEntry:
    """Read a journal entry and check that it is whole. Raises DamagedFileError."""
    try:
        content = read_json(directory / "entry.json", VERSION)
        files = {
            str(item["dest"]): (directory / str(int(item["file"])), int(item["size"]))
            for item in content["files"]
        }
        check_destinations(files)
        entry = JournalEntry(
            directory.name, directory, int(content["time"]), files, dict(content["record"])
        )
        for file, size in files.values():
            found = file.stat().st_size
            if found != size:
                raise DamagedFileError(f"{file}: {size} bytes were expected, {found} are there")
    except DamagedFileError:
        raise
    except (OSError, KeyError, TypeError, ValueError, KochiError) as error:
        raise DamagedFileError(f"{directory}: not a whole journal entry ({error})") from error
    return entry


def set_aside(paths: ProjectPaths, machine: str, damaged: DamagedFileError, entry: Path) -> None:
    """Move an entry that cannot be committed to where it is in nobody's way; never delete it."""
    place = make_directory(paths.damaged_results(machine))
    target = place / entry.name
    if target.exists():
        target = place / f"{entry.name}.{secrets.token_hex(4)}"
    try:
        os.rename(entry, target)
    except FileNotFoundError:
        return  # where locks do not work another committer may have committed and removed it
    _logger.warning("%s; set aside in %s", damaged.message, target)


def remove_entries(paths: ProjectPaths, machine: str, identities: Iterable[str]) -> None:
    """Remove committed entries, and what journaling processes killed long ago have left."""
    directory = paths.journal(machine)
    for identity in identities:
        # Half a removal would look like a damaged entry; the record in the branch tells otherwise.
        shutil.rmtree(directory / identity, ignore_errors=True)
    for leftover in directory.glob(".*.tmp"):
        try:
            abandoned = time.time() - leftover.stat().st_mtime > _ABANDONED
        except FileNotFoundError:
            continue
        if abandoned:
            shutil.rmtree(leftover, ignore_errors=True)


def _copy(dest: str, source: Path, target: Path, size_limit: int) -> int:
    """Copy durably and return the size: what was read counts, a file may still grow."""
    try:
        # A named pipe would block for ever, here or in open().
        if source.exists() and not source.is_file():
            raise PhaseError(f"artifact '{dest}': {source} is not a regular file")
        with open(source, "rb") as reader, open(target, "xb") as writer:
            size = _copy_stream(dest, reader, writer, size_limit)
            writer.flush()
            os.fsync(writer.fileno())
    except OSError as error:
        if error.filename != str(source):
            raise
        raise PhaseError(
            f"artifact '{dest}': {source} cannot be read ({error.strerror})",
            "The job succeeded without leaving this file; see its `src:`.",
        ) from error
    return size


def _copy_stream(dest: str, reader: IO[bytes], writer: IO[bytes], size_limit: int) -> int:
    size = 0
    while block := reader.read(_BLOCK):
        size += len(block)
        if size > size_limit:
            real = max(size, os.fstat(reader.fileno()).st_size)
            raise ArtifactTooLargeError(
                f"artifact '{dest}' has {real / MEBIBYTE:.1f} MiB ({reader.name}); up to "
                f"{size_limit / MEBIBYTE:.1f} MiB go into git",
                "Make it smaller (compress it, write less) or keep it outside the artifacts.",
            )
        writer.write(block)
    return size


def _rename_new(beside: Path, entry: Path) -> None:
    try:
        os.rename(beside, entry)
    except OSError:
        # The same result journaled by somebody else in the meantime is as good.
        if not entry.is_dir():
            raise


def _to_disk(directory: Path) -> None:
    """Without it a power failure may take the name though the content is safe."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
