"""Snapshots of commits of the user's repository, which need not be checked out.

They are made of git's objects alone: no working tree, index or ref of the user is touched. Files
have the bytes that git stores: no line ending is converted, and no filter such as that of git-lfs
is applied. Submodules have the files of the commits that the commit records for them.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from snakemake_kochi.errors import GitError, nearest
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.git import run_git
from snakemake_kochi.snapshot.listing import matcher
from snakemake_kochi.snapshot.publication import bring
from snakemake_kochi.snapshot.repository import (
    create_store,
    reading_objects,
    run_in_store,
    with_objects_of,
)
from snakemake_kochi.snapshot.snapshot import Snapshot, kept_tree

_SUBMODULE = "160000"
# As a recipe's `branch:`; `rev-parse` alone would prefer a tag to a branch of the same name.
_PLACES = ("refs/heads/", "refs/tags/", "refs/remotes/", "refs/remotes/origin/")


def find_commit(repository: Path, name: str) -> str:
    """The id of the commit that a branch, a tag, a branch of `origin`, a commit id or another
    revision of git (`HEAD~1`) names now.

    Raises GitError, with the nearest branch.
    """
    if not name:
        raise GitError("the value is empty; a branch, a tag or a commit was expected")
    # A dash would begin an option of git, and no branch.
    for prefix in (*_PLACES, "") if not name.startswith("-") and "\0" not in name else ():
        words = ("rev-parse", "--verify", "--quiet", "--end-of-options")
        found = run_git(repository, *words, f"{prefix}{name}^{{commit}}", accept=(0, 1, 128))
        if found:
            return found.decode().strip()
    raise GitError(
        f"'{name}' is no branch, tag or commit here, {nearest(name, _names(repository))}"
    )


def _names(repository: Path) -> list[str]:
    words = ("for-each-ref", "--format=%(refname)", *(prefix.rstrip("/") for prefix in _PLACES[:3]))
    refs = os.fsdecode(run_git(repository, *words)).splitlines()
    names = (re.sub(r"^refs/(heads|tags|remotes)/", "", ref) for ref in refs)
    return [name for name in names if "kochi_artifacts" not in name and not name.endswith("/HEAD")]


def commits_between(repository: Path, good: str, bad: str) -> list[tuple[str, str]]:
    """The ids and subjects of the commits from `good` to its descendant `bad`, each the parent of
    the next one; of the parents of a merge, the first one that descends from `good`.

    Raises GitError for names of no commit, and unless `bad` is a descendant of `good`.
    """
    first, last = find_commit(repository, good), find_commit(repository, bad)
    words = ("log", "-z", "--ancestry-path", "--format=%H%x01%P%x01%s", f"{first}..{last}", "--")
    listed = run_git(repository, *words).decode("utf-8", "replace").split("\0")
    found = {own: (parents.split(), subject) for own, parents, subject in _fields(listed)}
    if last not in found:
        raise GitError(
            f"'{bad}' is no descendant of '{good}', so no commit between them can be searched",
            "GOOD is the older one, such as a tag. To see where two branches part, type: "
            f"git merge-base {good} {bad}",
        )
    line = [(last, found[last][1])]
    while (parents := found[line[-1][0]][0]) and first not in parents:
        parent = next(each for each in parents if each in found)
        line.append((parent, found[parent][1]))
    subject = run_git(repository, "log", "-1", "--format=%s", first).decode("utf-8", "replace")
    return [(first, subject.strip()), *reversed(line)]


def _fields(lines: Sequence[str]) -> Iterator[list[str]]:
    return (line.split("\1", 2) for line in lines if line)


def freeze_commit(
    repository: Path, commit: str, store: Path, exclude: Sequence[str] = ()
) -> Snapshot:
    """Freeze the files of a commit, which is given by its id, into the store.

    `exclude`: as for a working tree, patterns of files that are left out, committed or not. Raises
    GitError if objects of the commit or of its submodules are not here.
    """
    create_store(store)
    is_excluded, reader = matcher(exclude), _Reader(repository, store)
    words = ("rev-parse", "--path-format=absolute", "--git-path", "modules")
    modules = os.fsdecode(run_git(repository, *words).removesuffix(b"\n"))
    top = _Place(repository, Path(modules))

    def write(_: bool) -> str:
        listed = list(reader.entries(commit, top))
        kept = [entry for entry in listed if not is_excluded(entry.path)]
        is_whole = len(kept) == len(listed) and not any(entry.is_inside for entry in listed)
        return reader.tree_of(commit, top) if is_whole else _written(store, kept)

    return Snapshot(*kept_tree(store, write), commit, False)


@dataclass(frozen=True)
class _Entry:
    """A file of a commit, or, if `is_inside`, of one of its submodules; `line` is for an index."""

    path: str
    line: bytes
    is_inside: bool


@dataclass(frozen=True)
class _Place:
    """Where a repository is checked out, if it is, where git keeps its submodules, and the
    environment in which a command on the user's repository also reads its objects."""

    checkout: Path
    modules: Path
    objects: Mapping[str, str] = FrozenDict()


@dataclass(frozen=True)
class _Reader:
    """Lists commits of a repository and of its submodules, and brings them into a store."""

    repository: Path
    store: Path

    def entries(self, commit: str, place: _Place, prefix: str = "") -> Iterator[_Entry]:
        """All files of a commit, with those of submodules."""
        tree = self.tree_of(commit, place)
        bring(self.repository, tree, self.store, place.objects)
        words = ("ls-tree", "-r", "-z", "--full-tree", tree)
        for line in filter(None, run_in_store(self.store, *words).split(b"\0")):
            description, _, name = line.partition(b"\t")
            mode, _, identity = description.decode().split(" ")
            path = prefix + os.fsdecode(name)
            if mode != _SUBMODULE:
                entry = os.fsencode(f"{mode} {identity}\t{path}\0")
                yield _Entry(path, entry, bool(prefix))
                continue
            inside = self._submodule(commit, place, os.fsdecode(name), identity)
            if inside is None:
                raise GitError(
                    f"commit {commit[:12]} has {path} as a submodule at commit {identity[:12]}, "
                    "which is not here",
                    "To bring it here, check that commit out in a worktree of this repository, and "
                    "type there: git submodule update --init --recursive",
                )
            yield from self.entries(identity, inside, f"{path}/")

    def tree_of(self, commit: str, place: _Place) -> str:
        words = ("rev-parse", "--verify", "--quiet", f"{commit}^{{tree}}")
        return run_git(self.repository, *words, environment=place.objects).decode().strip()

    def _submodule(self, commit: str, place: _Place, path: str, wanted: str) -> _Place | None:
        """The place of a submodule whose repository has a commit."""
        names = self._names_of(commit, place, path)
        checkout = place.checkout / path
        for objects in self._objects_of(place, checkout, names):
            words = ("cat-file", "-e", f"{wanted}^{{commit}}")
            with suppress(GitError):
                run_git(self.repository, *words, environment=objects)
                return _Place(checkout, place.modules / names[0] / "modules", objects)
        return None

    def _objects_of(
        self, place: _Place, checkout: Path, names: Sequence[str]
    ) -> Iterator[Mapping[str, str]]:
        # Anyone may have written the commit: its names must not lead elsewhere.
        if os.path.lexists(checkout / ".git") and _is_below(checkout, self.repository):
            with suppress(GitError):
                yield with_objects_of(checkout)
        for name in names:
            objects = place.modules / name / "objects"
            if os.path.isdir(objects) and _is_below(objects, place.modules):
                yield reading_objects(objects)

    def _names_of(self, commit: str, place: _Place, path: str) -> list[str]:
        """The name of the submodule at a path, as the commit has it, and as git chooses it."""
        words = ("config", "-z", "--blob", f"{commit}:.gitmodules", "--get-regexp", r"\.path$")
        try:
            found = run_git(self.repository, *words, environment=place.objects, accept=(0, 1))
        except GitError:  # no such file
            found = b""
        settings = (each.partition("\n") for each in os.fsdecode(found).split("\0"))
        keys = [key for key, _, value in settings if value == path]
        return [*(key[len("submodule.") : -len(".path")] for key in keys), path]


def _is_below(path: Path, top: Path) -> bool:
    return path.resolve().is_relative_to(top.resolve())


def _written(store: Path, entries: Sequence[_Entry]) -> str:
    with tempfile.TemporaryDirectory(prefix="kochi-") as scratch:
        index = Path(scratch) / "index"
        lines = b"".join(entry.line for entry in entries)
        run_in_store(store, "update-index", "-z", "--index-info", index=index, stdin=lines)
        return run_in_store(store, "write-tree", index=index).decode().strip()
