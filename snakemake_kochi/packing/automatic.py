"""Who packs: a process for which nobody waits, after runs, workers and submissions.

It is started only where there is enough to pack: that costs two listings.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from snakemake_kochi.files import list_names, write_atomically
from snakemake_kochi.paths import MachinePaths, is_being_removed

# In the newest shard, fewer jobs than this are not worth a pack, which would soon be written again.
FEW = 32
# Seconds between two starts by those who submit single jobs.
_INTERVAL = 60.0


def pack_at_exit(machine: MachinePaths) -> None:
    """At the end of this process, start a packer if there is enough to pack."""
    atexit.register(pack_in_background, machine)


def pack_in_background(machine: MachinePaths, is_often: bool = False) -> None:
    """Start a packer if there is enough to pack; with `is_often`, once a minute at most.

    It has the lowest priority. Nothing here makes the caller fail.
    """
    with suppress(OSError):
        if not _is_enough(machine) or (is_often and not _is_due(machine)):
            return
        subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "snakemake_kochi.packing"),
                *(machine.name, os.fspath(machine.directory)),
            ],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # A terminal that is closed, or a Ctrl-C in it, does not end it.
            start_new_session=True,
        )


def _is_enough(machine: MachinePaths) -> bool:
    if removed_controllers(machine):
        return True
    shards = [name for name in list_names(machine.jobs) if name.isdecimal()]
    if len(shards) != 1:
        return bool(shards)
    return len(list_names(machine.jobs / shards[0])) >= FEW


def removed_controllers(machine: MachinePaths) -> list[Path]:
    """What controllers with many deliveries left to be deleted at the ends of their runs."""
    paths = (machine.controllers / name for name in list_names(machine.controllers))
    return list(filter(is_being_removed, paths))


def _is_due(machine: MachinePaths) -> bool:
    with suppress(FileNotFoundError):
        # The clock of the filesystem may be ahead of ours.
        if -_INTERVAL < time.time() - os.stat(machine.packed).st_mtime < _INTERVAL:
            return False
    write_atomically(machine.packed, b"")
    return True
