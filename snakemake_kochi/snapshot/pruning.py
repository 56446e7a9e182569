"""Snapshots and objects of a store that nothing needs any more.

A process may freeze files while others are deleted, and may rely on an object that was written for
an older snapshot and that nothing has named since. So nothing is deleted at once:

- Freezing gives the ref of its snapshot the present time, before or after the ref was moved aside.
  `forget_snapshot` of the caller looks at that time a second time.
- `prune` first writes the file `pruned` in the store, then moves objects aside, and then reads all
  refs once more. Objects that a new ref needs go back.
- A process that has frozen files looks for `pruned` after it has written its ref. If the file is
  there, the process checks that the store has all objects of the snapshot, and writes those that
  are missing (`is_whole`).

Of each ref, `prune` or the process that writes it sees the other. Objects in packs are unpacked for
it. The commits of remote sources (`refs/sources/`) stay: they would have to be fetched again.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from snakemake_kochi.errors import GitError
from snakemake_kochi.files import (
    answered,
    is_there,
    list_names,
    make_directory,
    move,
    random_word,
    write_atomically,
)
from snakemake_kochi.snapshot.repository import SNAPSHOTS, run_in_store

_ASIDE = "unused-"
_PRUNED = "pruned"
_ROOTS = ("--all", "--indexed-objects")
_OBJECT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
# Seconds for which freezing checks its snapshot after objects were deleted. It takes less.
_CHECKED_FOR = 24 * 3600.0


def snapshot_refs(store: Path) -> dict[str, Path]:
    """The files of the refs of all snapshots, by tree."""
    directory = store / SNAPSHOTS
    return {name: directory / name for name in list_names(directory) if _OBJECT.fullmatch(name)}


def is_pruned_lately(store: Path) -> bool:
    """Whether objects were deleted lately, or are being deleted."""
    try:
        pruned = answered((store / _PRUNED).stat).st_mtime
    except FileNotFoundError:
        return False
    return abs(time.time() - pruned) < _CHECKED_FOR


def is_whole(store: Path, commit: str) -> bool:
    """Whether the store has all objects of a snapshot."""
    try:
        run_in_store(store, "rev-list", "--objects", "--quiet", commit, "--")
    except GitError:
        return False
    return True


def prune(store: Path, before: float) -> list[Path]:
    """Move loose objects aside that no ref needs, and that were written before a time (seconds
    since the epoch).

    Returns the directories to delete. What an earlier call has moved aside and was not deleted
    goes back first. Raises GitError and OSError.
    """
    write_atomically(store / _PRUNED, b"")
    for name in list_names(store):
        if name.startswith(_ASIDE):
            _put_back(store, store / name, list_names(store / name))
            with contextlib.suppress(OSError):
                os.rmdir(store / name)
    packed = [each for each in _unused(store, before) if not is_there(_loose(store, each))]
    if packed:
        with contextlib.suppress(GitError):  # no room: later then
            run_in_store(store, "repack", "-A", "-d", "-q")  # these become loose, with their times
    listed = run_in_store(store, "prune", "-n", f"--expire=@{int(before)} +0000")
    unused = [line.split()[0].decode() for line in listed.splitlines() if line.split()]
    if not unused:
        return []
    aside = make_directory(store / f"{_ASIDE}{random_word()}")
    for identity in filter(_OBJECT.fullmatch, unused):
        with contextlib.suppress(FileNotFoundError):
            move(_loose(store, identity), aside / identity)
    try:
        _put_back(store, aside, _missing(store))
    except GitError:
        # A new ref names a commit that is aside.
        _put_back(store, aside, unused)
        raise
    return [aside]


def size_of_unused(store: Path, before: float) -> tuple[int, int]:
    """How many objects `prune` would delete, and their bytes. Raises GitError and OSError."""
    sizes = _unused(store, before).values()
    return len(sizes), sum(sizes)


def _unused(store: Path, before: float) -> dict[str, int]:
    """The bytes of each object that no ref and no index needs, and that is older."""
    listed = run_in_store(store, "rev-list", "--objects", "--no-object-names", *_ROOTS)
    used = set(listed.decode().split())
    form = "--batch-check=%(objectname) %(objectsize:disk)"
    rows = run_in_store(store, "cat-file", "--batch-all-objects", "--unordered", form).splitlines()
    sizes = {name.decode(): int(size) for name, size in map(bytes.split, rows)}
    packs = [each.stat().st_mtime for each in (store / "objects" / "pack").glob("*.pack")]
    packed = min(packs, default=math.inf)
    unused = {}
    for name in sizes.keys() - used:
        try:
            written = _loose(store, name).stat().st_mtime
        except FileNotFoundError:
            written = packed
        if written < before:
            unused[name] = sizes[name]
    return unused


def _missing(store: Path) -> list[str]:
    """The objects that refs need and the store lacks. Raises GitError."""
    listed = run_in_store(store, "rev-list", "--objects", "--missing=print", "--all")
    lines = listed.decode("utf-8", "replace").splitlines()
    return [line[1:].strip() for line in lines if line.startswith("?")]


def _put_back(store: Path, aside: Path, identities: Iterable[str]) -> None:
    for identity in identities:
        if not _OBJECT.fullmatch(identity):
            continue
        target = _loose(store, identity)
        if is_there(aside / identity) and not is_there(target):
            make_directory(target.parent)
            move(aside / identity, target)


def _loose(store: Path, identity: str) -> Path:
    return store / "objects" / identity[:2] / identity[2:]


def size_of_snapshots(store: Path, trees: Collection[str]) -> tuple[int, int]:
    """How many objects only these snapshots have, and their bytes. Raises GitError."""
    refs = snapshot_refs(store)
    chosen = [f"refs/snapshots/{tree}" for tree in trees]
    others = [f"^refs/snapshots/{tree}" for tree in refs if tree not in trees]
    wanted = "".join(f"{word}\n" for word in (*chosen, *others)).encode()
    # Aggressive, because the snapshots have no history in common.
    words = ("rev-list", "--objects-edge-aggressive", "--no-object-names", "--stdin")
    lines = run_in_store(store, *words, stdin=wanted).splitlines(keepends=True)
    listed = b"".join(line for line in lines if not line.startswith(b"-"))
    asked = ("cat-file", "--batch-check=%(objectsize:disk)")
    sizes = run_in_store(store, *asked, stdin=listed).split()
    return len(sizes), sum(int(size) for size in sizes if size.isdigit())
