"""The committer: many journaled results become one commit on the machine's branch.

In the user's repository it only adds objects and moves the ref of the branch, by compare-and-swap.
Git's fast-import reads only the directories that change, so the cost of a commit does not depend on
the number of artifacts in the branch. fast-import leaves crash reports in its repository, so it
runs in a temporary one that writes its objects to the user's.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from snakemake_kochi.artifacts.agreement import (
    agree,
    agreed_commit,
    begin_to_agree,
    disagree,
    missing_results,
)
from snakemake_kochi.artifacts.branch_content import (
    Branch,
    contains,
    ever_recorded,
    read_branch,
    recorded,
    tip_of,
)
from snakemake_kochi.artifacts.code import publish_code
from snakemake_kochi.artifacts.entry import JournalEntry, read_entry
from snakemake_kochi.artifacts.journal import note_commit, pending, remove_entries, set_aside
from snakemake_kochi.artifacts.large import Store
from snakemake_kochi.artifacts.new_commits import (
    UnreadableEntryError,
    read_attributes,
    stream_commits,
)
from snakemake_kochi.artifacts.promises import is_commit_promised
from snakemake_kochi.artifacts.published import branch_called
from snakemake_kochi.artifacts.record import is_success
from snakemake_kochi.artifacts.replaced import is_made_again, note_replaced, superseded_records
from snakemake_kochi.errors import DamagedFileError, GitError, KochiError
from snakemake_kochi.files import make_directory
from snakemake_kochi.git import run_git, stream_git, update_ref
from snakemake_kochi.locks import Held, LockBusyError, find_lock_settings
from snakemake_kochi.paths import ProjectPaths

_MOVED_AT_MOST = 20  # commits by others between reading the branch and moving it

_logger = logging.getLogger(__name__)


def committer_lock(
    paths: ProjectPaths, machine: str, timeout: float
) -> AbstractContextManager[Held]:
    """The lock whose holder alone moves the machine's branch.

    Timeout in seconds, 0: no waiting. Raises LockBusyError when others hold it for longer,
    KochiError when it cannot be held.
    """
    locks = find_lock_settings(paths.machine(machine))
    return locks.hold(locks.paths.project(paths.directory).committer, patience=timeout)


def commit_pending(
    repository: Path, paths: ProjectPaths, machine: str, patience: float = 0.0
) -> int:
    """Commit all journaled results of a machine in one commit; return how many were committed.

    Records of failed attempts are committed with them, and do not count.

    Artifacts go to <name>/<dest>, where <name> is that under which the machine's results are
    published (`published.py`), records to `record_path`. When another process is committing, this
    waits for `patience` seconds and then returns 0. Nothing stays behind: that process reads the
    journal again after releasing the lock, or another one has promised to.

    If it is killed at any point, the next call completes the work, and a result whose record is in
    the branch is not committed again. Where a destination was a file and is now a directory, or the
    reverse, or the same file, the newest result wins; the older one is in the history (therefore
    results that exclude each other go into commits of their own). An entry is removed when the
    branch has its commit. A damaged entry is set aside with a warning, and so is one of an attempt
    that was given up and whose point a later attempt has made again. An entry that cannot be read
    now stays.

    If the branch is checked out somewhere, only the ref moves, and that worktree shows the new
    results as deleted until `git reset --hard`. Raises GitError and OSError; then the results stay
    in the journal.
    """
    branch_called(machine)
    committer, committed = _Committer(repository, paths, machine), 0
    # An entry that cannot be removed must not keep this loop running for ever.
    seen: tuple[str, ...] = ()
    while (waiting := pending(paths, machine)) and waiting != seen:
        seen = waiting
        try:
            with committer_lock(paths, machine, patience):
                state, entries = committer.commit_journal()
        except LockBusyError:
            break
        committed += _results(entries)
        note_replaced(repository, paths, state, machine, entries)
    return committed


def commit_in_burst(
    repository: Path, paths: ProjectPaths, machine: str, patience: float = 0.0
) -> int:
    """As `commit_pending`, but leave later results to a process that has promised to commit them.

    Otherwise a run would not end as long as others end. Without a promise it commits them, too.
    Also raises KochiError if others hold the lock for longer than a `patience` above 0.
    """
    branch_called(machine)
    committer, committed = _Committer(repository, paths, machine), 0
    try:
        with committer_lock(paths, machine, patience):
            # Noted already here: runs that end meanwhile do not come and find the lock held.
            note_commit(paths, machine)
            state, entries = committer.commit_journal()
        committed = _results(entries)
    except LockBusyError:
        if patience:
            raise _busy(patience) from None
        entries = []
    # Checked after releasing the lock: a process that found it held, without a promise, relies on
    # this one.
    if not is_commit_promised(paths, machine):
        committed += commit_pending(repository, paths, machine)
    if entries:
        note_replaced(repository, paths, state, machine, entries)
    return committed


def commit_missing(
    repository: Path,
    paths: ProjectPaths,
    machine: str,
    patience: float = 0.0,
    thorough: bool = False,
    large: int | None = None,
) -> int:
    """Commit results with a record in working directories that no commit has; return how many.

    They are examined one by one only if the branch lacks a commit that was made (it was deleted or
    moved), if a result could not be journaled, or if `thorough`; if no commit was ever noted, only
    if `thorough`. Results that a later commit of the branch, or of kochi_artifacts, has removed are
    not committed again. `large`: see `journal`. Raises GitError and OSError, and KochiError if
    others hold the lock for longer than `patience` (seconds).
    """
    committer = _Committer(repository, paths, machine)
    if not thorough and committer.is_agreed(read_branch(repository, machine)):
        return 0  # checked without the lock first: others may hold it for long
    try:
        with committer_lock(paths, machine, patience):
            state, entries = committer.commit_missing(thorough, large)
    except LockBusyError:
        raise _busy(patience) from None
    note_replaced(repository, paths, state, machine, entries)
    return len(entries)


@dataclass(frozen=True)
class _Committer:
    """Commits results of one machine. Call its methods, except `is_agreed`, with the lock held."""

    repository: Path
    paths: ProjectPaths
    machine: str

    @cached_property
    def _store(self) -> Store:
        return Store.of(self.repository)

    def commit_journal(self) -> tuple[Branch, list[JournalEntry]]:
        """Commit the journal; return the branch as it was before, and the committed entries."""
        for _ in range(_MOVED_AT_MOST):
            state = read_branch(self.repository, self.machine)
            identities = pending(self.paths, self.machine)
            there = recorded(self.repository, state, identities)
            entries = self._whole_entries([i for i in identities if i not in there])
            entries = self._without_redone(state, entries)
            was_agreed = self.is_agreed(state)
            done = self._put_into_branch(state, entries)
            if done is None:
                continue
            commit, committed = done
            if was_agreed:
                agree(self.paths, self.machine, commit)
            remove_entries(
                self.paths, self.machine, {*there, *(entry.identity for entry in committed)}
            )
            note_commit(self.paths, self.machine)
            return state, committed
        raise _moved_too_often(state)

    def commit_missing(
        self, thorough: bool, large: int | None
    ) -> tuple[Branch, list[JournalEntry]]:
        """Commit results that no commit has; return as `commit_journal`."""
        for _ in range(_MOVED_AT_MOST):
            state = read_branch(self.repository, self.machine)
            if not thorough and self.is_agreed(state):
                return state, []
            begin_to_agree(self.paths, self.machine)
            there = ever_recorded(self.repository, state)
            found, whole = missing_results(self.paths, self.machine, self.repository, there, large)
            missing = [e for e in found if not is_made_again(self.repository, self.paths, state, e)]
            done = self._put_into_branch(state, missing)
            if done is None:
                continue
            commit, committed = done
            if whole and len(committed) == len(missing):
                agree(self.paths, self.machine, commit)
            return state, committed
        raise _moved_too_often(state)

    def is_agreed(self, state: Branch) -> bool:
        """Whether the branch still contains everything that was committed to it."""
        agreed = agreed_commit(self.paths, self.machine)
        return agreed is not None and (
            agreed in ("", state.tip) or contains(self.repository, state.ref, agreed)
        )

    def _whole_entries(self, identities: Sequence[str]) -> list[JournalEntry]:
        """The entries in the order of journaling. Damaged ones are set aside."""
        entries = []
        for identity in identities:
            place = self.paths.journal(self.machine) / identity
            try:
                entry = read_entry(place)
                self._check_large(entry)
            except DamagedFileError as damaged:
                set_aside(self.paths.damaged_results(self.machine), place, damaged.message)
                # The files that the run left in its working directory may be intact.
                disagree(self.paths, self.machine)
            except FileNotFoundError:
                continue  # without working locks another committer may have removed it
            except (OSError, KochiError) as error:
                _not_now(identity, error)
            else:
                entries.append(entry)
        return sorted(entries, key=lambda entry: (entry.time, entry.identity))

    def _check_large(self, entry: JournalEntry) -> None:
        """Raise DamagedFileError if a content is gone: `git lfs prune` removes those without a
        commit."""
        for dest, pointer in entry.large.items():
            if not self._store.has(pointer):
                file = self._store.path(pointer)
                raise DamagedFileError(f"{file}, the content of {dest}, is gone")

    def _without_redone(self, state: Branch, entries: Sequence[JournalEntry]) -> list[JournalEntry]:
        """The entries without those that a later attempt has made again, which are set aside."""
        counting = []
        for entry in entries:
            if is_made_again(self.repository, self.paths, state, entry, entries):
                why = (
                    f"result {entry.identity} is of attempt {entry.record['attempt']} of job "
                    f"{entry.record['job']}, which was given up: a later attempt has made it again"
                )
                set_aside(self.paths.late_results(self.machine), entry.place, why)
            else:
                counting.append(entry)
        return counting

    def _put_into_branch(
        self, state: Branch, entries: Sequence[JournalEntry]
    ) -> tuple[str, list[JournalEntry]] | None:
        """Commit entries, except those that cannot be read now.

        Returns the commit of the branch afterwards, and the entries in it; None when the branch has
        moved: read it again.
        """
        commit, readable = state.tip, list(entries)
        records = [entry.record for entry in entries]
        publish_code(self.repository, self.paths, records, state.objects)
        try:
            while readable:
                try:
                    commit = self._import(state, readable)
                except UnreadableEntryError as error:
                    _not_now(error.entry.identity, error)
                    readable = [entry for entry in readable if entry is not error.entry]
                else:
                    update_ref(self.repository, state.ref, commit, state.tip)
                    break
        except GitError:
            if tip_of(self.repository, state.ref) == state.tip:
                raise
            return None  # another process has moved the branch: build on its new commit
        # The copies of the results are removed after this. `is_agreed` notices if somebody deletes
        # the branch later.
        return (commit, readable) if contains(self.repository, state.ref, commit) else None

    def _import(self, state: Branch, entries: Sequence[JournalEntry]) -> str:
        """Write the objects of the commits and return the id of the last."""
        superseded = [
            path for entry in entries for path in superseded_records(self.repository, state, entry)
        ]
        attributes = read_attributes(self.repository, state, entries)
        place = make_directory(self.paths.journal(self.machine))
        with tempfile.TemporaryDirectory(
            prefix=".commit.", suffix=".tmp", dir=place, ignore_cleanup_errors=True
        ) as temporary:
            words = ("init", "--quiet", "--bare", "--template=")
            form = f"--object-format={state.object_format}"
            # $GIT_DIR, because init in the current directory would find a repository above it.
            scratch = {"GIT_DIR": temporary}
            run_git(Path(temporary), *words, form, environment=scratch)
            options = (
                # The journal's copy is removed right after: the objects have to be on disk by then.
                *("-c", "core.fsync=committed,loose-object", "-c", "core.fsyncMethod=batch"),
                *self._sharing(),
                *("fast-import", "--quiet", "--done", "--date-format=raw"),
            )
            answer = stream_git(
                self.repository,
                stream_commits(state.start, state.name, entries, superseded, attributes),
                *options,
                environment=scratch | {"GIT_OBJECT_DIRECTORY": os.fspath(state.objects)},
            )
        return answer.decode().strip()

    def _sharing(self) -> Sequence[str]:
        """The option that shares new objects as the user's repository is shared."""
        found = run_git(self.repository, "config", "--get", "core.sharedRepository", accept=(0, 1))
        value = os.fsdecode(found.removesuffix(b"\n"))
        return ("-c", f"core.sharedRepository={value}") if value else ()


def _results(entries: Sequence[JournalEntry]) -> int:
    return sum(is_success(entry.record) for entry in entries)


def _busy(patience: float) -> KochiError:
    return KochiError(f"another process has been committing for {patience:g} seconds")


def _moved_too_often(state: Branch) -> GitError:
    return GitError(
        f"branch {branch_called(state.name)} was moved by others {_MOVED_AT_MOST} times while "
        "committing",
        "The results are safe; the next run commits them.",
    )


def _not_now(identity: str, why: Exception) -> None:
    _logger.warning("result %s cannot be read now, and is committed later: %s", identity, why)
