"""What a machine's branch has: where it is, and whose records are in it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snakemake_kochi.artifacts.commit_stream import record_path, records_directory
from snakemake_kochi.artifacts.journal import JournalEntry
from snakemake_kochi.errors import GitError, KochiError
from snakemake_kochi.git import run_git

MERGED = "kochi_artifacts"


@dataclass(frozen=True)
class Branch:
    """A machine's branch at one moment.

    `tip` is "" before the first commit; `start` is what the next commit is based on: the tip, else
    the machine's newest commit in kochi_artifacts, else "".
    """

    ref: str
    tip: str
    start: str
    objects: Path
    object_format: str


def branch(machine: str) -> str:
    """Name of the branch of one machine. Raises KochiError when git allows no such name."""
    if ".." in machine or machine.endswith((".", ".lock")):
        raise KochiError(
            f"machine name {machine!r} cannot be used: it becomes part of the name of a git branch",
            "Rename it: no two dots in a row, no dot or '.lock' at the end.",
        )
    return f"{MERGED}_{machine}"


def read_branch(repository: Path, machine: str) -> Branch:
    """Raises GitError, also where the repository is not there but one above it is."""
    ref = f"refs/heads/{branch(machine)}"
    tip = tip_of(repository, ref)
    options = ("--show-object-format", "--path-format=absolute", "--git-path", "objects")
    found = run_git(repository, "rev-parse", "--show-prefix", *options)
    prefix, object_format, objects = found.removesuffix(b"\n").split(b"\n", 2)
    if prefix:
        # Its .git is away for a moment: git has found the repository that it lies in.
        raise GitError(f"{repository}: there is no git repository now")
    start = tip or _last_merged(repository, machine)
    return Branch(ref, tip, start, Path(os.fsdecode(objects)), object_format.decode())


def tip_of(repository: Path, ref: str) -> str:
    """The commit of a ref, "" if there is no such ref. Raises GitError without a repository."""
    tip = run_git(repository, "rev-parse", "--verify", "--quiet", ref, accept=(0, 1))
    return tip.decode().strip()


def _last_merged(repository: Path, machine: str) -> str:
    """The newest commit of a machine in kochi_artifacts, "" if there is none.

    A branch that was deleted goes on from there: where two branches have no commit in common, each
    file that differs is a conflict.
    """
    if not (merged := tip_of(repository, f"refs/heads/{MERGED}")):
        return ""
    found = run_git(repository, "rev-list", "--max-count=1", merged, "--", machine)
    return found.decode().strip()


def recorded(repository: Path, state: Branch, machine: str, identities: Sequence[str]) -> set[str]:
    """Those of the identities whose record is in the branch already."""
    if not state.start or not identities:
        return set()
    asked = "".join(f"{state.start}:{record_path(machine, name)}\n" for name in identities)
    answers = run_git(repository, "cat-file", "--batch-check", stdin=asked.encode())
    lines = answers.decode().splitlines()
    return {
        name
        for name, answer in zip(identities, lines, strict=True)
        if not answer.endswith(" missing")
    }


def ever_recorded(repository: Path, state: Branch, machine: str) -> set[str]:
    """The identities of all records that a commit of the machine's branch, or of kochi_artifacts,
    has added."""
    tips = [tip for tip in (state.tip, tip_of(repository, f"refs/heads/{MERGED}")) if tip]
    if not tips:
        return set()
    added = run_git(
        repository,
        *("log", "--full-history", "--no-renames", "--diff-filter=A", "--format=", "--name-only"),
        *("-z", *tips, "--", records_directory(machine)),
    )
    return {Path(os.fsdecode(path)).stem for path in added.split(b"\0") if path.strip()}


def records_beside(
    repository: Path, state: Branch, machine: str, entry: JournalEntry
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The paths and contents of the records that came into the branch with the artifacts which an
    entry is to replace.

    Git looks for the newest commit that has changed one of them, so this costs the same however
    many results there are.
    """
    dest = next((f"{machine}/{dest}" for dest in sorted(entry.files)), "")
    if not dest or not state.start:
        return
    literal = "--literal-pathspecs"
    if not run_git(repository, literal, "ls-tree", "--full-tree", state.start, "--", dest):
        return  # git would go through all of the history
    found = run_git(repository, literal, "rev-list", "--max-count=1", state.start, "--", dest)
    if not (commit := found.decode().strip()):
        return
    options = ("-r", "--root", "--no-commit-id", "--no-renames", "--diff-filter=AM", "--name-only")
    place = records_directory(machine)
    changed = run_git(repository, "diff-tree", *options, "-z", commit, "--", place)
    names = [os.fsdecode(name) for name in changed.split(b"\0") if name]
    wanted = "".join(f"{commit}:{name}\n" for name in names).encode()
    contents = run_git(repository, "cat-file", "--batch", stdin=wanted)
    for name in names:
        header, _, rest = contents.partition(b"\n")
        size = int(header.split(b" ")[-1])
        with suppress(ValueError, TypeError):  # what somebody has changed by hand is no record
            yield name, dict(json.loads(rest[:size]))
        contents = rest[size + 1 :]


def contains(repository: Path, ref: str, commit: str) -> bool:
    """Whether a branch has a commit ("" is in each). Raises GitError without a repository."""
    tip = tip_of(repository, ref)
    if commit in ("", tip) or not tip:
        return not commit or commit == tip
    try:
        run_git(repository, "merge-base", "--is-ancestor", commit, tip)
    except GitError:
        return False  # or there is no such commit any more
    return True
