"""The content of artifacts in a commit, whether the branch has it or a pointer to it."""

from __future__ import annotations

import io
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from humanfriendly import format_size

from snakemake_kochi.artifacts.large import LONGEST_POINTER, Pointer, Store, parse_pointer
from snakemake_kochi.errors import (
    DamagedFileError,
    GitError,
    KochiError,
    MissingContentError,
    NameNotFoundError,
    nearest,
)
from snakemake_kochi.files import LARGE_BLOCK, blocks_of, copy_stream, random_word
from snakemake_kochi.git import how_to_complete, read_objects, reading_git, run_git

_AT_ONCE = 500  # paths in one command
_KNOWN_AS = 500  # paths, among which a misspelt one is looked up


@dataclass(frozen=True)
class Blob:
    """A file of a commit as git has it; `size` is None if this clone lacks it."""

    identity: str
    size: int | None


def read_artifacts(
    repository: Path, commit: str, paths: Sequence[str]
) -> Iterator[tuple[str, IO[bytes]]]:
    """The paths of artifacts in a commit, and the content of each as a stream.

    Read each stream before you take the next one. It is the file that the run wrote, also if it is
    large and the branch has a pointer. Before anything is given, raises NameNotFoundError for a
    path that is not in the commit, MissingContentError (with `paths`) if contents of large files
    are not in this clone: its hint is the command that fetches them; GitError for a commit that is
    not there, or whose files are not. While a stream is read, DamagedFileError for a content that
    lost its end.
    """
    blobs = blobs_at(repository, commit, paths)
    pointers = pointers_among(repository, blobs)
    store = Store.of(repository) if pointers else None
    if store is not None:
        lacking = {path: each for path, each in pointers.items() if not store.has(each)}
        if lacking:
            raise _missing(lacking, commit)
    asked = [path for path in paths if path not in pointers]
    questions = "".join(f"{blobs[path].identity}\n" for path in asked).encode()
    with reading_git(repository, questions, "cat-file", "--batch") as answers:
        for path in paths:
            if store is not None and path in pointers:
                with open(store.path(pointers[path]), "rb") as stream:
                    yield path, stream
            else:
                header = answers.readline().split()
                if len(header) != 3:
                    raise DamagedFileError(f"{path}: git lost its content while it was read")
                with closing(io.BufferedReader(_Part(answers, int(header[2]), path))) as part:
                    yield path, part
                    for _ in blocks_of(part):
                        pass
                answers.read(1)


def write_artifact(repository: Path, commit: str, path: str, target: Path) -> None:
    """Write an artifact of a commit to a file, as a whole or not at all.

    Raises as `read_artifacts`, and KochiError if there is no directory for the file.
    """
    beside = target.with_name(f".{target.name[:200]}.{random_word()}.tmp")
    try:
        for _, stream in read_artifacts(repository, commit, [path]):
            with open(beside, "xb") as writer:
                copy_stream(stream, writer, LARGE_BLOCK)
        os.replace(beside, target)
    except OSError as error:
        raise KochiError(f"{target}: cannot be written ({error.strerror})") from error
    finally:
        beside.unlink(missing_ok=True)


def blobs_at(repository: Path, commit: str, paths: Sequence[str]) -> Mapping[str, Blob]:
    """The files of a commit by their paths. Raises NameNotFoundError for a path that is none, and
    GitError."""
    found: dict[str, Blob] = {}
    for first in range(0, len(paths), _AT_ONCE):
        asked = paths[first : first + _AT_ONCE]
        words = ("ls-tree", "-z", "--long", "--full-tree", "--end-of-options", commit, *asked)
        for line in run_git(repository, *words).split(b"\0")[:-1]:
            description, _, name = line.partition(b"\t")
            _, kind, identity, size = description.decode().split()
            if kind == "blob":
                known = int(size) if size.isdigit() else None
                found[os.fsdecode(name)] = Blob(identity, known)
    for path in paths:
        if path not in found:
            raise no_such_file(repository, commit, path)
    return found


def pointers_among(repository: Path, blobs: Mapping[str, Blob]) -> dict[str, Pointer]:
    """The files that are pointers. Raises GitError if this clone lacks one of the files."""
    small = [path for path, blob in blobs.items() if (blob.size or 0) <= LONGEST_POINTER]
    pointers = {}
    contents = read_objects(repository, [blobs[path].identity for path in small])
    for path, content in zip(small, contents, strict=True):
        if content is None:
            identity = blobs[path].identity
            raise GitError(f"{path}: this clone has no object {identity}", how_to_complete())
        if (pointer := parse_pointer(content)) is not None:
            pointers[path] = pointer
    return pointers


def _missing(lacking: Mapping[str, Pointer], commit: str) -> MissingContentError:
    total = format_size(sum(each.size for each in lacking.values()), binary=True)
    first = next(iter(lacking))
    more = "" if len(lacking) == 1 else f" and {len(lacking) - 1} more"
    typed = shlex.join(["kochi", "artifact", "fetch", "--at", commit, first])
    all_of_them = "" if len(lacking) == 1 else "\nFor all: kochi artifact fetch --large"
    return MissingContentError(
        f"{first}{more}: large files, of which this clone has only pointers ({total})",
        f"To fetch it, type: {typed}{all_of_them}",
        paths=tuple(lacking),
    )


def no_such_file(repository: Path, commit: str, path: str) -> NameNotFoundError:
    """The error for a path that a commit does not have, with the nearest one. Raises GitError."""
    words = ("ls-tree", "-r", "-z", "--name-only", "--full-tree", "--end-of-options", commit)
    listed = run_git(repository, *words).split(b"\0")[:-1][:_KNOWN_AS]
    files = map(os.fsdecode, listed)
    known = [each for each in files if not {".kochi", ".gitattributes"} & {*each.split("/")}]
    return NameNotFoundError(f"{path}: no such file in commit {commit[:12]}", nearest(path, known))


class _Part(io.RawIOBase):
    """The next bytes of a stream, as a stream of their own."""

    def __init__(self, whole: IO[bytes], size: int, name: str) -> None:
        super().__init__()
        self._whole, self._left, self._name = whole, size, name

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        block = self._whole.read(min(self._left, len(buffer)))
        if self._left and not block:
            raise DamagedFileError(f"{self._name}: git lost its content while it was read")
        buffer[: len(block)] = block
        self._left -= len(block)
        return len(block)
