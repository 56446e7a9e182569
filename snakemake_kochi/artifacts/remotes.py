"""Results and their code are pushed to a remote of the project, and fetched, by plain git."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from snakemake_kochi.artifacts.code import CODE, publish_code
from snakemake_kochi.artifacts.content import blobs_at, pointers_among
from snakemake_kochi.artifacts.git_lfs import fetch_contents, push_contents
from snakemake_kochi.artifacts.large import Store, digest_of, opened
from snakemake_kochi.artifacts.published import MERGED
from snakemake_kochi.artifacts.reading import MAKE_RESULTS, records_here
from snakemake_kochi.errors import (
    DamagedFileError,
    GitError,
    MissingContentError,
    NameNotFoundError,
    nearest,
)
from snakemake_kochi.git import FETCHING_MISSING, TRANSPORTS, run_git
from snakemake_kochi.paths import ProjectPaths

_BRANCHES = f"refs/heads/{MERGED}*"
_DEFAULT = "origin"
# Git's words for a branch that is not a descendant of that of the remote.
_HAS_OTHER_COMMITS = ("(fetch first)", "(non-fast-forward)")
_MOST_LINES = 10
# The user's settings push.followTags and push.recurseSubmodules are for pushes of the user's own.
_NOTHING_ELSE = ("--no-follow-tags", "--recurse-submodules=no")


@dataclass(frozen=True)
class Exchange:
    """What was pushed or fetched.

    `command`: the words of the git command. `branches`, `snapshots`: how many artifact branches,
    and refs of code, the receiving side now has. `changed`: the branches that it had not, or not
    like this. `without_code`: how many snapshots and sources of recorded results could not be
    published before a push. `large_command`: the words of the git command for the contents of large
    files, if there was one; `without_large`: how many contents of a push were not here.
    """

    remote: str
    command: tuple[str, ...]
    branches: int
    snapshots: int
    changed: tuple[str, ...] = ()
    without_code: int = 0
    large_command: tuple[str, ...] = ()
    without_large: int = 0


@dataclass(frozen=True)
class Content:
    """The content of a file in a branch, `size` bytes: in the branch itself, or in the store, at
    `file`. `was_here`: it was not fetched."""

    path: str
    size: int
    file: Path | None
    was_here: bool


def push(repository: Path, paths: ProjectPaths, remote: str | None = None) -> Exchange:
    """Push the artifact branches and the code of their records.

    Code that could not be published when its results were committed is published before. The
    contents of large files are pushed last. `remote`: None for git's default. Raises
    NameNotFoundError for an unknown remote, and GitError, also if the remote refuses a branch
    because it has other commits, or only the contents of large files.
    """
    remote = known_remote(repository, remote)
    # A record that a partial clone lacks came from the remote, with its code.
    records = (record for record in records_here(repository) if record is not None)
    missing = publish_code(repository, paths, records, are_own=False)
    branches, code = _refs(repository, _BRANCHES), _refs(repository, CODE)
    if not branches:
        raise GitError(
            f"{repository} has no artifact branch to push",
            MAKE_RESULTS,
        )
    refspecs = [f"{ref}:{ref}" for ref in branches]
    refspecs += [f"{CODE}/*:{CODE}/*"] if code else []
    command = ("push", remote, *refspecs)
    said: list[str] = []
    told = run_git(
        repository,
        *("push", "--porcelain", *_NOTHING_ELSE, "--no-verify", *command[1:]),
        environment=FETCHING_MISSING,
        transports=TRANSPORTS,
        accept=(0, 1),
        hear=said.append,
    )
    lines = [line.split("\t") for line in told.decode("utf-8", "replace").splitlines()]
    results = [line for line in lines if len(line) == 3]
    refused = [f"{refs.partition(':')[2]} {why}" for flag, refs, why in results if flag == "!"]
    if refused or not results:
        raise GitError(
            f"{remote} refused {', '.join(refused) or 'everything'}{_reasons(''.join(said))}",
            _how_to_push(remote, refused),
        )
    changed = [refs.partition(":")[2] for flag, refs, _ in results if flag != "="]
    names = tuple(ref.removeprefix("refs/heads/") for ref in changed if ref in branches)
    try:
        large, absent = push_contents(repository, remote, list(branches))
    except GitError as error:
        raise GitError(
            f"branches and code were pushed to {remote}, contents of large files were not: "
            f"{error.message}",
            error.hint,
        ) from error
    return Exchange(remote, command, len(branches), len(code), names, len(missing), large, absent)


def fetch(repository: Path, remote: str | None = None, with_large: bool = False) -> Exchange:
    """Fetch the artifact branches of a remote, as its remote-tracking branches, and the code of
    their records; `with_large` also the contents of the large files in the newest commits.

    Raises NameNotFoundError for an unknown remote; GitError, also if the remote has no results.
    """
    remote = known_remote(repository, remote)
    tracking = f"refs/remotes/{remote}/{MERGED}*"
    before = _refs(repository, tracking)
    refspecs = (f"+{_BRANCHES}:{tracking}", f"{CODE}/*:{CODE}/*")
    # Of code, this clone may have what the remote lacks: with fetch.prune it would be deleted.
    command = ("fetch", "--no-prune", remote, *refspecs)
    words = ("--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules")
    run_git(
        repository,
        *(command[0], *words, *command[1:]),
        environment=FETCHING_MISSING,
        transports=TRANSPORTS,
    )
    after = _refs(repository, tracking)
    if not after:
        raise GitError(
            f"{remote} has no artifact branch",
            f"{MAKE_RESULTS}\nIf another clone has some, type there: kochi artifact push",
        )
    changed = (ref for ref, commit in after.items() if before.get(ref) != commit)
    names = tuple(ref.removeprefix("refs/remotes/") for ref in changed)
    large = fetch_contents(repository, remote, list(after)) if with_large else ()
    snapshots = len(_refs(repository, CODE))
    return Exchange(remote, command, len(after), snapshots, names, large_command=large)


def split_remote(repository: Path, words: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """The remote that the first word names, else None, and the other words, which name files.

    Raises NameNotFoundError if the first word can be neither.
    """
    known = _remotes(repository)
    if not words or words[0] in known:
        return (words[0], words[1:]) if words else (None, ())
    if "/" not in words[0] and not os.path.lexists(words[0]):
        raise NameNotFoundError(
            f"'{words[0]}' is neither a remote of this repository nor a file",
            nearest(words[0], known),
        )
    return None, words


def _remote_with(repository: Path, commit: str) -> str:
    """A remote whose artifact branches have a commit, else the default one. Raises GitError."""
    words = ("for-each-ref", "--format=%(refname)", f"--contains={commit}")
    refs = run_git(repository, *words, f"refs/remotes/*/{MERGED}*").decode().splitlines()
    having = {ref.removeprefix("refs/remotes/").rpartition("/")[0] for ref in refs}
    default = known_remote(repository) if not having or len(having) > 1 else ""
    return default if default in having or not having else sorted(having)[0]


def fetch_content(repository: Path, commit: str, path: str, remote: str | None = None) -> Content:
    """Have the content of an artifact in a commit in this clone.

    It comes from the `remote`, by default one whose branches have the commit. Raises
    NameNotFoundError for a path that is not in the commit, MissingContentError if the remote lacks
    the content, GitError.
    """
    blobs = blobs_at(repository, commit, [path])
    pointer = pointers_among(repository, blobs).get(path)
    if pointer is None:
        return Content(path, blobs[path].size or 0, None, was_here=True)
    store = Store.of(repository)
    file = store.path(pointer)
    if store.has(pointer):
        return Content(path, pointer.size, file, was_here=True)
    remote = known_remote(repository, remote) if remote else _remote_with(repository, commit)
    fetch_contents(repository, remote, [commit], path)
    if not store.has(pointer):
        raise MissingContentError(f"git-lfs did not find the content of {path}", paths=[path])
    with opened(file) as stream:
        digest = digest_of(stream, is_in_branch=False)
    if digest != pointer.sha256:
        file.unlink(missing_ok=True)  # or the next call would take it for the content
        raise DamagedFileError(f"{file}: the content that was fetched is damaged, and was removed")
    return Content(path, pointer.size, file, was_here=False)


def _reasons(said: str) -> str:
    """What a remote and git said about a refused push, each line indented below a message."""
    lines = [line for line in said.splitlines() if line.startswith(("remote:", "error:", "fatal:"))]
    own = "error: failed to push some refs"
    told = [line.rstrip() for line in lines if not line.startswith(own)]
    return "".join(f"\n    {line}" for line in told[:_MOST_LINES])


def _how_to_push(remote: str, refused: Sequence[str]) -> str:
    if any("shallow" in each for each in refused):
        return (
            "This clone is shallow, and the remote lacks the commits below. Type: git fetch "
            "--unshallow; then push again."
        )
    if not any(reason in each for each in refused for reason in _HAS_OTHER_COMMITS):
        return "Correct this at the remote, or ask who administers it."
    return (
        f"It has results of another clone. Type: kochi artifact fetch {remote}; then kochi "
        "artifact sync, which says how to join them."
    )


def known_remote(repository: Path, remote: str | None = None) -> str:
    """The name of a remote: the given one, else the one that git pushes to, else the only one.

    Raises NameNotFoundError, and GitError if there is no remote.
    """
    known = _remotes(repository)
    if remote is None:
        configured = run_git(repository, "config", "--get", "remote.pushDefault", accept=(0, 1))
        default = os.fsdecode(configured).strip() or _DEFAULT
        remote = known[0] if len(known) == 1 else default
    if remote in known:
        return remote
    if not known:
        raise GitError(
            f"{repository} has no remote", "To add one, type: git remote add origin ADDRESS"
        )
    raise NameNotFoundError(f"there is no remote '{remote}'", nearest(remote, known))


def _remotes(repository: Path) -> list[str]:
    return run_git(repository, "remote").decode().split()


def _refs(repository: Path, pattern: str) -> Mapping[str, str]:
    """The commit of each ref that a pattern matches."""
    words = ("for-each-ref", "--format=%(refname) %(objectname)", "--", pattern)
    lines = (line.partition(" ") for line in run_git(repository, *words).decode().splitlines())
    return {ref: commit for ref, _, commit in lines}
