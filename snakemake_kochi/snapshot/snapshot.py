"""Freeze a directory into a git tree, and write the files of that tree again."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from snakemake_kochi.errors import GitError, KochiError, NameNotFoundError, nearest
from snakemake_kochi.files import make_directory, move
from snakemake_kochi.git import run_git
from snakemake_kochi.snapshot.listing import list_files, matcher
from snakemake_kochi.snapshot.store import create_store, keep_tree, run_in_store, write_tree

_NONE = b"000000"  # the mode of a missing file


@dataclass(frozen=True)
class Snapshot:
    """`tree` and `commit` are in the store; `base` is the checked-out commit, None without one;
    `dirty`: the working tree differed from that commit (always true without one)."""

    tree: str
    commit: str
    base: str | None
    dirty: bool


@dataclass(frozen=True)
class Entry:
    """A file of a tree. Bytes of the path that are not UTF-8 are surrogates (os.fsencode gives them
    back). `mode` is "100644", "100755", or "120000" for a symbolic link; `object` is the blob."""

    path: str
    mode: str
    object: str


def freeze(directory: Path, store: Path, exclude: Sequence[str] = ()) -> Snapshot:
    """Freeze the content of exactly this directory into the store, which is created if necessary.

    In a repository that is every file that is not ignored, with its current bytes, be it committed,
    staged, untracked or none of these. Checked-out submodules and other repositories inside become
    plain directories of the tree; worktrees of the same repository are left out. Files that git has
    not checked out (sparse checkouts, submodules) are absent, as are empty and unreadable
    directories, sockets, pipes and devices. Elsewhere it is every file. `exclude` (patterns as in a
    .gitignore at the top of `directory`, such as "/results/") leaves out more, tracked or not.

    Nothing is written to the user's repository. A frozen tree stays in the store for good; the same
    files give the same tree and commit. Several processes may freeze at once. Raises GitError when
    git refuses (an unreadable file, a repository of another user), KochiError when there is no such
    directory, ConfigError for a bad pattern.
    """
    if not directory.is_dir():
        raise KochiError(f"{directory}: no such directory, so there is nothing to freeze")
    top = directory.absolute()
    listing = list_files(top, matcher(exclude))
    create_store(store)
    tree = write_tree(store, top, listing.paths)
    return Snapshot(tree, keep_tree(store, tree), listing.base, listing.dirty)


def list_entries(store: Path, tree: str) -> tuple[Entry, ...]:
    """All files of a tree, in git's order. Raises GitError when the store has no such tree."""
    entries = []
    for line in run_in_store(store, "ls-tree", "-r", "-z", "--full-tree", tree).split(b"\0"):
        if line:
            description, _, path = line.partition(b"\t")
            mode, _, identity = description.decode().split(" ")
            entries.append(Entry(os.fsdecode(path), mode, identity))
    return tuple(entries)


def select_sources(
    entries: Iterable[Entry], include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> tuple[Entry, ...]:
    """The entries that match, by path.

    Patterns are those of .gitignore (see `patterns`); no `include` includes everything. Raises
    ConfigError for a bad pattern.
    """
    included, excluded = matcher(include or ("*",)), matcher(exclude)
    chosen = (entry for entry in entries if included(entry.path) and not excluded(entry.path))
    return tuple(sorted(chosen, key=lambda entry: os.fsencode(entry.path)))


def overlay(store: Path, below: Iterable[Entry], above: Iterable[Entry]) -> Snapshot:
    """Freeze the files of one tree overlaid with those of another, which win.

    The result has no base, because it is no commit's tree. Raises GitError.
    """
    lines = b"".join(
        f"{entry.mode} {entry.object}\t".encode() + os.fsencode(entry.path) + b"\0"
        for entry in (*below, *above)
    )
    with tempfile.TemporaryDirectory(prefix="kochi-") as scratch:
        index = Path(scratch) / "index"
        run_in_store(store, "update-index", "-z", "--index-info", index=index, stdin=lines)
        tree = run_in_store(store, "write-tree", index=index).decode().strip()
    return Snapshot(tree, keep_tree(store, tree), None, True)


def digest_sources(
    entries: Iterable[Entry], include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> str:
    """Digest (SHA-256, hex) of paths, modes and contents of the entries that `select_sources`
    selects."""
    digest = hashlib.sha256()
    for entry in select_sources(entries, include, exclude):
        digest.update(os.fsencode(entry.path) + f"\0{entry.mode} {entry.object}\n".encode())
    return digest.hexdigest()


def materialise(store: Path, tree: str, destination: Path) -> None:
    """Write the files of a tree to a directory that must not exist yet; no `.git` in it.

    The directory itself is private (0700) and appears complete or not at all. Raises KochiError
    when it exists, GitError when the store has no such tree.
    """
    _must_not_exist(destination)
    make_directory(destination.parent)
    beside = destination.with_name(f".{destination.name[:200]}.{secrets.token_hex(4)}.tmp")
    make_directory(beside / "tree")
    try:
        run_in_store(
            store,
            *("read-tree", "--reset", "-u", "--no-recurse-submodules", tree),
            directory=beside / "tree",
            index=beside / "index",
        )
        _rename_new(beside / "tree", destination)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def renew(store: Path, was: str, now: str, directory: Path) -> None:
    """Change a directory that was materialised from the tree `was` to the tree `now`, except paths
    that a build has changed. Raises GitError."""
    times, lines = {}, []
    # A file may replace a directory and the other way round: old paths are removed first.
    changes = sorted(_changes(store, was, now), key=lambda change: change[1] == _NONE)
    for path, mode, new_mode, blob, new_blob in changes:
        if _content(directory, path) != (None if mode == _NONE else blob):
            continue
        if mode != _NONE:
            times[path] = (directory / path).lstat().st_mtime_ns
            _remove(directory, path)
        if new_mode != _NONE:
            lines.append(new_mode + b" " + new_blob + b"\t" + os.fsencode(path) + b"\0")
    with tempfile.TemporaryDirectory(prefix="kochi-") as scratch:
        index = Path(scratch) / "index"
        run_in_store(
            store, "update-index", "-z", "--index-info", index=index, stdin=b"".join(lines)
        )
        words = ("checkout-index", "--all", f"--prefix={directory.absolute()}/")
        run_in_store(store, *words, directory=Path(scratch), index=index)
    for path, time in times.items():
        # A product of the build must not look older than its source.
        with suppress(FileNotFoundError, NotADirectoryError):
            os.utime(directory / path, ns=(time, time), follow_symlinks=False)


def _changes(store: Path, was: str, now: str) -> Iterator[tuple[str, bytes, bytes, bytes, bytes]]:
    """The path, both modes and both blobs of each change."""
    options = ("diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames")
    parts = run_in_store(store, *options, was, now).split(b"\0")
    for description, path in zip(parts[::2], parts[1::2], strict=False):
        mode, new_mode, blob, new_blob, _ = description.lstrip(b":").split(b" ")
        yield os.fsdecode(path), mode, new_mode, blob, new_blob


def _remove(directory: Path, path: str) -> None:
    (directory / path).unlink()
    with suppress(OSError):
        for parent in Path(path).parents[:-1]:
            (directory / parent).rmdir()


def _content(directory: Path, path: str) -> bytes | None:
    """The id of the content of a file or link in a store; None where there is nothing; b"" for
    other things, and for what is reached through a link."""
    file = directory / path
    above = [directory / parent for parent in Path(path).parents[:-1]]
    if any(os.path.lexists(each) and (each.is_symlink() or not each.is_dir()) for each in above):
        return b""
    if not os.path.lexists(file):
        return None
    if file.is_symlink():
        target = os.fsencode(os.readlink(file))
        return _blob_digest(len(target), target).hexdigest().encode()
    if not file.is_file():
        return b""
    with file.open("rb") as stream:
        start = _blob_digest(os.fstat(stream.fileno()).st_size)
        return hashlib.file_digest(stream, lambda: start).hexdigest().encode()


def _blob_digest(size: int, content: bytes = b"") -> hashlib._Hash:
    return hashlib.sha1(b"blob %d\0" % size + content, usedforsecurity=False)


def read_file(store: Path, tree: str, path: str) -> bytes:
    """One file of a tree (of a symbolic link: its target).

    Raises NameNotFoundError, which names the nearest path, when the tree has no such file.
    """
    try:
        return run_in_store(store, "cat-file", "blob", f"{tree}:{os.path.normpath(path)}")
    except GitError:
        paths = [entry.path for entry in list_entries(store, tree)]
        close = nearest(path, paths) if len(paths) < 1000 else f"it has {len(paths)} others"
        raise NameNotFoundError(f"{path}: no such file in snapshot {tree[:12]}; {close}") from None


def toplevel(path: Path) -> Path:
    """The top of the working tree of a file or directory. Raises GitError if it is in none."""
    directory = path if path.is_dir() else path.parent
    try:
        found = run_git(directory, "rev-parse", "--show-toplevel")
    except GitError as error:
        if "not a git repository" not in error.message:
            raise
        raise GitError(
            f"{directory.absolute()} is not in a git repository",
            "A project is a git repository. To make one, type at its top: git init",
        ) from None
    return Path(os.fsdecode(found.removesuffix(b"\n")))


def _must_not_exist(destination: Path) -> None:
    if os.path.lexists(destination):
        raise KochiError(f"{destination} exists already; a directory that does not was expected")


def _rename_new(made: Path, destination: Path) -> None:
    _must_not_exist(destination)
    try:
        move(made, destination)
    except OSError:
        _must_not_exist(destination)
        raise
