"""Large files: their content is in the object store of git-lfs, a pointer to it is in the branch.

A pointer is a small text: `version https://git-lfs.github.com/spec/v1`, `oid sha256:<digest>` and
`size <bytes>`, a line each (https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md).

<store>/objects/aa/bb/<digest>   the content whose SHA-256 is aabb...; appears by one rename
<store>/tmp/kochi-<random>       a copy that is being made

The store is `lfs/` in the repository's own directory, or where git's setting lfs.storage says, as
for git-lfs. Kochi adds to it and removes nothing; the program git-lfs is not needed for that.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from snakemake_kochi.files import (
    LARGE_BLOCK,
    answered,
    blocks_of,
    list_names,
    move,
    random_word,
    sync,
    sync_directory,
)

MEBIBYTE = 1 << 20
LARGE = 10 * MEBIBYTE  # bytes; larger files are kept as pointers unless kochi.yaml says otherwise
# Bytes. git-lfs takes no larger file for a pointer.
LONGEST_POINTER = 1024
_POINTER = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\n"
    rb"oid sha256:([0-9a-f]{64})\nsize (0|[1-9][0-9]{0,17})\n"
)
_COPY = "kochi-"
# Seconds after which the copy of a killed process is removed: none takes that long.
_ABANDONED = 24 * 3600
# The bits that each value of core.sharedRepository adds, see git-config(1); other values are octal.
_SHARED = {
    **dict.fromkeys(("group", "true", "1", "yes", "on"), 0o660),
    **dict.fromkeys(("all", "world", "everybody", "2"), 0o664),
}


@dataclass(frozen=True)
class Pointer:
    """`sha256` in hex, `size` in bytes."""

    sha256: str
    size: int

    @classmethod
    def of_record(cls, record: Mapping[str, Any], dest: str) -> Pointer | None:
        """What a record says of an artifact; None if it is an old one, or was edited."""
        with suppress(KeyError, TypeError, ValueError):
            own: Mapping[str, Any]
            own = next((each for each in record["artifacts"] if each["dest"] == dest), {})
            if re.fullmatch("[0-9a-f]{64}", own["sha256"]):
                return cls(own["sha256"], int(own["size"]))
        return None

    @property
    def text(self) -> bytes:
        return (
            f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\n"
            f"size {self.size}\n"
        ).encode()


def parse_pointer(content: bytes) -> Pointer | None:
    """The pointer that a file is; None if it is something else."""
    found = _POINTER.fullmatch(content)
    return Pointer(found[1].decode(), int(found[2])) if found else None


def digest_of(content: IO[bytes], is_in_branch: bool = True) -> str:
    """The SHA-256 of a result, in hex, from its file, or from its pointer in a branch."""
    beginning = content.read(LONGEST_POINTER)
    if is_in_branch and (pointer := parse_pointer(beginning)) is not None:
        return pointer.sha256
    digest = hashlib.sha256(beginning)
    for block in blocks_of(content, LARGE_BLOCK):
        digest.update(block)
    return digest.hexdigest()


def opened(file: Path) -> IO[bytes]:
    """A file to read. Raises OSError, with its name."""
    return answered(lambda: open(file, "rb"))


def is_large(content: IO[bytes], limit: int | None) -> bool:
    """Whether a file has more bytes than a limit (by default LARGE), and goes to the store.

    So does a small one that looks like a pointer: each pointer in a branch is then one of ours.
    """
    size = os.fstat(content.fileno()).st_size
    if size > LONGEST_POINTER:
        return size > (LARGE if limit is None else limit)
    beginning = content.read(LONGEST_POINTER)
    content.seek(0)
    return parse_pointer(beginning) is not None


@dataclass(frozen=True)
class Store:
    """The contents of a repository's large files.

    `shared` are the permissions that git adds to new files of the repository.
    """

    directory: Path
    shared: int = 0

    @classmethod
    def of(cls, repository: Path) -> Store:
        """Raises GitError."""
        # Imported here: a run without large files does not load git.
        from snakemake_kochi.git import run_git

        told = run_git(repository, "rev-parse", "--path-format=absolute", "--git-common-dir")
        own = Path(os.fsdecode(told.removesuffix(b"\n")))
        keys = r"^(lfs\.storage|core\.sharedrepository)$"
        words = ("config", "--null", "--get-regexp", keys)
        settings = run_git(repository, *words, accept=(0, 1)).split(b"\0")
        found = dict(os.fsdecode(each).partition("\n")[::2] for each in settings)
        return cls(
            # A relative lfs.storage is meant from the repository's own directory.
            own / (found.get("lfs.storage") or "lfs"),
            _shared_mode(found.get("core.sharedrepository", "")),
        )

    def path(self, pointer: Pointer) -> Path:
        """Where the content of a pointer is, or will be."""
        digest = pointer.sha256
        return self.directory / "objects" / digest[:2] / digest[2:4] / digest

    def has(self, pointer: Pointer) -> bool:
        """Whether the content is there, with its size. Raises OSError when that is unknown now."""
        try:
            found = answered(partial(os.stat, self.path(pointer)))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return stat.S_ISREG(found.st_mode) and found.st_size == pointer.size

    def put(self, content: IO[bytes], known: Pointer | None = None) -> Pointer:
        """Copy a content into the store; when this returns, it survives a crash of the computer.

        It is copied, because a link would change with a file that somebody edits in place, and its
        digest is that of the copied bytes. If the store has the content that is `known` to be the
        result, nothing is copied. Raises OSError; then nothing was added.
        """
        if known is not None and self.has(known):
            return known
        beside = self._make(self.directory / "tmp") / f"{_COPY}{random_word(8)}"
        try:
            with open(beside, "xb") as writer:
                digest = hashlib.sha256()
                for block in blocks_of(content, LARGE_BLOCK):
                    digest.update(block)
                    writer.write(block)
                writer.flush()
                sync(writer.fileno())
                pointer = Pointer(digest.hexdigest(), writer.tell())
                _add_mode(writer.fileno(), self.shared)
            if not self.has(pointer):
                place = self.path(pointer)
                self._make(place.parent)
                move(beside, place)
                sync_directory(place.parent)
        finally:
            beside.unlink(missing_ok=True)
            self._remove_abandoned()
        return pointer

    def _make(self, directory: Path) -> Path:
        """Make a directory and those above it, durably, with the modes of the repository."""
        missing = []
        while not directory.is_dir():
            missing.append(directory)
            directory = directory.parent
        for each in reversed(missing):
            with suppress(FileExistsError):
                each.mkdir()
                # Whoever may read or write a directory may search it; new files get its group.
                search = (self.shared & 0o444) >> 2
                _add_mode(each, self.shared | search | stat.S_ISGID if self.shared else 0)
            sync_directory(each.parent)
        return missing[0] if missing else directory

    def _remove_abandoned(self) -> None:
        place = self.directory / "tmp"
        with suppress(OSError):
            for name in list_names(place):
                file = place / name
                if name.startswith(_COPY) and time.time() - file.stat().st_mtime > _ABANDONED:
                    file.unlink(missing_ok=True)


def _shared_mode(value: str) -> int:
    """The permissions that a value of core.sharedRepository adds to files."""
    if value.lower() in _SHARED:
        return _SHARED[value.lower()]
    return int(value, 8) & 0o666 if re.fullmatch("0[0-7]+", value) else 0


def _add_mode(file: int | Path, added: int) -> None:
    if added:
        with suppress(OSError):  # the mount may fix the modes
            os.chmod(file, stat.S_IMODE(os.stat(file).st_mode) | added)
