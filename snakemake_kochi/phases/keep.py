"""Keeping what a run made: journaled first, then committed to the machine's artifact branch."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from snakemake_kochi.artifacts import Result, commit_pending, journal
from snakemake_kochi.errors import ArtifactTooLargeError, KochiError
from snakemake_kochi.phases.freeze import Freeze
from snakemake_kochi.phases.run import Output


def keep_result(freeze: Freeze, record: Mapping[str, Any], outputs: Sequence[Output]) -> None:
    """Journal a run's artifacts and record, and commit whatever is journaled.

    Raises KochiError when the journal cannot be written. That a commit fails now (a full disk, a
    branch somebody holds) does not fail the run: the journal keeps it for the next commit. What is
    too large for git, or of a project outside of git, stays in the results directory alone.
    """
    if not (freeze.directory / ".git").exists():
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
    try:
        commit_pending(freeze.directory, freeze.paths, freeze.machine_name)
    except KochiError as error:
        print(
            f"kochi: not committed yet: {error}\n"
            "The result is kept; 'kochi artifact sync' commits it.",
            file=sys.stderr,
        )
