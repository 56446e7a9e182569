"""The packer that `automatic` starts: `python -m snakemake_kochi.packing MACHINE DIRECTORY`.

It leaves what it did in the file `packed` of the machine (JSON: "version", "jobs", "faults").
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import asdict
from pathlib import Path

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import to_json, write_atomically
from snakemake_kochi.packing.packer import pack
from snakemake_kochi.paths import MachinePaths

_VERSION = 1
_PRIORITY = 19  # the lowest


def main(name: str, directory: str) -> int:
    """Pack what can be packed; exit status 1 if something could not be looked at."""
    os.nice(_PRIORITY)
    machine = MachinePaths(name, Path(directory))
    packing = pack(machine, is_gentle=True)
    write_atomically(machine.packed, to_json({"version": _VERSION, **asdict(packing)}))
    return 1 if packing.faults else 0


if __name__ == "__main__":
    with contextlib.suppress(KochiError, OSError):
        sys.exit(main(*sys.argv[1:]))
