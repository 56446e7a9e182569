"""A run of a project that another computer sent: its provenance is that of the computer at home."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from snakemake_kochi.paths import SentPaths
from snakemake_kochi.project.machines import SENT_VARIABLE
from snakemake_kochi.project.sent import sent_note
from snakemake_kochi.snapshot import Snapshot

# The name of the file that says that this command is about to read the files.
USE_VARIABLE = "KOCHI_SENT_USE"


def as_sent(directory: Path, snapshot: Snapshot) -> Snapshot:
    """The snapshot of a project, as it was described at home if it is the one that was sent.

    Whether files differ from a commit depends on the filters and settings of the computer at home.
    Raises DamagedFileError.
    """
    note = sent_note(directory)
    if note is None or note.get("tree") != snapshot.tree or (note["base"] or None) != snapshot.base:
        return snapshot
    return replace(snapshot, dirty=bool(note["dirty"]))


def hand_over() -> None:
    """Another process, which this one has started, reads the files; the others wait for it."""
    os.environ.pop(USE_VARIABLE, None)


def have_read() -> None:
    """Let other commands send other files: this one has read those that it needs."""
    place, token = os.environ.get(SENT_VARIABLE), os.environ.get(USE_VARIABLE)
    if place and token:
        with suppress(OSError):
            SentPaths(Path(place)).use(token).unlink(missing_ok=True)
