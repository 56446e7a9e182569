"""All records of the artifact branches, own and fetched ones, and the files of their results.

Reads only. The number of git processes does not depend on the number of records.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snakemake_kochi.artifacts.branch_content import record_path, records_directory, tip_of
from snakemake_kochi.artifacts.large import LONGEST_POINTER, Store, parse_pointer
from snakemake_kochi.artifacts.published import MERGED, branch_called, names_of
from snakemake_kochi.artifacts.record import label_of, parse_record
from snakemake_kochi.errors import GitError, NameNotFoundError, nearest
from snakemake_kochi.files import is_name
from snakemake_kochi.git import read_objects, run_git


@dataclass(frozen=True)
class RecordFile:
    """A record in a branch.

    `name` is that under which its result is published, `identity` the result's, `blob` the object
    with the record. `failed`: it is of an attempt that failed.
    """

    name: str
    identity: str
    blob: str
    failed: bool = False

    @property
    def label(self) -> str:
        """What ran: the experiment and the batch, cut after 80 characters."""
        return label_of(self.identity)


@dataclass(frozen=True)
class Published:
    """The artifact branches at one moment: for each name the newest commits with its results.

    There are several if clones with different results published under one name.
    """

    repository: Path
    tips: Mapping[str, tuple[str, ...]]

    def records(self, failed: bool = False) -> list[RecordFile]:
        """All records of results, or those of attempts that failed, each once.

        Raises GitError, also for commits that are not in this clone.
        """
        found: dict[tuple[str, str], RecordFile] = {}
        for name, commits in self.tips.items():
            for commit in commits:
                for path, blob in _files(self.repository, commit, records_directory(name, failed)):
                    identity = path.rpartition("/")[2].removesuffix(".json")
                    found.setdefault((name, identity), RecordFile(name, identity, blob, failed))
        return list(found.values())

    def record(self, identity: str) -> bytes | None:
        """The content of one record, of a result or of a failed attempt; None if there is none."""
        if not is_name(identity):
            return None
        places = [
            f"{commit}:{record_path(name, identity, failed)}"
            for name, commits in self.tips.items()
            for commit in commits
            for failed in (False, True)
        ]
        found = read_objects(self.repository, places)
        return next((content for content in found if content is not None), None)

    def read_records(
        self, records: Sequence[RecordFile]
    ) -> Iterator[tuple[RecordFile, bytes | None]]:
        """Each of the records with its content; None for an object that is missing."""
        contents = read_objects(self.repository, [record.blob for record in records])
        yield from zip(records, contents, strict=True)

    def edited(self, records: Collection[RecordFile]) -> set[RecordFile]:
        """Those of the records that are not as they were written: a later commit changed them.

        Kochi writes a record once. Git compares all commits with records under their names.
        """
        if not records:
            return set()
        names = sorted({record.name for record in records} & self.tips.keys())
        commits = sorted({commit for name in names for commit in self.tips[name]})
        places = [records_directory(name, failed) for name in names for failed in (False, True)]
        # The newest commit comes first, so what stays is the blob before the first change.
        words = ("--full-history", "--diff-filter=M")
        changes = _changes(self.repository, words, commits, places)
        written = {path: before for path, before, _ in changes}
        return {
            record
            for record in records
            if written.get(record_path(record.name, record.identity, record.failed), record.blob)
            != record.blob
        }

    def read_results(self, paths: Collection[str]) -> Iterator[tuple[str, bytes]]:
        """The contents of files of the newest commits, by their path in a branch.

        A path has several contents if clones differ. Files that are missing are left out, also
        large files of which this clone has pointers only.
        """
        wanted = set(paths)
        places = [
            (path, blob)
            for name, commits in self.tips.items()
            for commit in commits
            for path, blob in _files(self.repository, commit, name)
            if path in wanted
        ]
        yield from self._contents(places)

    def read_history(self, paths: Collection[str]) -> Iterator[tuple[str, bytes]]:
        """The contents that files had in any commit, by their path in a branch.

        Git compares all commits with results under the names of these files.
        """
        if not paths:
            return
        wanted = set(paths)
        names = sorted({path.partition("/")[0] for path in wanted} & self.tips.keys())
        commits = sorted({commit for name in names for commit in self.tips[name]})
        places: dict[tuple[str, str], None] = {}
        for path, _, blob in _changes(self.repository, ("--diff-filter=AM",), commits, names):
            if path in wanted:
                places[path, blob] = None
        yield from self._contents(list(places))

    def _contents(self, places: Sequence[tuple[str, str]]) -> Iterator[tuple[str, bytes]]:
        contents = read_objects(self.repository, [blob for _, blob in places])
        store = None
        for (path, _), content in zip(places, contents, strict=True):
            pointer = None
            if content is not None and len(content) <= LONGEST_POINTER:
                pointer = parse_pointer(content)
            if pointer is not None:
                store = store or Store.of(self.repository)
                content = store.path(pointer).read_bytes() if store.has(pointer) else None
            if content is not None:
                yield path, content


MAKE_RESULTS = "To make results, type: kochi batch FILE.yaml BATCH"


def to_get_results(repository: Path) -> str:
    """What a person types where there are no results. Only where there is a remote, they can come
    from it."""
    if not run_git(repository, "remote"):
        return MAKE_RESULTS
    return f"{MAKE_RESULTS}\nTo get those that were pushed, type: kochi artifact fetch"


def published(repository: Path, commit: str | None = None) -> Published:
    """What the artifact branches of a repository have now, or what one of their commits has.

    Branches of the clone and those fetched from remotes count. kochi_artifacts counts for names
    that have no branch here. Raises GitError without any, and for an unknown commit;
    NameNotFoundError for a misspelt branch.
    """
    refs = _branches(repository)
    if commit is not None:
        # Not an option of git, whatever it is.
        found = "" if commit.startswith("-") else tip_of(repository, f"{commit}^{{commit}}")
        if not found:
            known = [ref.split("/", 2)[2] for ref in refs]
            raise NameNotFoundError(f"there is no commit '{commit}', {nearest(commit, known)}")
        return Published(repository, dict.fromkeys(_names_in(repository, found), (found,)))
    if not refs:
        raise GitError(
            f"{repository} has no artifact branch",
            to_get_results(repository),
        )
    own: dict[str, set[str]] = defaultdict(set)
    merged: dict[str, set[str]] = defaultdict(set)
    for ref, tip in refs.items():
        branch = ref.rpartition("/")[2]
        if branch == MERGED:
            for name in _names_in(repository, tip):
                merged[name].add(tip)
        else:
            own[branch.removeprefix(f"{MERGED}_")].add(tip)
    both = {**merged, **own}
    return Published(repository, {name: _newest(repository, both[name]) for name in sorted(both)})


def records_here(repository: Path, failed: bool = False) -> Iterator[dict[str, Any] | None]:
    """The records in the branches of this clone itself; None for one that the clone lacks.

    Those of results, or of attempts that failed. What was edited by hand is left out. Raises
    GitError.
    """
    tips = {name: (f"refs/heads/{branch_called(name)}",) for name in names_of(repository)}
    branches = Published(repository, tips)
    for _, content in branches.read_records(branches.records(failed)):
        if content is None:
            yield None
        else:
            with suppress(ValueError):
                yield parse_record(content)


def _branches(repository: Path) -> dict[str, str]:
    """The commit of each artifact branch, by its full ref."""
    tops, ends = ("refs/heads", "refs/remotes/*"), ("", "_*")
    places = [f"{top}/{MERGED}{end}" for top in tops for end in ends]
    words = ("for-each-ref", "--format=%(refname) %(objectname)", "--", *places)
    lines = (line.partition(" ") for line in os.fsdecode(run_git(repository, *words)).splitlines())
    return {ref: tip for ref, _, tip in lines}


def _names_in(repository: Path, commit: str) -> list[str]:
    """The names under which a commit has results."""
    words = ("ls-tree", "-d", "-z", "--name-only", "--full-tree", commit)
    return [os.fsdecode(each) for each in run_git(repository, *words).split(b"\0") if each]


def _newest(repository: Path, commits: Iterable[str]) -> tuple[str, ...]:
    """The commits of which none is in the history of another."""
    some = sorted(commits)
    if len(some) == 1:
        return tuple(some)
    # It prints nothing and fails where a commit is missing, as in a shallow clone.
    found = run_git(repository, "merge-base", "--independent", *some, accept=(0, 1, 128))
    return tuple(found.decode().split()) or tuple(some)


def _files(repository: Path, commit: str, directory: str) -> Iterator[tuple[str, str]]:
    """The paths and objects of all files below a directory of a commit."""
    words = ("--literal-pathspecs", "ls-tree", "-r", "-z", "--full-tree", commit, "--", directory)
    for line in run_git(repository, *words).split(b"\0"):
        told, _, path = line.partition(b"\t")
        if path:
            yield os.fsdecode(path), told.split(b" ")[2].decode()


def _changes(
    repository: Path, options: Sequence[str], commits: Sequence[str], paths: Sequence[str]
) -> Iterator[tuple[str, str, str]]:
    """The paths that commits changed, and their objects before and after, the newest first."""
    raw = ("--raw", "-z", "--no-renames", "--no-abbrev", "--format=")
    words = ("--literal-pathspecs", "log", *raw, *options, *commits, "--", *paths)
    fields = iter(run_git(repository, *words).split(b"\0"))
    for field in fields:
        # Between two commits there may be an empty field.
        if field.strip().startswith(b":"):
            _, _, before, after, _ = field.split(b" ")
            yield os.fsdecode(next(fields)), before.decode(), after.decode()
