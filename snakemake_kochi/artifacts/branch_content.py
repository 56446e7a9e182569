"""The content of a machine's branch: its commits, and the records in them.

`<name>` is the name under which the machine's results are published:

<name>/<dest>                     a result, or a pointer to a large one (`large.py`)
<name>/.kochi/records/            the records of results, in directories (see `record_path`)
<name>/.kochi/failed/             the records of attempts that failed, in the same way
<name>/.kochi/diffs/<tree>.diff   how the snapshot of this tree differs from the checked-out commit
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snakemake_kochi.artifacts.entry import RESERVED, JournalEntry
from snakemake_kochi.artifacts.published import MERGED, branch_called, fix_name, refs_elsewhere
from snakemake_kochi.artifacts.record import parse_record
from snakemake_kochi.errors import GitError
from snakemake_kochi.git import read_objects, run_git

_KINDS = (False, True)  # of records: of results, of failed attempts


@dataclass(frozen=True)
class Branch:
    """A machine's branch at one moment.

    `name` is that under which the results are published, their directory in the branch. `tip` is ""
    before the first commit. `start` is the base of the next commit: the tip, else the newest commit
    under that name in kochi_artifacts, else the branch as fetched from a remote, or a fetched
    kochi_artifacts, else "".
    """

    name: str
    ref: str
    tip: str
    start: str
    objects: Path
    object_format: str


def records_directory(name: str, failed: bool = False) -> str:
    """The directory of the branch with the records of results that are published under a name, or
    with those of attempts that failed."""
    return f"{name}/{RESERVED}/{'failed' if failed else 'records'}"


def record_path(name: str, identity: str, failed: bool = False) -> str:
    """The path of a record in the branch: that of a result, or of an attempt that failed.

    The records are in several directories, because a commit writes each changed directory anew.
    """
    shard = hashlib.sha256(identity.encode()).hexdigest()[:2]
    return f"{records_directory(name, failed)}/{shard}/{identity}.json"


# ---- commits


def read_branch(repository: Path, machine: str) -> Branch:
    """Read the state of the branch. Call with the committer's lock held, or only to read.

    Raises GitError, also where the repository is missing but there is one above it, and KochiError
    for a machine whose name git forbids.
    """
    branch_called(machine)
    ours = f"refs/heads/{MERGED}_"
    heads = f"--glob={ours}*"
    options = ("--show-object-format", "--path-format=absolute", "--git-path", "objects")
    words = ("--show-prefix", *options, heads, "--symbolic-full-name", heads)
    prefix, object_format, *rest = run_git(repository, "rev-parse", *words)[:-1].split(b"\n")
    if prefix:
        # Its .git is missing for a moment, and git has found the repository above it.
        raise GitError(f"{repository}: there is no git repository now")
    # The path, which may contain line ends, then commits, then as many refs.
    refs = [os.fsdecode(line) for line in rest if line.startswith(b"refs/heads/")]
    count = len(rest) - 2 * len(refs)
    tips = {ref: tip.decode() for ref, tip in zip(refs, rest[count:], strict=False)}
    objects = Path(os.fsdecode(b"\n".join(rest[:count])))
    name = fix_name(objects.parent, machine, [ref.removeprefix(ours) for ref in refs])
    ref = f"refs/heads/{branch_called(name)}"
    tip = tips.get(ref, "")
    start = tip or _start(repository, name)
    return Branch(name, ref, tip, start, objects, object_format.decode())


def _start(repository: Path, name: str) -> str:
    """The commit with which a branch that was deleted, or is not here yet, continues; "" for none.

    In branches without a common commit each file that differs would be a conflict.
    """
    if merged := tip_of(repository, f"refs/heads/{MERGED}"):
        found = _last_of(repository, merged, name)
        pushed = refs_elsewhere(repository, branch_called(name))
        elsewhere = next((commit for _, commit in pushed), "")
        # Results merged here may be older than those that the same user pushed from another clone.
        return elsewhere if elsewhere and is_ancestor(repository, found, elsewhere) else found
    for _, commit in refs_elsewhere(repository, branch_called(name)):
        return commit
    for _, merged in refs_elsewhere(repository, MERGED):
        if found := _last_of(repository, merged, name):
            return found
    return ""


def _last_of(repository: Path, merged: str, name: str) -> str:
    """The newest commit under a name in kochi_artifacts, "" if there is none."""
    found = run_git(repository, "rev-list", "--max-count=1", merged, "--", name)
    return found.decode().strip()


def tip_of(repository: Path, ref: str) -> str:
    """The commit of a ref, "" if there is no such ref. Raises GitError without a repository."""
    tip = run_git(repository, "rev-parse", "--verify", "--quiet", ref, accept=(0, 1))
    return tip.decode().strip()


def contains(repository: Path, ref: str, commit: str) -> bool:
    """Whether a branch has a commit ("" is in each). Raises GitError without a repository."""
    tip = tip_of(repository, ref)
    if commit in ("", tip) or not tip:
        return not commit or commit == tip
    return is_ancestor(repository, commit, tip)


def is_ancestor(repository: Path, commit: str, other: str) -> bool:
    """Whether a commit ("" is in each) is part of another's history."""
    if not commit:
        return True
    try:
        run_git(repository, "merge-base", "--is-ancestor", commit, other)
    except GitError:
        return False  # or that commit no longer exists
    return True


def last_change(repository: Path, start: str, paths: Sequence[str]) -> str:
    """The newest commit of a history that changed one of the paths, "" for none."""
    if not paths:
        return ""
    words = ("--literal-pathspecs", "rev-list", "--max-count=1", start, "--", *paths)
    return run_git(repository, *words).decode().strip()


def paths_in(repository: Path, commit: str, paths: Sequence[str]) -> list[str]:
    """The paths that a commit contains ("" contains none)."""
    asked = [path for path in paths if "\n" not in path] if commit else []
    if not asked:
        return []
    questions = "".join(f"{commit}:{path}\n" for path in asked)
    answers = run_git(repository, "cat-file", "--batch-check", stdin=os.fsencode(questions))
    lines = answers.split(b"\n")[:-1]  # a path may have a carriage return
    return [p for p, line in zip(asked, lines, strict=True) if not line.endswith(b" missing")]


# ---- records


def recorded(repository: Path, state: Branch, identities: Sequence[str]) -> set[str]:
    """The identities whose record is in the branch already."""
    if not state.start or not identities:
        return set()
    # Whether an entry is of a result or of a failed attempt is known only when it was read.
    places = [(name, record_path(state.name, name, kind)) for name in identities for kind in _KINDS]
    asked = "".join(f"{state.start}:{place}\n" for _, place in places)
    answers = run_git(repository, "cat-file", "--batch-check", stdin=asked.encode())
    lines = answers.decode().splitlines()
    return {
        name
        for (name, _), answer in zip(places, lines, strict=True)
        if not answer.endswith(" missing")
    }


def ever_recorded(repository: Path, state: Branch) -> set[str]:
    """The identities of all records that were ever added to the branch or to kochi_artifacts."""
    tips = [tip for tip in (state.start, tip_of(repository, f"refs/heads/{MERGED}")) if tip]
    if not tips:
        return set()
    added = run_git(
        repository,
        *("log", "--full-history", "--no-renames", "--diff-filter=A", "--format=", "--name-only"),
        *("-z", *tips, "--", records_directory(state.name)),
    )
    return {Path(os.fsdecode(path)).stem for path in added.split(b"\0") if path.strip()}


def records_beside(
    repository: Path, state: Branch, entry: JournalEntry
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The paths and contents of the records that came with the artifacts that an entry replaces.

    Git looks for the newest commit that changed one of them, so the cost does not depend on the
    number of results.
    """
    dest = next((f"{state.name}/{dest}" for dest in sorted(entry.destinations)), "")
    if not dest or not state.start:
        return
    if not paths_in(repository, state.start, [dest]):
        return  # git would read all of the history
    if commit := last_change(repository, state.start, [dest]):
        _, blobs = _changed_by(repository, state.name, commit)
        yield from _contents(repository, blobs)


def records_of(
    repository: Path, state: Branch, commit: str, paths: Collection[str]
) -> Iterator[tuple[dict[str, Any], set[str]]]:
    """The records of a commit, each with those of the `paths` that it is the first to have.

    They are read one by one, until each path that the commit changed has its record.
    """
    changed, blobs = _changed_by(repository, state.name, commit)
    left = changed.intersection(paths)
    for _, record in _contents(repository, blobs) if left else ():
        its: set[str] = set()
        with suppress(KeyError, TypeError):
            its = left & {f"{state.name}/{each['dest']}" for each in record.get("artifacts", ())}
        yield record, its
        left -= its
        if not left:
            return


def changed_records(repository: Path, name: str, commit: str) -> Iterator[dict[str, Any]]:
    """The records that a commit added or changed, of results under a name."""
    _, blobs = _changed_by(repository, name, commit)
    yield from (record for _, record in _contents(repository, blobs))


def _changed_by(repository: Path, name: str, commit: str) -> tuple[set[str], list[tuple[str, str]]]:
    """The paths of the artifacts that a commit added or changed, and its records with objects."""
    options = ("-r", "--root", "--no-commit-id", "--no-renames", "--no-abbrev", "--diff-filter=AM")
    told = run_git(repository, "diff-tree", *options, "--raw", "-z", commit, "--", name)
    fields = told.split(b"\0")
    place, artifacts, records = records_directory(name), set(), []
    for description, raw in zip(fields[::2], fields[1::2], strict=False):
        path = os.fsdecode(raw)
        if path.startswith(f"{place}/"):
            records.append((path, description.split(b" ")[3].decode()))
        else:
            artifacts.add(path)
    return artifacts, records


def _contents(
    repository: Path, blobs: Sequence[tuple[str, str]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    contents = read_objects(repository, [blob for _, blob in blobs])
    for (path, _), content in zip(blobs, contents, strict=True):
        if content is not None:
            with suppress(ValueError):  # a record that somebody edited by hand is no record
                yield path, parse_record(content)
