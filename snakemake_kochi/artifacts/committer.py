"""The committer: many journaled results become one commit on the machine's branch.

Of the user's repository only objects are added and the branch's ref is moved, by compare-and-swap.
Git's fast-import reads just the directories that change, so a commit costs the same however many
artifacts the branch has. It works in a repository of a moment (it leaves crash reports in the
repository it works for) that writes its objects to the user's.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from filelock import FileLock, Timeout

from snakemake_kochi.artifacts.journal import (
    RESERVED,
    JournalEntry,
    pending,
    read_entry,
    remove_entries,
    set_aside,
)
from snakemake_kochi.artifacts.promise import is_commit_promised
from snakemake_kochi.errors import DamagedFileError, GitError, KochiError
from snakemake_kochi.files import make_directory, to_json
from snakemake_kochi.git import COMMITTER, run_git, stream_git, update_ref
from snakemake_kochi.paths import ProjectPaths

_BLOCK = 1 << 20
_MOVED_AT_MOST = 20  # commits by others between our reading the branch and moving it


def branch(machine: str) -> str:
    """Name of the branch of one machine. Raises KochiError when git allows no such name."""
    if ".." in machine or machine.endswith((".", ".lock")):
        raise KochiError(
            f"machine name {machine!r} cannot be used: it becomes part of the name of a git branch",
            "Rename it: no two dots in a row, no dot or '.lock' at the end.",
        )
    return f"kochi_artifacts_{machine}"


def record_path(machine: str, identity: str) -> str:
    """Where in the branch the record of a result is. One directory for all would be written anew,
    whole, by every commit."""
    shard = hashlib.sha256(identity.encode()).hexdigest()[:2]
    return f"{machine}/{RESERVED}/records/{shard}/{identity}.json"


def committer_lock(paths: ProjectPaths, machine: str, timeout: float) -> FileLock:
    """The lock whose holder alone moves the machine's branch. Timeout in seconds, 0: no waiting."""
    path = paths.committer_lock(machine)
    make_directory(path.parent)
    return FileLock(path, timeout=timeout, fallback_to_soft=False, preserve_lock_file=True)


def commit_pending(
    repository: Path, paths: ProjectPaths, machine: str, patience: float = 0.0
) -> int:
    """Commit all journaled results of a machine in one commit; return how many were committed.

    Artifacts go to <machine>/<dest>, records to `record_path`. When another process is committing
    this waits for `patience` seconds, and then returns 0: that one looks into the journal again
    after it has let go of the lock, or somebody has promised to, so nothing stays behind. Killed
    at any point, the next call completes the work, and a result whose record is in the branch is
    not committed again. Where a destination was a file and is now a directory, or the reverse, or
    the same file, the newest result wins; the older is in the history (for that, results that
    exclude each other go into commits of their own). A damaged entry is set aside with a warning.
    If the branch is checked out somewhere only the ref moves, and that worktree shows the new
    results as deleted until `git reset --hard`.

    Raises GitError; the results stay in the journal then.
    """
    branch(machine)
    committed = 0
    seen: tuple[str, ...] = ()  # an entry that cannot be removed must not keep us here for ever
    while (waiting := pending(paths, machine)) and waiting != seen:
        seen = waiting
        try:
            with committer_lock(paths, machine, patience):
                committed += _commit_journal(repository, paths, machine)
        except Timeout:
            break
    return committed


def commit_in_burst(
    repository: Path, paths: ProjectPaths, machine: str, patience: float = 0.0
) -> int:
    """As `commit_pending`, but what is journaled meanwhile is left to those who have promised to
    commit it, if there are any: a run that went on for as long as others end would not end.

    Raises KochiError, too, when others hold the lock for longer than a `patience` above 0.
    """
    branch(machine)
    committed = 0
    try:
        with committer_lock(paths, machine, patience):
            # Before, too: those who end meanwhile need not come here and find it locked.
            paths.committed(machine).touch(mode=0o600)
            committed = _commit_journal(repository, paths, machine)
    except Timeout:
        if patience:
            raise KochiError(
                f"another process has been committing for {patience:g} seconds"
            ) from None
    # Asked after the lock was let go: who found it locked, with no promise, has relied on that.
    if not is_commit_promised(paths, machine):
        committed += commit_pending(repository, paths, machine)
    return committed


@dataclass(frozen=True)
class _Branch:
    ref: str
    tip: str  # "" before the first commit
    objects: Path
    object_format: str


def _commit_journal(repository: Path, paths: ProjectPaths, machine: str) -> int:
    for _ in range(_MOVED_AT_MOST):
        state = _read_branch(repository, machine)
        identities = pending(paths, machine)
        recorded = _recorded(repository, state, machine, identities)
        entries = _whole_entries(paths, machine, [i for i in identities if i not in recorded])
        try:
            if entries:
                commit = _import(repository, paths, state, machine, entries)
                update_ref(repository, state.ref, commit, state.tip)
        except GitError:
            if _read_branch(repository, machine).tip == state.tip:
                raise
            continue  # somebody else has moved the branch: build on what it is now
        remove_entries(paths, machine, {*recorded, *(entry.identity for entry in entries)})
        paths.committed(machine).touch(mode=0o600)
        return len(entries)
    raise GitError(
        f"branch {branch(machine)} was moved by others {_MOVED_AT_MOST} times while committing",
        "The results are safe in the journal; the next run commits them.",
    )


def _whole_entries(
    paths: ProjectPaths, machine: str, identities: Sequence[str]
) -> list[JournalEntry]:
    """The entries in the order they were journaled, damaged ones set aside."""
    entries = []
    for identity in identities:
        directory = paths.journal(machine) / identity
        try:
            entries.append(read_entry(directory))
        except DamagedFileError as damaged:
            set_aside(paths, machine, damaged, directory)
    return sorted(entries, key=lambda entry: (entry.time, entry.identity))


def _read_branch(repository: Path, machine: str) -> _Branch:
    ref = f"refs/heads/{branch(machine)}"
    tip = run_git(repository, "rev-parse", "--verify", "--quiet", ref, accept=(0, 1))
    options = ("--show-object-format", "--path-format=absolute", "--git-path", "objects")
    found = run_git(repository, "rev-parse", *options)
    object_format, _, objects = found.removesuffix(b"\n").partition(b"\n")
    place = Path(os.fsdecode(objects))
    return _Branch(ref, tip.decode().strip(), place, object_format.decode())


def _recorded(
    repository: Path, state: _Branch, machine: str, identities: Sequence[str]
) -> set[str]:
    """Those of the identities whose record is in the branch already."""
    if not state.tip:
        return set()
    asked = "".join(f"{state.tip}:{record_path(machine, name)}\n" for name in identities)
    answers = run_git(repository, "cat-file", "--batch-check", stdin=asked.encode())
    lines = answers.decode().splitlines()
    return {
        name
        for name, answer in zip(identities, lines, strict=True)
        if not answer.endswith(" missing")
    }


def _import(
    repository: Path,
    paths: ProjectPaths,
    state: _Branch,
    machine: str,
    entries: Sequence[JournalEntry],
) -> str:
    """Write the commits' objects and return the id of the last."""
    place = paths.journal(machine)
    with tempfile.TemporaryDirectory(prefix=".commit.", suffix=".tmp", dir=place) as temporary:
        form = f"--object-format={state.object_format}"
        # $GIT_DIR, as init in the current directory would be confused by a repository above it.
        scratch = {"GIT_DIR": temporary}
        run_git(
            Path(temporary), "init", "--quiet", "--bare", "--template=", form, environment=scratch
        )
        options = (
            # The journal's copy is removed right after: the objects have to be on disk by then.
            *("-c", "core.fsync=committed,loose-object", "-c", "core.fsyncMethod=batch"),
            *("fast-import", "--quiet", "--done", "--date-format=raw"),
        )
        answer = stream_git(
            repository,
            _stream(state, machine, entries),
            *options,
            environment=scratch | {"GIT_OBJECT_DIRECTORY": os.fspath(state.objects)},
        )
    return answer.decode().strip()


def _stream(state: _Branch, machine: str, entries: Sequence[JournalEntry]) -> Iterator[bytes]:
    """The commands of fast-import (see git-fast-import(1)); the answer is the last commit's id."""
    parent = state.tip
    for mark, group in enumerate(_compatible(entries), start=1):
        yield from _stream_commit(mark, parent, machine, group)
        parent = f":{mark}"
    yield b"get-mark %s\ndone\n" % parent.encode()


def _compatible(entries: Sequence[JournalEntry]) -> list[list[JournalEntry]]:
    """Split the entries, in order, where one would overwrite what another of its commit wrote."""
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
    mark: int, parent: str, machine: str, entries: Sequence[JournalEntry]
) -> Iterator[bytes]:
    who = f"{COMMITTER['GIT_COMMITTER_NAME']} <{COMMITTER['GIT_COMMITTER_EMAIL']}>"
    count = len(entries)
    subject = f"{count} result{'s' if count != 1 else ''} from {machine}"
    # An identity is what was run, when, and a nonce, with dots between.
    labels = {entry.identity.rsplit(".", 2)[0] for entry in entries}
    if len(labels) == 1:
        subject = f"{labels.pop()}: {subject}"
    message = "\n".join((subject, "", *(entry.identity for entry in entries))).encode()
    yield b"commit refs/heads/new\nmark :%d\n" % mark
    yield f"committer {who} {int(time.time())} +0000\n".encode()
    yield b"data %d\n%s\n" % (len(message), message)
    if parent:
        yield f"from {parent}\n".encode()
    for entry in entries:
        for dest, (file, size) in entry.files.items():
            yield b"M 100644 inline %s\ndata %d\n" % (_quoted(f"{machine}/{dest}"), size)
            yield from _content(file, size)
        record, place = to_json(entry.record), record_path(machine, entry.identity)
        yield b"M 100644 inline %s\ndata %d\n%s\n" % (_quoted(place), len(record), record)
    yield b"\n"


def _content(file: Path, size: int) -> Iterator[bytes]:
    with open(file, "rb") as stream:
        while block := stream.read(_BLOCK):
            size -= len(block)
            yield block
    if size:
        # Git would take the commands that follow for the rest of the file.
        raise DamagedFileError(f"{file}: changed while it was read")
    yield b"\n"


def _quoted(path: str) -> bytes:
    raw = os.fsencode(path)
    for character, escaped in ((b"\\", b"\\\\"), (b'"', b'\\"'), (b"\n", b"\\n")):
        raw = raw.replace(character, escaped)
    return b'"' + raw + b'"'
