"""What a Snakefile does to the environment of the process that reads it."""

from __future__ import annotations

import os
from pathlib import Path

from snakemake_kochi.executor.placeholders import UnclearError


def added_by_snakefile() -> dict[str, str]:
    """The variables that the Snakefile has set, as it would in the job's process, too.

    Raises UnclearError where it changed one: the value it would have on the node is not known.
    """
    try:
        block = Path("/proc/self/environ").read_bytes()
    except OSError as error:
        raise UnclearError("environment") from error
    # What this process began with.
    before = dict(entry.split(b"=", 1) for entry in block.split(b"\0") if b"=" in entry)
    after = dict(os.environb)
    for variables in (before, after):
        variables.pop(b"LC_CTYPE", None)  # which Python itself sets
    if changed := [name for name, value in before.items() if after.get(name) != value]:
        raise UnclearError(f"{os.fsdecode(min(changed))} changed")
    return {
        os.fsdecode(name): os.fsdecode(after[name]) for name in sorted(after.keys() - before.keys())
    }
