"""Results: journaled, committed to a branch per machine, merged into one for people."""

from typing import TYPE_CHECKING

from snakemake_kochi.artifacts.journal import Result, check_destinations, journal, pending
from snakemake_kochi.lazy import lazy_names

if TYPE_CHECKING:
    from snakemake_kochi.artifacts.branches import (
        Commit,
        SyncReport,
        discard,
        initialise,
        log,
        synchronise,
    )
    from snakemake_kochi.artifacts.committer import branch, commit_pending, record_path

__getattr__ = lazy_names(
    __name__,
    {
        "branches": (
            "Commit",
            "SyncReport",
            "discard",
            "initialise",
            "log",
            "synchronise",
        ),
        "committer": (
            "branch",
            "commit_pending",
            "record_path",
        ),
    },
)

__all__ = [
    "Commit",
    "Result",
    "SyncReport",
    "branch",
    "check_destinations",
    "commit_pending",
    "discard",
    "initialise",
    "journal",
    "log",
    "pending",
    "record_path",
    "synchronise",
]
