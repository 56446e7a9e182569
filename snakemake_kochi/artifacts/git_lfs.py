"""The contents of large files are pushed and fetched by the program git-lfs, if it is installed.

It knows the hosting services, and copies between repositories on this computer by itself.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from snakemake_kochi.artifacts.large import Store
from snakemake_kochi.errors import GitError
from snakemake_kochi.git import FETCHING_MISSING, TRANSPORTS, USERS_OWN, run_git, without_programs

_ATTRIBUTES = ":(glob)**/.gitattributes"
# What git-lfs would execute. How it connects to a remote is as for git: see git.py.
_PROGRAMS = r"^lfs\.(extension|customtransfer)\."
# For git: a checkout leaves pointers, and git-lfs downloads nothing.
_NO_DOWNLOAD = {"GIT_LFS_SKIP_SMUDGE": "1"}


def push_contents(
    repository: Path, remote: str, refs: Collection[str]
) -> tuple[tuple[str, ...], int]:
    """Push the contents of large files in the histories of branches.

    Returns the words of the git command, none if there is nothing to push, and how many contents
    are neither here nor, as far as git-lfs knows, on the remote. Raises GitError; it says what to
    type, also if git-lfs is not installed.
    """
    if not (Store.of(repository).directory / "objects").is_dir():
        return (), 0
    command = ("lfs", "push", "--all", remote, *refs)
    if not _is_installed(repository):
        words = ("rev-list", "--max-count=1", *refs, "--", _ATTRIBUTES)
        if not run_git(repository, *words):
            return (), 0
    _require(repository, command)
    # Branches may have pointers of others, whose contents were never fetched.
    told = _run(repository, "-c", "lfs.allowincompletepush=true", *command)
    return command, told.count(b"\n  (missing) ")


def fetch_contents(
    repository: Path, remote: str, revisions: Sequence[str], path: str = ""
) -> tuple[str, ...]:
    """Fetch the contents of the large files in some revisions, or only of a path in them.

    Returns the words of the git command. Raises GitError.
    """
    # Whatever the configuration includes or excludes.
    options = ("-I", _pattern(path), "-X", "")
    command = ("lfs", "fetch", *options, remote, *revisions)
    _require(repository, command)
    try:
        _run(repository, *command)
    except GitError as error:
        raise GitError(
            f"not all contents came from {remote}: {error.message}",
            "Where the result was made, type: kochi artifact push",
        ) from error
    return command


def checkout_environment(repository: Path) -> Mapping[str, str]:
    """For git commands that write files of the artifact branches: see `check_out_contents`."""
    return {**without_programs(repository), **_NO_DOWNLOAD}


def check_out_contents(directory: Path, paths: Sequence[str] = ()) -> None:
    """In a worktree of results, replace pointers with the contents that this clone has.

    Only if the user has set up git-lfs (`git lfs install`): git would otherwise take the files for
    changed ones. A repository's own settings do not count: they could name any program. `paths`:
    relative to the directory, by default all. Raises GitError.
    """
    environment = without_programs(directory)
    words = ("config", "--get", "filter.lfs.clean")
    if not run_git(directory, *words, environment=environment, accept=(0, 1)).strip():
        return
    has_large = run_git(directory, "ls-files", "--", _ATTRIBUTES)
    if has_large and _is_installed(directory) and not _foreign_programs(directory):
        run_git(directory, "lfs", "checkout", *map(_pattern, paths), environment=environment)


def _run(repository: Path, *words: str) -> bytes:
    return run_git(repository, *words, environment=FETCHING_MISSING, transports=TRANSPORTS)


def _require(repository: Path, command: Sequence[str]) -> None:
    """Raise GitError if git-lfs is not installed, or must not be executed here."""
    if not _is_installed(repository):
        raise GitError(
            "the contents of large files are pushed and fetched by git-lfs, which is not installed",
            "Install it (apt install git-lfs, conda install -c conda-forge git-lfs, or see "
            "https://git-lfs.com), then type the same command again.",
        )
    if found := _foreign_programs(repository):
        raise GitError(
            f"{repository}: its git configuration has {found}, a program that git-lfs would "
            "execute, and kochi does not",
            f"If it is yours, type: {shlex.join(['git', *command])}",
        )


def _is_installed(repository: Path) -> bool:
    """Whether git finds the program. Without it, `git lfs` would be an alias of the repository."""
    own = os.fsdecode(run_git(repository, "--exec-path")).rstrip("\n")
    places = (own, *os.get_exec_path())
    # In a relative place, git would search below its own working directory, and not below ours.
    return any(shutil.which("git-lfs", path=place) for place in places if os.path.isabs(place))


def _foreign_programs(repository: Path) -> str:
    """A key with which the repository's own configuration names a program for git-lfs; or ""."""
    words = ("config", "-z", "--show-scope", "--name-only", "--get-regexp", _PROGRAMS)
    found = os.fsdecode(run_git(repository, *words, accept=(0, 1))).split("\0")
    keys = zip(found[::2], found[1::2], strict=False)
    return next((key for scope, key in keys if scope not in USERS_OWN), "")


def _pattern(path: str) -> str:
    """A pattern of git-lfs for a path. It may match others, too. A comma would begin another."""
    return re.sub(r"[\s,*?\[\]\\!#{}]", "?", path)
