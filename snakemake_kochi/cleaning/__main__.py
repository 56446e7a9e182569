"""The clean-up that a run has started: `python -m snakemake_kochi.cleaning MACHINE`.

It works in the directory of the run, for ten minutes at most, and leaves what it did in the file
`cleaned` of the machine (JSON: "version", "freed" by kind, "faults", "is_complete").
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import asdict

from snakemake_kochi.cleaning.clean import clean
from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import to_json, write_atomically
from snakemake_kochi.location import find_location

_VERSION = 1
_SECONDS = 600.0
_PRIORITY = 19  # the lowest


def main(machine: str) -> int:
    """Clean up by the rules of the machine; exit status 1 if that was not possible."""
    os.nice(_PRIORITY)
    location = find_location(machine)
    if (rules := location.machine.clean) is None:
        return 1
    paths = location.prepare_machine()
    report = clean(location.root, paths, rules, seconds=_SECONDS)
    write_atomically(paths.cleaned, to_json({"version": _VERSION, **asdict(report)}))
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KochiError, OSError):
        sys.exit(main(sys.argv[1]))
    sys.exit(1)
