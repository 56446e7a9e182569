"""Which results in `results/` were restored from an artifact branch, and from which one.

Below .snakemake/kochi/<machine>/:
  restored/<digest>.json   {"version", "name", "commit", "identities"}: results that were restored
                           from `<name>/` in a commit; it exists before their records do

Only results that were published under another name than the machine's own one here are noted. They
belong to that branch: this clone does not commit them as its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from contextlib import suppress

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import (
    list_names,
    make_directory,
    read_json,
    to_json,
    write_atomically,
)
from snakemake_kochi.paths import WorkingPaths

VERSION = 1


def restored_from(working: WorkingPaths) -> dict[str, tuple[str, str]]:
    """The name and the commit from which results were restored, by their identities. Raises
    OSError."""
    found: dict[str, tuple[str, str]] = {}
    for name in list_names(working.restored):
        if name.endswith(".json"):
            with suppress(DamagedFileError, KeyError, TypeError):
                note = read_json(working.restored / name, VERSION)
                origin = str(note["name"]), str(note["commit"])
                found |= dict.fromkeys(map(str, note["identities"]), origin)
    return found


def note_restored(
    working: WorkingPaths, name: str, commit: str, identities: Collection[str]
) -> None:
    """Note that results are restored. Call it before any of their records is written."""
    content = to_json(
        {
            "version": VERSION,
            "name": name,
            "commit": commit,
            "identities": sorted(identities),
        }
    )
    place = make_directory(working.restored)
    write_atomically(place / f"{hashlib.sha256(content).hexdigest()[:16]}.json", content)
