"""A parcel: all that travels of working trees and repositories to another computer, as one commit.

The same state makes the same commit, so that a parcel that is there already does not travel again.
Its tree has

    parcel.json     what is where (see `arrival.py`, which unpacks it)
    tree-<number>   the files of a working tree, an index, or a commit without its history

A commit keeps it, whose parents are it and the commits whose history travels. On its way, that
commit is the first parent of another one, beside earlier parcels: git then sees which files are
there already. After the arrival they are forgotten.

It is made in the store, and reads the user's repositories. Nothing is written to them.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import GitError
from snakemake_kochi.files import to_json
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.git import FULL_IDENTITY, TRANSPORTS, run_git, stream_git
from snakemake_kochi.snapshot.listing import (
    FILES_ONLY,
    Listing,
    list_files,
    matcher,
    not_checked_out,
    submodules,
)
from snakemake_kochi.snapshot.publication import bring
from snakemake_kochi.snapshot.repository import (
    in_store,
    object_directory,
    reading_objects,
    run_in_store,
    settings_of,
)
from snakemake_kochi.snapshot.snapshot import freeze_listed

VERSION = 1
DESCRIPTION = "parcel.json"
# A date is part of a commit, and must not make a difference.
_DATE = {"GIT_AUTHOR_DATE": "946684800 +0000", "GIT_COMMITTER_DATE": "946684800 +0000"}
# Results travel in the other direction, unless they are to be run again.
_RESULTS = re.compile(r"refs/(heads|remotes/[^/]+)/kochi_artifacts")
_NAMES = ("refs/heads", "refs/remotes")
_CODE = "refs/kochi/code"  # of results
# Where branches of results are that travel: as those of a remote.
RESULTS_OF_HOME = "refs/remotes/kochi-home/"


@dataclass(frozen=True)
class Tree:
    """A working tree that travels, to the place `at`.

    `excluded`: patterns as for `freeze`. `with_history`: whether that of its repositories travels;
    otherwise they have the checked-out commit alone. `with_branches`: whether all branches do.
    `with_results`: whether the branches of results do, and the code of results.
    """

    directory: Path
    at: str
    excluded: Sequence[str] = ()
    with_history: bool = True
    with_branches: bool = False
    with_results: bool = False


@dataclass(frozen=True)
class Bare:
    """A repository that travels without files, to the place `at`; `commits`: those that are needed,
    besides the checked-out one. `with_branches`: whether all branches travel."""

    directory: Path
    at: str
    commits: tuple[str, ...] = ()
    with_branches: bool = False


@dataclass(frozen=True)
class Parcel:
    """`commit` is in the store; `history`: the commits that travel with their history; `tags`: the
    annotated ones. `objects`: the environment in which all objects are read."""

    commit: str
    history: tuple[str, ...]
    tags: tuple[str, ...]
    objects: Mapping[str, str]


@dataclass
class _Packing:
    """What is in a parcel so far: commits with their history, trees, tags; where objects are."""

    store: Path
    history: dict[str, None] = field(default_factory=dict)
    trees: dict[str, None] = field(default_factory=dict)
    tags: dict[str, None] = field(default_factory=dict)
    objects: dict[Path, None] = field(default_factory=dict)

    @property
    def environment(self) -> Mapping[str, str]:
        return reading_objects(*self.objects)


def pack(
    store: Path,
    trees: Iterable[Tree],
    repositories: Iterable[Bare],
    about: Mapping[str, Any],
    admit: Callable[[Path, Listing], Listing] = lambda directory, listing: listing,
) -> Parcel:
    """Make a parcel. `about`: what else `parcel.json` has; `admit` says which files of a directory
    travel. Raises GitError."""
    packing = _Packing(store)
    places = []
    for tree in trees:
        listing = list_files(tree.directory, matcher(tree.excluded))
        snapshot = freeze_listed(tree.directory, store, admit(tree.directory, listing))
        packing.trees[snapshot.tree] = None
        inside = ["", *sorted(listing.inside)]
        if not os.path.lexists(tree.directory / ".git"):
            inside = []
        found = [_repository(packing, tree, path) for path in inside]
        places.append({"at": tree.at, **asdict(snapshot), "repositories": found})
    bare = [_bare(packing, each) for each in repositories]
    content = to_json({"version": VERSION, "trees": places, "bare": bare, **about})
    commit = _commit(packing, content)
    history = tuple(sorted(packing.history))
    return Parcel(commit, history, tuple(packing.tags), packing.environment)


def send_parcel(
    store: Path,
    parcel: Parcel,
    earlier: Sequence[str],
    address: str,
    environment: Mapping[str, str],
    serve: str = "git receive-pack",
    hear: Callable[[str], None] = lambda line: None,
) -> None:
    """Push a parcel from the store to a repository; only what is missing there is transferred.

    `earlier`: the parcels that are there. `environment`: of git, for its connection. `serve`: the
    words of a shell that receive it there. `hear`: see `stream_git`. Raises GitError.
    """
    asked = "".join(f"{each}\n" for each in earlier).encode()
    answers = run_in_store(store, "cat-file", "--batch-check=%(objectname)", stdin=asked)
    known = [each for each in answers.decode().splitlines() if FULL_IDENTITY.fullmatch(each)]
    tree, needed = f"{parcel.commit}^{{tree}}", dict.fromkeys([parcel.commit, *parcel.history])
    keeper = make_commit(store, tree, needed, parcel.objects)
    kept = make_commit(store, tree, [keeper, *known], parcel.objects)
    refspecs = [f"{kept}:{sent_ref(parcel.commit)}"]
    refspecs += [f"{tag}:{sent_tag(tag)}" for tag in parcel.tags]
    stream_git(
        store,
        ["".join(f"{each}\n" for each in refspecs).encode()],
        # Or git would look for files that are there only below the same paths.
        *("-c", "pack.useSparse=false"),
        *("send-pack", "--progress", "--thin", "--stdin", f"--receive-pack={serve}", address),
        environment={**in_store(store), **parcel.objects, **environment},
        transports=TRANSPORTS,
        hear=hear,
    )


def sent_ref(commit: str) -> str:
    """The ref that keeps a parcel where it was sent to."""
    return f"refs/kochi/sent/{commit}"


def sent_tag(tag: str) -> str:
    """The ref that keeps an annotated tag, which is no part of a commit."""
    return f"refs/kochi/sent-tags/{tag}"


def _repository(packing: _Packing, tree: Tree, path: str) -> dict[str, Any]:
    directory = tree.directory / path
    _require_sha1(directory)
    packing.objects[object_directory(directory)] = None
    branch = _answer(directory, "symbolic-ref", "--quiet", "HEAD")
    head = _answer(directory, "rev-parse", "--verify", "--quiet", "HEAD")
    alone, refs = "", {}
    if head:
        alone = "" if tree.with_history and _is_whole(directory) else _alone(packing, directory)
        refs = _tags(packing, directory, "--points-at" if alone else "--merged", "HEAD")
        if tree.with_branches and not alone:
            refs |= _branches(directory)
    if tree.with_results and not path and not alone:
        refs |= _results(directory)
    if not alone:
        packing.history |= dict.fromkeys([head] if head else [])
        packing.history |= dict.fromkeys(
            commit for name, commit in refs.items() if not name.startswith("refs/tags/")
        )
    if branch and head:
        refs[branch] = head
    return {
        "path": path,
        "head": head,
        "branch": branch,
        "alone": alone,
        "index": _index(packing, directory, head),
        "left_out": sorted(not_checked_out(directory)),
        "empty": sorted(each for each in submodules(directory) if _is_empty(directory / each)),
        "refs": dict(sorted(refs.items())),
        "settings": settings_of(directory),
    }


def _bare(packing: _Packing, bare: Bare) -> dict[str, Any]:
    directory = bare.directory  # it may be bare at home, too
    _require_sha1(directory)
    packing.objects[object_directory(directory)] = None
    if not _is_whole(directory):
        raise GitError(
            f"{directory} is a shallow or partial clone, and a clone of it needs its whole history",
            "Type there: git fetch --unshallow, or git fetch --refetch --no-filter",
        )
    branch = _answer(directory, "symbolic-ref", "--quiet", "HEAD")
    head = _answer(directory, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    wanted = [each for each in dict.fromkeys([head, *bare.commits]) if each]
    refs = {
        ref: commit
        for ref, commit in _branches(directory).items()
        if bare.with_branches or commit in wanted
    }
    for commit in wanted:
        refs |= _tags(packing, directory, "--merged", commit)
        if commit not in refs.values():
            refs[f"refs/kochi/source/{commit}"] = commit
    packing.history |= dict.fromkeys(wanted)
    packing.history |= dict.fromkeys(
        commit for name, commit in refs.items() if not name.startswith("refs/tags/")
    )
    if branch and head:
        refs[branch] = head
    return {"at": bare.at, "head": head, "branch": branch, "refs": dict(sorted(refs.items()))}


def _alone(packing: _Packing, directory: Path) -> str:
    """The text of the checked-out commit, which travels without its history, but with its files."""
    tree = _answer(directory, "rev-parse", "--verify", "HEAD^{tree}")
    bring(directory, tree, packing.store)  # a partial clone may lack some
    packing.trees[tree] = None
    # It need not be UTF-8.
    return run_git(directory, "cat-file", "commit", "HEAD").decode("latin-1")


def _index(packing: _Packing, directory: Path, head: str) -> str:
    """The tree of the index; "" if it is that of HEAD, or has no tree because of conflicts."""
    if head and not _answer(
        directory, "diff-index", "--cached", "--name-only", "--ignore-submodules=dirty", "HEAD"
    ):
        return ""
    store = packing.store
    listed = run_git(directory, *FILES_ONLY, "ls-files", "-z", "--stage")
    if any(re.match(rb"\d+ [0-9a-f]+ [123]\t", line) for line in listed.split(b"\0")):
        return ""
    # What is to be added later has the content of an empty file, which need not be there.
    run_in_store(store, "hash-object", "-w", "--stdin", stdin=b"")
    with tempfile.TemporaryDirectory(prefix="kochi-") as scratch:
        index, environment = Path(scratch) / "index", packing.environment
        words = ["update-index", "-z", "--index-info"]
        run_in_store(store, *words, index=index, environment=environment, stdin=listed)
        words = ["write-tree", "--missing-ok"]
        made = run_in_store(store, *words, index=index, environment=environment)
    tree = made.decode().strip()
    packing.trees[tree] = None
    return tree


def _tags(packing: _Packing, directory: Path, *which: str) -> dict[str, str]:
    """Tags of which a commit has or is the history, as `git describe` finds them."""
    form = "--format=%(objecttype) %(objectname) %(refname)"
    listed = run_git(directory, "for-each-ref", form, *which, "refs/tags")
    found = {}
    for line in os.fsdecode(listed).splitlines():
        kind, identity, name = line.split(" ", 2)
        if kind in ("tag", "commit"):
            found[name] = identity
        if kind == "tag":
            packing.tags[identity] = None
    return found


def _branches(directory: Path) -> dict[str, str]:
    """The branches, of this repository and of its remotes, without those of results."""
    found = _refs(directory, *_NAMES)
    return {name: commit for name, commit in found.items() if not _RESULTS.match(name)}


def _results(directory: Path) -> dict[str, str]:
    """The branches of results, and the code of results, by the names that they have there."""
    return {
        name.replace("refs/heads/", RESULTS_OF_HOME): commit
        for name, commit in _refs(directory, *_NAMES, _CODE).items()
        if _RESULTS.match(name) or name.startswith(_CODE)
    }


def _refs(directory: Path, *which: str) -> dict[str, str]:
    form = "--format=%(objectname) %(symref) %(refname)"
    listed = os.fsdecode(run_git(directory, "for-each-ref", form, *which)).splitlines()
    rows = [line.split(" ", 2) for line in listed]
    return {name: commit for commit, symbolic, name in rows if not symbolic}


def _is_empty(directory: Path) -> bool:
    """Whether a submodule is not checked out: git wants its directory all the same."""
    return directory.is_dir() and not os.listdir(directory)


def _is_whole(directory: Path) -> bool:
    """Whether a repository has all history of its commits."""
    if _answer(directory, "rev-parse", "--is-shallow-repository") == "true":
        return False
    keys = r"^(extensions\.partialclone|remote\..*\.promisor)$"
    return not run_git(directory, "config", "--get-regexp", keys, accept=(0, 1))


def _require_sha1(directory: Path) -> None:
    if _answer(directory, "rev-parse", "--show-object-format") != "sha1":
        raise GitError(
            f"{directory} names its objects by SHA-256: such a repository cannot be sent",
            "Use the machine from a clone of the project on its login node.",
        )


def _answer(directory: Path, *words: str) -> str:
    return os.fsdecode(run_git(directory, *words, accept=(0, 1))).strip()


def _commit(packing: _Packing, content: bytes) -> str:
    store, environment = packing.store, packing.environment
    blob = run_in_store(store, "hash-object", "-w", "--stdin", stdin=content).decode().strip()
    lines = [f"100644 blob {blob}\t{DESCRIPTION}"]
    # Of a tree with the same name, git sends only what is different.
    lines += [f"040000 tree {tree}\ttree-{n}" for n, tree in enumerate(packing.trees)]
    made = run_in_store(
        store,
        *("mktree", "--missing"),
        environment=environment,
        stdin="".join(f"{line}\n" for line in lines).encode(),
    )
    return make_commit(store, made.decode().strip(), (), environment)


def make_commit(
    repository: Path,
    tree: str,
    parents: Iterable[str],
    environment: Mapping[str, str] = FrozenDict(),
) -> str:
    """The commit of a tree with these parents, always the same one; `repository`: its own
    directory."""
    words = [word for parent in parents for word in ("-p", parent)]
    variables = {**in_store(repository), **environment, **_DATE}
    message = ("-m", "What kochi sends")
    made = run_git(
        repository, "commit-tree", "--no-gpg-sign", tree, *words, *message, environment=variables
    )
    return made.decode().strip()
