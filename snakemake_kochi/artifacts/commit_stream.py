"""The input of git's fast-import: the commits that add results to a branch."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from snakemake_kochi.artifacts.journal import RESERVED, JournalEntry
from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import to_json
from snakemake_kochi.git import COMMITTER

_BLOCK = 1 << 20


class UnreadableEntryError(Exception):
    """A file of an entry cannot be read now; the others can be committed without it."""

    def __init__(self, entry: JournalEntry, why: OSError) -> None:
        super().__init__(str(why))
        self.entry = entry


def records_directory(name: str) -> str:
    """The directory of the branch with the records of results that are published under a name."""
    return f"{name}/{RESERVED}/records"


def record_path(name: str, identity: str) -> str:
    """The path in the branch of a result's record.

    In one directory for all, every commit would have to write that directory anew.
    """
    shard = hashlib.sha256(identity.encode()).hexdigest()[:2]
    return f"{records_directory(name)}/{shard}/{identity}.json"


def stream_commits(
    parent: str, name: str, entries: Sequence[JournalEntry], superseded: Sequence[str]
) -> Iterator[bytes]:
    """The commands of fast-import (see git-fast-import(1)) that add entries to a commit ("": none),
    and remove superseded paths; the answer is the id of the last commit.

    Raises UnreadableEntryError, and DamagedFileError for a file that differs from its entry.
    """
    for mark, group in enumerate(_compatible(entries), start=1):
        yield from _stream_commit(mark, parent, name, group, superseded if mark == 1 else ())
        parent = f":{mark}"
    yield b"get-mark %s\ndone\n" % parent.encode()


def _compatible(entries: Sequence[JournalEntry]) -> list[list[JournalEntry]]:
    """Split the entries, in order, where one would overwrite a file of its own commit."""
    groups: list[list[JournalEntry]] = []
    files: set[str] = set()
    directories: set[str] = set()
    for entry in entries:
        parents = {str(parent) for dest in entry.files for parent in PurePosixPath(dest).parents}
        parents.discard(".")
        if not groups or files & parents or (files | directories) & entry.files.keys():
            groups.append([])
            files, directories = set(), set()
        groups[-1].append(entry)
        files |= entry.files.keys()
        directories |= parents
    return groups


def _stream_commit(
    mark: int,
    parent: str,
    name: str,
    entries: Sequence[JournalEntry],
    superseded: Sequence[str],
) -> Iterator[bytes]:
    who = f"{COMMITTER['GIT_COMMITTER_NAME']} <{COMMITTER['GIT_COMMITTER_EMAIL']}>"
    count = len(entries)
    subject = f"{count} result{'s' if count != 1 else ''} from {name}"
    # An identity is the name of the run, its time and a nonce, with dots between them.
    labels = {entry.identity.rsplit(".", 2)[0] for entry in entries}
    if len(labels) == 1:
        subject = f"{labels.pop()}: {subject}"
    message = "\n".join((subject, "", *(entry.identity for entry in entries))).encode()
    yield b"commit refs/heads/new\nmark :%d\n" % mark
    yield f"committer {who} {int(time.time())} +0000\n".encode()
    yield b"data %d\n%s\n" % (len(message), message)
    if parent:
        yield f"from {parent}\n".encode()
    for path in superseded:
        yield b"D %s\n" % _quoted(path)
    for entry in entries:
        for dest, (file, size) in entry.files.items():
            yield b"M 100644 inline %s\ndata %d\n" % (_quoted(f"{name}/{dest}"), size)
            try:
                yield from _content(file, size)
            except OSError as error:
                raise UnreadableEntryError(entry, error) from error
        record, place = to_json(entry.record), record_path(name, entry.identity)
        yield b"M 100644 inline %s\ndata %d\n%s\n" % (_quoted(place), len(record), record)
    yield b"\n"


def _content(file: Path, size: int) -> Iterator[bytes]:
    with open(file, "rb") as stream:
        while block := stream.read(_BLOCK):
            size -= len(block)
            yield block
    if size:
        # Otherwise git would take the following commands for the rest of the file.
        raise DamagedFileError(f"{file}: changed while it was read")
    yield b"\n"


def _quoted(path: str) -> bytes:
    raw = os.fsencode(path)
    for character, escaped in ((b"\\", b"\\\\"), (b'"', b'\\"'), (b"\n", b"\\n")):
        raw = raw.replace(character, escaped)
    return b'"' + raw + b'"'
