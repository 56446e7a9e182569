"""Keeping what a run made: journaled first, then committed to the machine's artifact branch.

Not every run commits: git takes longer than many a run does. In a burst one run in some seconds
commits what all have journaled, and the process that has started them commits the rest at its end.
A run that outlives that process commits at once.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from snakemake_kochi.artifacts.journal import Result, is_commit_due, journal, pending
from snakemake_kochi.artifacts.promise import is_commit_promised, promise_to_commit
from snakemake_kochi.errors import ArtifactTooLargeError, KochiError
from snakemake_kochi.paths import ProjectPaths
from snakemake_kochi.phases.batch_freeze import BatchFreeze
from snakemake_kochi.phases.run import Output

_PATIENCE = 30.0  # seconds


def keep_result(freeze: BatchFreeze, record: Mapping[str, Any], outputs: Sequence[Output]) -> None:
    """Journal a run's artifacts and record, and commit what is journaled if that is due.

    Raises KochiError when the journal cannot be written. That a commit fails now (a full disk, a
    branch somebody holds) does not fail the run: the journal keeps it for the next commit. What is
    too large for git, or of a project outside of git, stays in the results directory alone.
    """
    if not (freeze.repository / ".git").exists():
        print(f"kochi: {freeze.directory} is no git repository: artifacts stay in results/ alone")
        return
    files = {output.destination: output.file for output in outputs}
    result = Result(identity=record["identity"], files=files, record=record)
    try:
        journal(freeze.paths, freeze.machine_name, result)
    except ArtifactTooLargeError as error:
        # Not a failed run: that would throw away what may have taken hours.
        print(f"kochi: not kept in git, only in results/: {error}", file=sys.stderr)
        return
    paths, machine = freeze.paths, freeze.machine_name
    if is_commit_due(paths, machine) or not is_commit_promised(paths, machine):
        _commit(freeze.repository, paths, machine)


def commit_at_exit(
    repository: Path, paths: ProjectPaths, machine: str, wanted: Callable[[], bool]
) -> None:
    """Have this process commit at its end what runs have left in the journal, if `wanted` says so
    then. Killed, it leaves that to those that run still, and to the next process."""
    promise = ExitStack()
    promise.enter_context(promise_to_commit(paths, machine))

    def commit_rest() -> None:
        promise.close()
        if wanted() and (repository / ".git").exists() and pending(paths, machine):
            _commit(repository, paths, machine, _PATIENCE)

    atexit.register(commit_rest)


def _commit(repository: Path, paths: ProjectPaths, machine: str, patience: float = 0.0) -> None:
    from snakemake_kochi.artifacts.committer import commit_in_burst  # it brings in git

    try:
        commit_in_burst(repository, paths, machine, patience)
    except (KochiError, KeyboardInterrupt) as error:
        print(
            f"kochi: not committed yet: {error or 'interrupted'}\n"
            "The result is kept; 'kochi artifact sync' commits it.",
            file=sys.stderr,
        )
