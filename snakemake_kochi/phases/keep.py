"""Keeping what a run made: journaled first, then committed to the machine's artifact branch."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from snakemake_kochi.artifacts import Result, commit_pending, journal
from snakemake_kochi.errors import KochiError
from snakemake_kochi.phases.freeze import Freeze
from snakemake_kochi.phases.run import Output


def keep_result(freeze: Freeze, record: Mapping[str, Any], outputs: Sequence[Output]) -> None:
    """Journal a run's artifacts and record, and commit whatever is journaled.

    Raises KochiError when the journal cannot be written. That a commit fails now (a full disk, a
    branch somebody holds) does not fail the run: the journal keeps it for the next commit.
    """
    files = {output.destination: output.file for output in outputs}
    result = Result(identity=record["identity"], files=files, record=record)
    journal(freeze.paths, freeze.machine_name, result)
    try:
        commit_pending(freeze.directory, freeze.paths, freeze.machine_name)
    except KochiError as error:
        print(
            f"kochi: not committed yet: {error}\n"
            "The result is kept; 'kochi artifact sync' commits it.",
            file=sys.stderr,
        )
