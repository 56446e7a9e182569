"""Sources that are a commit of a repository, local or remote, and not a working tree."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from snakemake_kochi.errors import GitError, nearest
from snakemake_kochi.files import is_there, note_use
from snakemake_kochi.git import FULL_IDENTITY, REMOTE_TRANSPORTS, SERVE, TRANSPORTS, run_git
from snakemake_kochi.snapshot.pruning import is_whole
from snakemake_kochi.snapshot.repository import SNAPSHOTS, create_store, keep_tree, run_in_store
from snakemake_kochi.snapshot.snapshot import new_directory

_ABBREVIATED_IDENTITY = re.compile(r"[0-9a-f]{4,64}")
# gitremote-helpers(7): `ext::sh -c ...` runs a command, `fd::17` waits for ever.
_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9+.-]*::")
_BRANCHES = "refs/heads/"
_AT_ORIGIN = "refs/remotes/origin/"
_HOW_TO_ADDRESS = (
    "Give a directory, or an address that begins with https://, ssh://, git://, http:// or file://"
)


def resolve_source(git: str, branch: str | None, commit: str | None) -> str:
    """The commit id (hex, in full) that a branch or tag, else a commit, else HEAD names now.

    `git` is a remote or a local path. If a local clone has not checked out the branch, the one that
    it fetched from its `origin` is used. A full commit id is not looked up: `fetch_source` does so.
    To resolve an abbreviated one, the history of a remote is fetched, without files. Raises
    GitError: unreachable, no such branch (with the nearest name), commit or transport.
    """
    _check_address(git)
    if branch is not None or commit is None:
        return _resolve_branch(git, branch)
    wanted = commit.lower()
    if FULL_IDENTITY.fullmatch(wanted):
        return wanted
    if not _ABBREVIATED_IDENTITY.fullmatch(wanted):
        raise GitError(
            f"{commit!r} is not a commit id: 4 to 40 digits 0-9a-f were expected",
            "A branch or a tag goes under `branch:`.",
        )
    with history(git) as repository:
        return _find_commit(repository, git, wanted)


@contextmanager
def history(git: str) -> Iterator[Path]:
    """A repository with the history of a source: a local one itself, of a remote a clone without
    files. Raises GitError."""
    _check_address(git)
    if _is_path(git):
        yield Path(git).expanduser()
        return
    with tempfile.TemporaryDirectory(prefix="kochi-") as temporary:
        options = ("--bare", "--filter=tree:0", *_served(git))
        _run_on(git, Path(temporary), "clone", *options, "--", git, "history")
        yield Path(temporary) / "history"


def has_commit(repository: Path, commit: str) -> bool:
    """Whether a directory is a repository with a commit, which is given by its full id."""
    try:
        run_git(repository, "cat-file", "-e", f"{commit}^{{commit}}")
    except GitError:
        return False
    return True


def fetch_source(
    git: str, branch: str | None, commit: str | None, store: Path, destination: Path
) -> str:
    """Check a source out and return its commit id.

    A commit overrides a branch here, because it is the commit that the branch was resolved to. The
    destination becomes a clone with history and tags (build systems use `git describe`), HEAD
    detached at the commit, submodules checked out recursively. It appears complete or not at all.
    A commit that is on no branch is fetched by its id. Objects of a remote are also kept in the
    store, so that they are not transferred again. Raises GitError, and KochiError when the
    destination exists.
    """
    _check_address(git)
    found = resolve_source(git, branch if commit is None else None, commit)
    with new_directory(destination) as tree:
        _clone(git, store, tree)
        _fetch_by_name(git, tree, found)
        run_git(tree, "checkout", "--quiet", "--detach", found)
        if not _is_path(git):
            kept = f"+HEAD:refs/sources/{found}"
            words = ("fetch", "--quiet", "--no-tags", os.fspath(tree), kept)
            run_in_store(store, *words, transports=("file",))
        # No local submodules of hostile remotes; a local path belongs to the user.
        transports = TRANSPORTS if _is_local(git) else REMOTE_TRANSPORTS
        words = ("submodule", "--quiet", "update", "--init", "--recursive")
        run_git(tree, *words, transports=transports)
    return found


def has_tree(store: Path, tree: str) -> bool:
    """Whether the store keeps a tree. One that a killed process left without its files does not
    count."""
    if not is_there(store / "HEAD"):
        return False
    words = ("rev-parse", "--verify", "--quiet", f"{SNAPSHOTS}/{tree}")
    kept = run_in_store(store, *words, accept=(0, 1)).decode().strip()
    if not kept or note_use(store / SNAPSHOTS / tree):
        return bool(kept)
    # `kochi clean` has just deleted it, or git has packed the refs.
    try:
        return is_whole(store, keep_tree(store, tree))
    except GitError:
        return False


def _clone(git: str, store: Path, destination: Path) -> None:
    options = ["--quiet", "--no-checkout", "--template=", "--origin=origin", *_served(git)]
    if not _is_path(git):
        create_store(store)
        options += ["--reference-if-able", os.fspath(store.absolute()), "--dissociate"]
    _run_on(git, destination.parent, "clone", *options, "--", _address(git), destination.name)


def _check_address(git: str) -> None:
    if not _is_path(git) and (found := _HELPER.match(git)):
        raise GitError(
            f"the repository {git} cannot be used: git would run a program for '{found[0]}'",
            _HOW_TO_ADDRESS,
        )


def _served(git: str) -> tuple[str, ...]:
    """The option by which a local repository is read, whatever its configuration."""
    return (f"--upload-pack={SERVE}",) if _is_local(git) else ()


def _is_local(git: str) -> bool:
    return git.startswith("file://") or _is_path(git)


def _is_path(git: str) -> bool:
    return _is_any(Path(git).expanduser())


def _address(git: str) -> str:
    """A local path as an absolute one: git runs in another directory than the caller."""
    path = Path(git).expanduser()
    return os.fspath(path.absolute()) if _is_any(path) else git


def _is_any(path: Path) -> bool:
    try:
        return is_there(path)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False  # an address may be longer than a path
        raise


def _run_on(git: str, directory: Path, *arguments: str) -> bytes:
    try:
        return run_git(directory, *arguments, transports=TRANSPORTS)
    except GitError as error:
        refused = re.search("transport '.*' not allowed", error.message)
        raise GitError(
            f"the repository {git} cannot be read: {error.message}",
            _HOW_TO_ADDRESS
            if refused
            else f"Check the address and your access: git ls-remote {git}",
        ) from error


def _resolve_branch(git: str, branch: str | None) -> str:
    wanted = ["HEAD", "refs/heads/*", "refs/tags/*"]
    if _is_local(git):
        # A local clone has as its own branches only those that were checked out there.
        wanted.append(f"{_AT_ORIGIN}*")
    words = ("ls-remote", "--quiet", *_served(git), "--", _address(git))
    listed = _run_on(git, Path.cwd(), *words, *wanted)
    refs: dict[str, str] = {}
    for line in listed.decode("utf-8", "surrogateescape").splitlines():
        identity, _, ref = line.partition("\t")
        refs[ref] = identity
    refs.pop(f"{_AT_ORIGIN}HEAD", None)  # no branch, but the name of the default one
    # An annotated tag is an object of its own; `^{}` is its commit.
    names = (
        ("HEAD",)
        if branch is None
        else (
            f"{_BRANCHES}{branch}",
            f"refs/tags/{branch}^{{}}",
            f"refs/tags/{branch}",
            f"{_AT_ORIGIN}{branch}",
        )
    )
    for name in names:
        if name in refs:
            return refs[name]
    if branch is None:
        raise GitError(f"the repository {git} has no commits")
    known = {
        ref.removeprefix(begin)
        for begin in (_BRANCHES, _AT_ORIGIN)
        for ref in refs
        if ref.startswith(begin)
    }
    raise GitError(f"the repository {git} has no branch '{branch}'; {nearest(branch, known)}")


def _find_commit(repository: Path, git: str, wanted: str) -> str:
    try:
        found = run_git(repository, "rev-parse", "--verify", "--quiet", f"{wanted}^{{commit}}")
    except GitError as error:
        raise GitError(f"the repository {git} has no commit '{wanted}'", error.message) from error
    return found.decode().strip()


def _fetch_by_name(git: str, clone: Path, commit: str) -> None:
    """A commit that no branch or tag contains, for example after an amend, is not cloned."""
    if (
        run_git(clone, "cat-file", "--batch-check", stdin=f"{commit}\n".encode()).find(b"missing")
        < 0
    ):
        return
    try:
        # Hosting services serve any commit, and `_served` has a local repository do so, too.
        words = ("fetch", "--quiet", *_served(git), "origin", commit)
        run_git(clone, *words, transports=TRANSPORTS)
    except GitError as error:
        raise GitError(
            f"the repository {git} has no commit '{commit}'",
            f"Is it pushed? Git says: {error.message}",
        ) from error
