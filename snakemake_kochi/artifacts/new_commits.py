"""The next commits of a machine's branch, as git's fast-import reads them.

<name>/<directory>/.gitattributes   names the large files of that directory for git-lfs, so that a
                                    checkout has them and not their pointers
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from snakemake_kochi.artifacts.branch_content import Branch, record_path
from snakemake_kochi.artifacts.entry import ATTRIBUTES, RESERVED, Content, JournalEntry
from snakemake_kochi.artifacts.record import is_success, label_of
from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import LARGE_BLOCK, to_json
from snakemake_kochi.git import COMMITTER, FULL_IDENTITY, reading_git

_POINTER = b" filter=lfs diff=lfs merge=lfs -text\n"
# Two clones may both add lines: a merge then takes all.
_UNION = b"/.gitattributes merge=union\n"


class UnreadableEntryError(Exception):
    """A file of an entry cannot be read now; the others can be committed without it."""

    def __init__(self, entry: JournalEntry, why: OSError) -> None:
        super().__init__(str(why))
        self.entry = entry


def read_attributes(
    repository: Path, state: Branch, entries: Sequence[JournalEntry]
) -> dict[str, bytes]:
    """The `.gitattributes` of the directories in which entries have files, by directory."""
    wanted = {f"{state.name}/{dest}".rpartition("/")[0] for e in entries for dest in e.destinations}
    # Git reads questions by lines. There may be no files with line ends in their names.
    asked = sorted(each for each in wanted if "\n" not in each) if state.start else []
    if not asked:
        return {}
    questions = "".join(f"{state.start}:{each}/{ATTRIBUTES}\n" for each in asked)
    found = {}
    with reading_git(repository, os.fsencode(questions), "cat-file", "--batch") as answers:
        for directory in asked:
            header = answers.readline()
            if not header.endswith(b" missing\n"):
                found[directory] = answers.read(int(header.split()[-1]) + 1)[:-1]
    return found


def stream_commits(
    parent: str,
    name: str,
    entries: Sequence[JournalEntry],
    superseded: Sequence[str],
    attributes: Mapping[str, bytes],
) -> Iterator[bytes]:
    """The commands of git-fast-import(1) that add entries to a commit ("": none).

    They also remove superseded paths. `attributes`: see `read_attributes`. The answer of
    fast-import is the id of the last commit.

    Raises UnreadableEntryError, and DamagedFileError for a file that differs from its entry.
    """
    attributes = dict(attributes)
    for mark, group in enumerate(_compatible(entries), start=1):
        yield from _stream_commit(mark, parent, name, group, superseded if mark == 1 else ())
        yield from _stream_attributes(name, group, attributes)
        yield b"\n"
        parent = f":{mark}"
    yield b"get-mark %s\ndone\n" % parent.encode()


def _compatible(entries: Sequence[JournalEntry]) -> list[list[JournalEntry]]:
    """Split the entries, in order, where one would overwrite a file of its own commit."""
    groups: list[list[JournalEntry]] = []
    files: set[str] = set()
    directories: set[str] = set()
    for entry in entries:
        own = entry.destinations
        parents = {str(parent) for dest in own for parent in PurePosixPath(dest).parents}
        parents.discard(".")
        if not groups or files & parents or (files | directories) & own:
            groups.append([])
            files, directories = set(), set()
        groups[-1].append(entry)
        files |= own
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
    failed = sum(not is_success(entry.record) for entry in entries)
    counts = [(len(entries) - failed, "result"), (failed, "failed attempt")]
    told = [f"{count} {what}{'s' if count != 1 else ''}" for count, what in counts if count]
    subject = f"{' and '.join(told)} from {name}"
    labels = {label_of(entry.identity) for entry in entries}
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
        for dest, content in entry.files.items():
            yield b"M 100644 inline %s\ndata %d\n" % (_quoted(f"{name}/{dest}"), content.size)
            try:
                yield from _stream(content)
            except OSError as error:
                raise UnreadableEntryError(entry, error) from error
        for dest, pointer in entry.large.items():
            yield _file(f"{name}/{dest}", pointer.text)
        place = record_path(name, entry.identity, failed=not is_success(entry.record))
        yield _file(place, to_json(entry.record))
    for tree, text in _differences(entries).items():
        yield _file(f"{name}/{RESERVED}/diffs/{tree}.diff", text)


def _differences(entries: Sequence[JournalEntry]) -> dict[str, bytes]:
    """How each snapshot that differs from its commit does so, for people: by the tree's id.

    In a record, this text is one long line.
    """
    found = {}
    for entry in entries:
        for key in ("snapshot", "configuration"):
            # There is no such key, or the record was journaled by others.
            with suppress(KeyError, TypeError, AttributeError):
                snapshot = entry.record[key]
                if snapshot["diff"] and FULL_IDENTITY.fullmatch(snapshot["tree"]):
                    found[snapshot["tree"]] = snapshot["diff"].encode("utf-8", "surrogateescape")
    return found


def _stream_attributes(
    name: str, entries: Sequence[JournalEntry], attributes: dict[str, bytes]
) -> Iterator[bytes]:
    """Write the attributes that differ after some entries, also into `attributes`."""
    large: dict[str, dict[str, bool]] = {}  # by directory: whether a file in it is large
    for entry in entries:
        for dest in entry.destinations:
            directory, _, file = f"{name}/{dest}".rpartition("/")
            large.setdefault(directory, {})[file] = dest in entry.large
    for directory, files in large.items():
        before = attributes.get(directory, b"")
        after = _with_lines(before, files)
        if after != before:
            attributes[directory] = after
            path = f"{directory}/{ATTRIBUTES}"
            yield _file(path, after) if after else b"D %s\n" % _quoted(path)


def _with_lines(content: bytes, files: Mapping[str, bool]) -> bytes:
    """The attributes of a directory in which some files are large, and some are not any more."""
    lines = set(content.splitlines(keepends=True)) - {_UNION}
    for file, is_large in files.items():
        line = b"/" + _pattern(file) + _POINTER
        lines = lines | {line} if is_large else lines - {line}
    return b"".join((_UNION, *sorted(lines))) if lines else b""


def _pattern(name: str) -> bytes:
    """A pattern of gitattributes(5) for one name, written as git-lfs does."""
    pattern = re.sub(rb"[*?\[\]\\!#\"]", rb"\\\g<0>", os.fsencode(name))
    return re.sub(rb"\s", b"[[:space:]]", pattern)


def _file(path: str, content: bytes) -> bytes:
    return b"M 100644 inline %s\ndata %d\n%s\n" % (_quoted(path), len(content), content)


def _stream(content: Content) -> Iterator[bytes]:
    left = content.size
    with open(content.file, "rb") as stream:
        stream.seek(content.offset)
        while block := stream.read(min(left, LARGE_BLOCK)):
            left -= len(block)
            yield block
    if left:
        # Otherwise git would take the following commands for the rest of the file.
        raise DamagedFileError(f"{content.file}: changed while it was read")
    yield b"\n"


def _quoted(path: str) -> bytes:
    raw = os.fsencode(path)
    for character, escaped in ((b"\\", b"\\\\"), (b'"', b'\\"'), (b"\n", b"\\n")):
        raw = raw.replace(character, escaped)
    return b'"' + raw + b'"'
