"""The code of results in the user's repository: a commit, and a ref that the caller names.

The commit of a snapshot has the checked-out commit as its parent. If the snapshot has just the
files of that commit, the ref names that commit itself. The sources of a recipe have no parent,
because their history is another one. A ref has the same commit in every clone and never changes, so
clones cannot disagree about it. `git push` without arguments pushes no such ref: untracked files
leave this computer only by `kochi artifact push`.

Left out are uncommitted files whose names suggest secrets, and uncommitted files that are too large
for the usual servers. Where such a file is committed, its committed content is kept.

In another clone, `restore_code` brings published files into a store, from where a run gets them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from snakemake_kochi.confidential import is_secret_path
from snakemake_kochi.errors import GitError
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.git import FETCHING_MISSING, TRANSPORTS, reading_git, run_git, update_ref
from snakemake_kochi.snapshot.pruning import is_pruned_lately, is_whole
from snakemake_kochi.snapshot.repository import (
    create_store,
    in_store,
    keep_tree,
    run_in_store,
    with_objects_of,
)
from snakemake_kochi.snapshot.snapshot import Change, changes, materialise

_LARGEST = 100 * 2**20  # bytes; GitHub refuses larger files
_EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
_NO_DATE = "946684800 +0000"
_SUBMODULE = "160000"
_LEFT_OUT = "left out: "


@dataclass(frozen=True)
class _Code:
    """Files to publish: a `tree` that `git_environment` can read in the directory `source`."""

    tree: str
    source: Path
    git_environment: Mapping[str, str]
    parent: str | None
    message: str


def publish_snapshot(repository: Path, ref: str, store: Path, tree: str, base: str | None) -> None:
    """Publish a snapshot, which was taken when the commit `base` was checked out.

    Raises GitError, also if the repository no longer has the base, or if its objects have other ids
    than those of the store (SHA-256).
    """
    objects = with_objects_of(repository)
    kept, left_out = _without_private(store, tree, base, objects)
    if base is not None and _tree_of(repository, base) == kept:
        _point(repository, ref, base)
        return
    message = f"Code of results: snapshot {tree[:12]}\n\n{_trailer(tree, left_out)}"
    code = _Code(kept, store, in_store(store) | objects, base, message)
    _point(repository, ref, _commit(repository, code))


def publish_mirror(
    repository: Path, ref: str, store: Path, source: Mapping[str, str], recipe: str
) -> None:
    """Publish the snapshot of a mirrored directory.

    `source`: "tree", "base" ("" for none), and the directory as "mirror". Raises GitError.
    """
    tree, objects = source["tree"], {}
    try:
        objects = with_objects_of(Path(source["mirror"]))
        kept, left_out = _without_private(store, tree, source["base"] or None, objects)
    except GitError:
        # The directory is gone, or in no repository: nothing says which files were committed.
        kept, left_out = _without_private(store, tree, None, objects)
    message = f"Sources of recipe {recipe}\n\n{_trailer(tree, left_out)}"
    code = _Code(kept, store, in_store(store) | objects, None, message)
    _point(repository, ref, _commit(repository, code))


def _trailer(tree: str, left_out: Sequence[str]) -> str:
    lines = [f"kochi-snapshot: {tree}", *(f"{_LEFT_OUT}{path}" for path in left_out)]
    return "\n".join(lines) + "\n"


def publish_commit(repository: Path, ref: str, source: Path, commit: str, recipe: str) -> None:
    """Publish the files of a commit of another repository on this computer, without its history.

    Submodules are left out. Raises GitError.
    """
    message = f"Sources of recipe {recipe}\n\nkochi-commit: {commit}\n"
    code = _Code(_tree_of(source, commit), source, {}, None, message)
    _point(repository, ref, _commit(repository, code))


def write_code(repository: Path, commit: str, destination: Path) -> None:
    """Write the files of published code to a directory that must not exist yet; no `.git` in it.

    They have the bytes of the snapshot: no setting or attribute of a repository changes them.
    Raises GitError, also if objects of the code are not in this clone.
    """
    tree = _tree_of(repository, commit)
    with tempfile.TemporaryDirectory(prefix="kochi-") as scratch:
        store = Path(scratch) / "store"
        create_store(store)
        materialise(store, tree, destination, with_objects_of(repository))


def restore_code(repository: Path, ref: str, store: Path) -> tuple[str, list[str]]:
    """Bring the files of published code into a store, for good.

    Returns their tree, and the paths that were left out when they were published. Objects that a
    partial clone lacks are fetched. Raises GitError, with what to type, if there is no such ref.
    """
    if not run_git(repository, "rev-parse", "--verify", "--quiet", ref, accept=(0, 1)):
        raise GitError(
            f"{repository} does not have the code {ref}",
            "To bring it here, type: kochi artifact fetch\nIf that does not help, type where the "
            "result was made: kochi artifact push",
        )
    tree = _tree_of(repository, ref)
    message = os.fsdecode(run_git(repository, "log", "-1", "--format=%b", ref, "--"))
    lines = message.splitlines()
    left_out = [line.removeprefix(_LEFT_OUT) for line in lines if line.startswith(_LEFT_OUT)]
    create_store(store)
    bring(repository, tree, store)
    commit = keep_tree(store, tree)
    if is_pruned_lately(store) and not is_whole(store, commit):
        bring(repository, tree, store)
        keep_tree(store, tree, anew=True)
    return tree, left_out


def bring(
    repository: Path, tree: str, store: Path, environment: Mapping[str, str] = FrozenDict()
) -> None:
    """Bring the objects of a tree that a store lacks; `environment` may add objects of other
    repositories. Raises GitError."""
    variables = {**FETCHING_MISSING, **environment}
    fetching = partial(run_git, environment=variables, transports=TRANSPORTS)
    words = ("rev-list", "--objects", "--no-object-names", tree)
    listed = fetching(repository, *words)
    answers = run_in_store(store, "cat-file", "--batch-check=%(objectname)", stdin=listed)
    missing = _missing(answers)
    if missing:
        # Into a file: an error of git, as of a partial clone without its remote, has to be seen.
        with tempfile.TemporaryDirectory(prefix="kochi-") as scratch:
            pack = ("pack-objects", "--quiet", f"{scratch}/code")
            fetching(repository, *pack, stdin=missing)
            (file,) = Path(scratch).glob("*.pack")
            with file.open("rb") as stream:
                run_git(store, "unpack-objects", "-q", environment=in_store(store), stdin=stream)


def _missing(answers: bytes) -> bytes:
    """The ids, a line each, that `cat-file --batch-check=%(objectname)` called missing."""
    lines = (line for line in answers.split(b"\n") if line.endswith(b" missing"))
    return b"".join(line.removesuffix(b" missing") + b"\n" for line in lines)


def _without_private(
    store: Path, tree: str, base: str | None, objects: Mapping[str, str]
) -> tuple[str, list[str]]:
    """The tree without what must not be published, and the paths of what was left out."""
    changed = [
        each
        for each in changes(store, base or _EMPTY_TREE, tree, objects)
        if not each.is_deletion and each.mode != _SUBMODULE
    ]
    large = _too_large(store, changed)
    private = [each for each in changed if is_secret_path(each.path) or each.new_blob in large]
    if not private:
        return tree, []
    # The committed content; that of an addition has mode 0, which removes the path.
    lines = "".join(f"{each.mode} {each.blob}\t{each.path}\0" for each in private)
    with tempfile.TemporaryDirectory(prefix="kochi-") as scratch:
        index = Path(scratch) / "index"
        run_in_store(store, "read-tree", tree, index=index, environment=objects)
        words = ("update-index", "-z", "--index-info")
        run_in_store(store, *words, index=index, environment=objects, stdin=os.fsencode(lines))
        kept = run_in_store(store, "write-tree", index=index, environment=objects)
    return kept.decode().strip(), [each.path for each in private]


def _too_large(store: Path, changed: Sequence[Change]) -> set[str]:
    asked = "".join(f"{each.new_blob}\n" for each in changed).encode()
    words = ("cat-file", "--batch-check=%(objectname) %(objectsize)")
    answers = run_in_store(store, *words, stdin=asked).decode().splitlines()
    sizes = (answer.split(" ") for answer in answers)
    return {blob for blob, size in sizes if size.isdecimal() and int(size) > _LARGEST}


def _tree_of(repository: Path, commit: str) -> str:
    words = ("rev-parse", "--verify", "--quiet", f"{commit}^{{tree}}")
    return run_git(repository, *words).decode().strip()


def _commit(repository: Path, code: _Code) -> str:
    """Bring the objects of the code into the repository, and make its commit."""
    words = ("rev-list", "--objects", "--no-object-names", code.tree)
    listed = run_git(code.source, *words, environment=code.git_environment)
    answers = run_git(repository, "cat-file", "--batch-check=%(objectname)", stdin=listed)
    missing = _missing(answers)
    if missing:
        # The results whose code this is are committed next: the objects have to be on disk by then.
        durable = ("-c", "core.fsync=loose-object", "-c", "core.fsyncMethod=batch")
        with reading_git(
            code.source,
            missing,
            *("pack-objects", "--quiet", "--stdout"),
            environment=code.git_environment,
        ) as pack:
            run_git(repository, *durable, "unpack-objects", "-q", stdin=pack)
    date, parents = _NO_DATE, []
    if code.parent is not None:
        found = run_git(repository, "log", "-1", "--format=%ct +0000", code.parent, "--")
        date, parents = found.decode().strip(), ["-p", code.parent]
    made = run_git(
        repository,
        *("commit-tree", "--no-gpg-sign", code.tree, *parents, "-F", "-"),
        environment={"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date},
        stdin=os.fsencode(code.message),
    )
    return made.decode().strip()


def _point(repository: Path, ref: str, commit: str) -> None:
    try:
        update_ref(repository, ref, commit, "")
    except GitError:
        # Another process was faster. Its commit is the same.
        if not run_git(repository, "for-each-ref", "--", ref):
            raise
