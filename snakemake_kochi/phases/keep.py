"""Keeping the products of a run: journaled first, then committed to the machine's artifact branch.

Not every run commits, because git takes longer than many a run. In a burst one run in some seconds
commits what all have journaled, and the process that started them commits the rest at its end. A
run that outlives that process commits at once.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from snakemake_kochi.artifacts.agreement import disagree, note_directory, told_missed
from snakemake_kochi.artifacts.begun import end, keep_unfinished
from snakemake_kochi.artifacts.journal import Result, is_commit_due, journal, pending
from snakemake_kochi.artifacts.promises import is_commit_promised, promise_to_commit
from snakemake_kochi.errors import GitError, KochiError
from snakemake_kochi.files import is_there
from snakemake_kochi.paths import ProjectPaths
from snakemake_kochi.phases.batch_freeze import BatchFreeze
from snakemake_kochi.phases.outputs import Output
from snakemake_kochi.phases.record import was_stopped

_PATIENCE = 30.0  # seconds


def keep_result(
    freeze: BatchFreeze, record: Mapping[str, Any], outputs: Sequence[Output] = ()
) -> None:
    """Journal the artifacts and the record of an attempt, and commit the journal if that is due. An
    attempt that failed has no artifacts.

    Raises KochiError for invalid artifacts. If they cannot be journaled or committed now (a full
    disk, a branch that another process holds), the run does not fail, which would lose its
    products: they are in the results directory, with the record, and are committed later. Files of
    a project outside of git stay only there.
    """
    paths, machine = freeze.paths, freeze.machine_name
    is_failure = record.get("outcome") == "failed"
    files = {each.destination: each.file for each in outputs}
    try:
        if freeze.snapshot["base"] is None and not _is_repository(freeze.repository):
            # Or it is one, without a commit, whose .git is missing for a moment.
            disagree(paths, machine)
            print(f"kochi: {freeze.directory} is no git repository: artifacts are only in results/")
            return
        result = Result(record["identity"], files, record)
        journal(paths, machine, result, freeze.repository, freeze.large_files)
    except (OSError, GitError) as error:
        said = f"the record of this failed attempt is not kept: {error}"
        if not is_failure:
            disagree(paths, machine)
            said = f"the result is only in results/ for now: {error}\nThe next run, or "
            said += "'kochi artifact sync', commits it from there."
        print(f"kochi: {said}", file=sys.stderr)
        return
    finally:
        end(paths, record)
    if is_failure and was_stopped(record):
        return
    if is_commit_due(paths, machine) or not is_commit_promised(paths, machine):
        with _not_now():
            from snakemake_kochi.artifacts.committer import commit_in_burst  # loads git

            commit_in_burst(freeze.repository, paths, machine)


def commit_at_exit(
    repository: Path,
    paths: ProjectPaths,
    machine: str,
    wanted: Callable[[], bool],
    large: int | None = None,
) -> None:
    """At the end of this process, commit what runs left in the journal, and results in results/ in
    the current directory that no commit has, if `wanted` says so then.

    `large`: see `journal`. If this process is killed, runs that are still running and the next
    process do so.
    """
    promise = ExitStack()
    promise.enter_context(promise_to_commit(paths, machine))
    note_directory(paths, machine, Path.cwd().resolve())
    was_repository = _is_repository(repository)
    if was_repository and wanted():
        from snakemake_kochi.artifacts.published import fix_published_name  # loads git

        with suppress(GitError, OSError):  # as for a result that cannot be committed now
            fix_published_name(repository, machine)

    def commit_rest() -> None:
        promise.close()
        if wanted() and (was_repository or _is_repository(repository)):
            commit_journal(repository, paths, machine, large)

    atexit.register(commit_rest)


@contextmanager
def alive(repository: Path, paths: ProjectPaths, machine: str) -> Iterator[None]:
    """Let `kochi clean` see a process that starts several runs, one after another.

    It sees the promise to commit, which is then kept: a run that outlives its own main process may
    rely on it.
    """
    try:
        with promise_to_commit(paths, machine):
            yield
    finally:
        if pending(paths, machine):
            commit_journal(repository, paths, machine)


def commit_journal(
    repository: Path, paths: ProjectPaths, machine: str, large: int | None = None
) -> None:
    """Commit what is in the journal, and results that no commit has; say so if that fails.

    `large`: see `journal`.
    """
    from snakemake_kochi.artifacts.committer import commit_in_burst, commit_missing
    from snakemake_kochi.artifacts.replaced import take_replaced

    with _not_now():
        keep_unfinished(paths, machine)
        if pending(paths, machine):
            commit_in_burst(repository, paths, machine, _PATIENCE)
        if count := commit_missing(repository, paths, machine, _PATIENCE, large=large):
            print(f"kochi: committed {told_missed(count, machine)}", file=sys.stderr)
        if (replaced := take_replaced(paths, machine)) is not None:
            print(f"kochi: {replaced.describe()}", file=sys.stderr)


def _is_repository(directory: Path) -> bool:
    try:
        return is_there(directory / ".git")
    except OSError:
        return True  # not known now: git will tell


@contextmanager
def _not_now() -> Iterator[None]:
    try:
        yield
    except (KochiError, OSError, KeyboardInterrupt) as error:
        print(
            f"kochi: not committed yet: {error or 'interrupted'}\n"
            "The result is kept; 'kochi artifact sync' commits it.",
            file=sys.stderr,
        )
