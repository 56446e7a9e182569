"""Results and their code are pushed to a remote of the project, and fetched, by plain git."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from snakemake_kochi.artifacts.branch_content import all_records
from snakemake_kochi.artifacts.code import CODE, publish_code
from snakemake_kochi.artifacts.published import MERGED, branch_called, names_of
from snakemake_kochi.errors import GitError, NameNotFoundError, nearest
from snakemake_kochi.git import FETCHING_MISSING, TRANSPORTS, run_git
from snakemake_kochi.paths import ProjectPaths

_BRANCHES = f"refs/heads/{MERGED}*"
_DEFAULT = "origin"


@dataclass(frozen=True)
class Exchange:
    """What was pushed or fetched.

    `command`: the words of the git command. `branches`, `snapshots`: how many artifact branches,
    and refs of code, the receiving side now has. `changed`: the branches that it had not, or not
    like this. `without_code`: how many snapshots and sources of recorded results could not be
    published before a push.
    """

    remote: str
    command: tuple[str, ...]
    branches: int
    snapshots: int
    changed: tuple[str, ...] = ()
    without_code: int = 0


def push(repository: Path, paths: ProjectPaths, remote: str | None = None) -> Exchange:
    """Push the artifact branches and the code of their records.

    Code that could not be published when its results were committed is published before. `remote`:
    None for git's default. Raises NameNotFoundError for an unknown remote, and GitError, also if
    the remote refuses a branch because it has other commits.
    """
    remote = _known(repository, remote)
    missing = []
    for name in names_of(repository):
        records = all_records(repository, f"refs/heads/{branch_called(name)}", name)
        missing += publish_code(repository, paths, records, are_own=False)
    branches, code = _refs(repository, _BRANCHES), _refs(repository, CODE)
    if not branches:
        raise GitError(
            f"{repository} has no artifact branch to push",
            "Run a batch first, or type: kochi artifact fetch",
        )
    refspecs = [f"{ref}:{ref}" for ref in branches]
    refspecs += [f"{CODE}/*:{CODE}/*"] if code else []
    command = ("push", remote, *refspecs)
    told = run_git(
        repository,
        *("push", "--porcelain", "--no-verify", *command[1:]),
        environment=FETCHING_MISSING,
        transports=TRANSPORTS,
        accept=(0, 1),
    )
    lines = [line.split("\t") for line in told.decode("utf-8", "replace").splitlines()]
    results = [line for line in lines if len(line) == 3]
    refused = [f"{refs.partition(':')[2]} {why}" for flag, refs, why in results if flag == "!"]
    if refused or not results:
        raise GitError(
            f"{remote} refused {', '.join(refused) or 'everything'}",
            _how_to_push(remote, any("shallow" in each for each in refused)),
        )
    changed = [refs.partition(":")[2] for flag, refs, _ in results if flag != "="]
    names = tuple(ref.removeprefix("refs/heads/") for ref in changed if ref in branches)
    return Exchange(remote, command, len(branches), len(code), names, len(missing))


def fetch(repository: Path, remote: str | None = None) -> Exchange:
    """Fetch the artifact branches of a remote, as its remote-tracking branches, and the code of
    their records.

    Raises NameNotFoundError for an unknown remote; GitError, also if the remote has no results.
    """
    remote = _known(repository, remote)
    tracking = f"refs/remotes/{remote}/{MERGED}*"
    before = _refs(repository, tracking)
    refspecs = (f"+{_BRANCHES}:{tracking}", f"{CODE}/*:{CODE}/*")
    command = ("fetch", remote, *refspecs)
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
            "Where the results are, type: kochi artifact push",
        )
    changed = (ref for ref, commit in after.items() if before.get(ref) != commit)
    names = tuple(ref.removeprefix("refs/remotes/") for ref in changed)
    return Exchange(remote, command, len(after), len(_refs(repository, CODE)), names)


def _how_to_push(remote: str, is_shallow: bool) -> str:
    if is_shallow:
        return (
            "This clone is shallow, and the remote lacks the commits below. Type: git fetch "
            "--unshallow; then push again."
        )
    return (
        f"If it has results of another clone, type: kochi artifact fetch {remote}; then kochi "
        "artifact sync, which says how to join them."
    )


def _known(repository: Path, remote: str | None) -> str:
    """The name of a remote: the given one, else the one that git pushes to, else the only one."""
    known = run_git(repository, "remote").decode().split()
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


def _refs(repository: Path, pattern: str) -> Mapping[str, str]:
    """The commit of each ref that a pattern matches."""
    words = ("for-each-ref", "--format=%(refname) %(objectname)", "--", pattern)
    lines = (line.partition(" ") for line in run_git(repository, *words).decode().splitlines())
    return {ref: commit for ref, _, commit in lines}
