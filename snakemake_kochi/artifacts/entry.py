"""An entry of the journal: one file with the record of a result and the contents of its artifacts.

It begins with a JSON object in lines, {"version", "identity", "time" (ns since 1970), "files":
[{"dest", "size" (bytes)}], "large": [{"dest", "sha256", "size"}], "record"}. After an empty line,
the contents of `files` follow in their order, with nothing between them. Large files are not in the
entry: their contents are in the store of `large.py`.

Until version 2 an entry was a directory: `entry.json`, whose `files` also had "file", and the
contents in files of these names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from snakemake_kochi.artifacts.large import Pointer, opened
from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import answered, is_there, list_names, parse_json, read_json, to_json

Found = TypeVar("Found")

VERSION = 3
RESERVED = ".kochi"  # kochi's own directory in each directory of a branch
ATTRIBUTES = ".gitattributes"  # kochi's own file in each directory with large files
_HEAD = "entry.json"  # of a directory


@dataclass(frozen=True)
class Content:
    """Where the content of an artifact is: `size` bytes of a file, from `offset` on."""

    file: Path
    size: int
    offset: int = 0


@dataclass(frozen=True)
class JournalEntry:
    """A journaled result.

    `files` maps destinations to the contents that `place` or the results directory has, `large`
    those of large files to their pointers.
    """

    identity: str
    place: Path
    time: int
    files: Mapping[str, Content]
    record: Mapping[str, Any]
    large: Mapping[str, Pointer] = field(default_factory=dict)

    @property
    def destinations(self) -> set[str]:
        return {*self.files, *self.large}


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


def head_of(content: Mapping[str, Any]) -> bytes:
    """The beginning of an entry's file, before the contents of its artifacts."""
    return to_json({"version": VERSION, **content}) + b"\n"


def read_entry(place: Path) -> JournalEntry:
    """Read a journal entry and check that it is complete.

    Raises DamagedFileError when it certainly is not, FileNotFoundError when it is gone. Another
    OSError or KochiError means that it may be readable later, or by a newer version.
    """
    head, end = _read_head(place)
    files = _files_of_directory(place, head) if end is None else _contents(place, head, *end)
    try:
        large = {
            str(item["dest"]): Pointer(str(item["sha256"]), int(item["size"]))
            for item in head.get("large", ())
        }
        record, moment = dict(head["record"]), int(head["time"])
    except (KeyError, TypeError, ValueError) as error:
        raise _incomplete(place, error) from error
    try:
        check_destinations((*files, *large))
    except KochiError as error:
        raise DamagedFileError(f"{place}: {error.message}") from error
    return JournalEntry(place.name, place, moment, files, record, large)


def read_record(place: Path) -> dict[str, Any]:
    """The record of an entry whose contents may be incomplete. Raises as `read_entry`, and
    KeyError, TypeError and ValueError if there is none."""
    return dict(_read_head(place)[0]["record"])


def _read_head(place: Path) -> tuple[dict[str, Any], tuple[int, int] | None]:
    """The JSON object; and the sizes of what it takes and of the whole file, None for a
    directory."""
    try:
        with opened(place) as stream:
            lines = []
            while (line := stream.readline()) != b"\n":
                if not line:
                    raise DamagedFileError(f"{place}: the end of its JSON object is missing")
                lines.append(line)
            end = (stream.tell(), os.fstat(stream.fileno()).st_size)
    except IsADirectoryError:
        return _whole(place, lambda: _checked(read_json(place / _HEAD), place)), None
    except FileNotFoundError as error:
        # A look-up alone may be answered from a cache.
        if place.name in list_names(place.parent):
            raise KochiError(f"{place} is listed, but cannot be opened") from error
        raise
    return _checked(parse_json(b"".join(lines), place), place), end


def _checked(head: dict[str, Any], place: Path) -> dict[str, Any]:
    # Not by parse_json: an entry that is too new for this release is not damaged.
    with suppress(KeyError, TypeError, ValueError):
        if (version := int(head["version"])) > VERSION:
            raise KochiError(
                f"{place}: written by a newer snakemake_kochi (format {version}, this one "
                f"reads up to {VERSION})"
            )
    return head


def _contents(place: Path, head: Mapping[str, Any], offset: int, end: int) -> dict[str, Content]:
    found = {}
    try:
        for item in head["files"]:
            if (size := int(item["size"])) < 0:
                raise ValueError(f"size {size}")
            found[str(item["dest"])] = Content(place, size, offset)
            offset += size
    except (KeyError, TypeError, ValueError) as error:
        raise _incomplete(place, error) from error
    if offset != end:
        raise DamagedFileError(f"{place}: {offset} bytes were expected, {end} are there")
    return found


def _incomplete(place: Path, error: Exception) -> DamagedFileError:
    return DamagedFileError(f"{place}: not a complete journal entry ({error!r})")


# ---- directories


def _files_of_directory(directory: Path, head: Mapping[str, Any]) -> dict[str, Content]:
    try:
        files = {
            str(item["dest"]): Content(directory / str(int(item["file"])), int(item["size"]))
            for item in head["files"]
        }
    except (KeyError, TypeError, ValueError) as error:
        raise _incomplete(directory, error) from error
    for content in files.values():
        found = _whole(directory, partial(answered, partial(_size, content.file)))
        if found != content.size:
            raise DamagedFileError(
                f"{content.file}: {content.size} bytes were expected, {found} are there"
            )
    return files


def _whole(directory: Path, read: Callable[[], Found]) -> Found:
    """The result of `read`, which reads an entry that is a directory.

    It appeared as a whole. A missing file is damage only if the directory does not list it either:
    a look-up alone may be answered from a cache.
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
