"""Freeze a directory into a git tree, and write the files of that tree again."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from snakemake_kochi.errors import GitError, KochiError, NameNotFoundError, nearest
from snakemake_kochi.files import make_directory, move, random_word
from snakemake_kochi.git import run_git
from snakemake_kochi.snapshot.listing import Listing, list_files, matcher
from snakemake_kochi.snapshot.pruning import is_pruned_lately, is_whole
from snakemake_kochi.snapshot.repository import create_store, keep_tree, run_in_store, write_tree

_NO_FILE = "000000"  # the mode of a missing file


@dataclass(frozen=True)
class Snapshot:
    """`tree` and `commit` are in the store; `base` is the checked-out commit, None without one.

    `dirty`: the working tree differed from that commit (always true without one).
    """

    tree: str
    commit: str
    base: str | None
    dirty: bool


@dataclass(frozen=True)
class Entry:
    """A file of a tree.

    Bytes of the path that are not UTF-8 are surrogates, which os.fsencode converts back. `mode` is
    "100644", "100755", or "120000" for a symbolic link; `object` is the blob.
    """

    path: str
    mode: str
    object: str


class Change(NamedTuple):
    """A path that two trees have with different modes or blobs; mode "000000": not at all."""

    path: str
    mode: str
    new_mode: str
    blob: str
    new_blob: str

    @property
    def is_addition(self) -> bool:
        return self.mode == _NO_FILE

    @property
    def is_deletion(self) -> bool:
        return self.new_mode == _NO_FILE

    @property
    def objects(self) -> list[str]:
        """The blobs that exist: a missing file has the id 0."""
        return [blob for blob in (self.blob, self.new_blob) if blob.strip("0")]


def freeze(directory: Path, store: Path, exclude: Sequence[str] = ()) -> Snapshot:
    """Freeze the content of exactly this directory into the store, which is created if necessary.

    In a repository, this is every file that is not ignored, with its current bytes, whether it is
    committed, staged or untracked. Checked-out submodules and other repositories inside become
    plain directories of the tree; worktrees of the same repository are left out. Files that git has
    not checked out (sparse checkouts, submodules) are absent, as are empty and unreadable
    directories, sockets, pipes and devices. Elsewhere it is every file. `exclude` (patterns as in a
    .gitignore at the top of `directory`, such as "/results/") leaves out more, tracked or not.

    Nothing is written to the user's repository. A frozen tree stays in the store until `kochi
    clean` deletes it; the same files give the same tree and commit. Several processes may freeze at
    once. Raises GitError when git refuses (an unreadable file, a repository of another user),
    KochiError when there is no such directory, ConfigError for a bad pattern.
    """
    if not directory.is_dir():
        raise KochiError(f"{directory}: no such directory, so there is nothing to freeze")
    return freeze_listed(directory, store, list_files(directory.absolute(), matcher(exclude)))


def freeze_listed(directory: Path, store: Path, listing: Listing) -> Snapshot:
    """Freeze these files of a directory."""
    top = directory.absolute()
    create_store(store)

    def write(anew: bool) -> str:
        return write_tree(store, top, listing.paths, uses_cache=not anew)

    return Snapshot(*kept_tree(store, write), listing.base, listing.dirty)


def kept_tree(store: Path, write: Callable[[bool], str]) -> tuple[str, str]:
    """The tree that a function writes, and the commit that keeps it, with all their objects.

    Its argument says that all objects are to be written, because another process has deleted some.
    """
    try:
        tree = write(False)
        commit = keep_tree(store, tree)
        if not is_pruned_lately(store) or is_whole(store, commit):
            return tree, commit
    except GitError:
        if not is_pruned_lately(store):
            raise
    tree = write(True)
    return tree, keep_tree(store, tree, anew=True)


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

    Patterns are those of .gitignore (see `listing`); no `include` includes everything. Raises
    ConfigError for a bad pattern.
    """
    included, excluded = matcher(include or ("*",)), matcher(exclude)
    chosen = (entry for entry in entries if included(entry.path) and not excluded(entry.path))
    return tuple(sorted(chosen, key=lambda entry: os.fsencode(entry.path)))


def digest_sources(
    entries: Iterable[Entry], include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> str:
    """The SHA-256, in hex, of the selected entries: their paths, modes and contents."""
    digest = hashlib.sha256()
    for entry in select_sources(entries, include, exclude):
        digest.update(os.fsencode(entry.path) + f"\0{entry.mode} {entry.object}\n".encode())
    return digest.hexdigest()


def materialise(
    store: Path, tree: str, destination: Path, environment: Mapping[str, str] | None = None
) -> None:
    """Write the files of a tree to a directory that must not exist yet; no `.git` in it.

    The directory itself is private (0700) and appears complete or not at all. Raises KochiError
    when it exists, GitError when neither the store nor a repository that `environment` adds has
    such a tree.
    """
    with new_directory(destination) as new:
        run_in_store(
            store,
            *("read-tree", "--reset", "-u", "--no-recurse-submodules", tree),
            directory=make_directory(new),
            index=new.with_name("index"),
            environment=environment,
        )


@contextmanager
def new_directory(destination: Path) -> Iterator[Path]:
    """The path at which the block makes a directory, which then becomes `destination`.

    The directory above belongs to the block alone and is removed at its end. The destination
    appears complete or not at all. Raises KochiError when it exists.
    """
    _must_not_exist(destination)
    make_directory(destination.parent)
    beside = make_directory(destination.with_name(f".{destination.name[:200]}.{random_word()}.tmp"))
    try:
        yield beside / "tree"
        _must_not_exist(destination)
        try:
            move(beside / "tree", destination)
        except OSError:
            _must_not_exist(destination)
            raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _must_not_exist(destination: Path) -> None:
    if os.path.lexists(destination):
        raise KochiError(f"{destination} exists already; a directory that does not was expected")


def renew(store: Path, was: str, now: str, directory: Path) -> None:
    """Change a directory that was materialised from the tree `was` to the tree `now`.

    Paths that a build has changed are left as they are. Raises GitError.
    """
    times, lines = {}, []
    # A file may replace a directory and the other way round: old paths are removed first.
    for change in sorted(changes(store, was, now), key=lambda change: change.is_addition):
        path = change.path
        if _content(directory, path) != (None if change.is_addition else change.blob):
            continue
        if not change.is_addition:
            times[path] = (directory / path).lstat().st_mtime_ns
            _remove(directory, path)
        if not change.is_deletion:
            lines.append(f"{change.new_mode} {change.new_blob}\t{path}\0")
    with tempfile.TemporaryDirectory(prefix="kochi-") as scratch:
        index = Path(scratch) / "index"
        run_in_store(
            store,
            "update-index",
            "-z",
            "--index-info",
            index=index,
            stdin=os.fsencode("".join(lines)),
        )
        words = ("checkout-index", "--all", f"--prefix={directory.absolute()}/")
        run_in_store(store, *words, directory=Path(scratch), index=index)
    for path, time in times.items():
        # A product of the build must not look older than its source.
        with suppress(FileNotFoundError, NotADirectoryError):
            os.utime(directory / path, ns=(time, time), follow_symlinks=False)


def changes(
    store: Path, was: str, now: str, environment: Mapping[str, str] | None = None
) -> tuple[Change, ...]:
    """How a tree or commit differs from another one. Raises GitError."""
    options = ("diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames")
    parts = run_in_store(store, *options, was, now, environment=environment).split(b"\0")
    return tuple(
        Change(os.fsdecode(path), *description.decode().lstrip(":").split(" ")[:4])
        for description, path in zip(parts[::2], parts[1::2], strict=False)
    )


def _remove(directory: Path, path: str) -> None:
    (directory / path).unlink()
    with suppress(OSError):
        for parent in Path(path).parents[:-1]:
            (directory / parent).rmdir()


def _content(directory: Path, path: str) -> str | None:
    """The id that the content of a file or link has in a store; None if nothing is there.

    It is "" for anything else, and for a file that is reached through a link.
    """
    file = directory / path
    above = [directory / parent for parent in Path(path).parents[:-1]]
    if any(os.path.lexists(each) and (each.is_symlink() or not each.is_dir()) for each in above):
        return ""
    if not os.path.lexists(file):
        return None
    if file.is_symlink():
        target = os.fsencode(os.readlink(file))
        return _blob_digest(len(target), target).hexdigest()
    if not file.is_file():
        return ""
    with file.open("rb") as stream:
        start = _blob_digest(os.fstat(stream.fileno()).st_size)
        return hashlib.file_digest(stream, lambda: start).hexdigest()


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
        close = nearest(path, paths) if len(paths) < 1000 else f"it has {len(paths)} other files"
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
