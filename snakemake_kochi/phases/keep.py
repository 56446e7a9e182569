"""Keeping what a run made: journaled first, then committed to the machine's artifact branch.

Not every run commits: git takes longer than many a run does. In a burst one run in some seconds
commits what all have journaled, and the process that has started them commits the rest at its end.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from snakemake_kochi.artifacts.journal import Result, is_commit_due, journal, pending
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
    if is_commit_due(freeze.paths, freeze.machine_name):
        from snakemake_kochi.artifacts.committer import commit_once  # it brings in git

        _commit(lambda: commit_once(freeze.repository, freeze.paths, freeze.machine_name))


def commit_at_exit(
    repository: Path, paths: ProjectPaths, machine: str, wanted: Callable[[], bool]
) -> None:
    """Have this process commit at its end what runs have left in the journal, if `wanted` says so
    then. Killed, it leaves that to the next one."""

    def commit_rest() -> None:
        if wanted() and (repository / ".git").exists() and pending(paths, machine):
            from snakemake_kochi.artifacts.committer import commit_pending

            # A run may be committing, which does not look again.
            _commit(lambda: commit_pending(repository, paths, machine, _PATIENCE))

    atexit.register(commit_rest)


def _commit(commit: Callable[[], object]) -> None:
    try:
        commit()
    except (KochiError, KeyboardInterrupt) as error:
        print(
            f"kochi: not committed yet: {error or 'interrupted'}\n"
            "The result is kept; 'kochi artifact sync' commits it.",
            file=sys.stderr,
        )
