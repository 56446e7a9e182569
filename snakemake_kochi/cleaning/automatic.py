"""A run cleans up at its end, at most once a day, in a process for which it does not wait."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from snakemake_kochi.files import write_atomically
from snakemake_kochi.paths import MachinePaths

_INTERVAL = 24 * 3600.0  # seconds


def clean_at_exit(machine: MachinePaths, directory: Path, wanted: Callable[[], bool]) -> None:
    """At the end of this process, start a clean-up of a machine, if none was started today.

    It reads the configuration that applies in `directory`. Nothing here makes a run fail.
    """
    atexit.register(_start_if_due, machine, directory, wanted)


def _start_if_due(machine: MachinePaths, directory: Path, wanted: Callable[[], bool]) -> None:
    with suppress(OSError):
        if not wanted() or not _is_due(machine.cleaned):
            return
        # Before the start: another run that ends now must not start a second one.
        write_atomically(machine.cleaned, b"")
        subprocess.Popen(
            [sys.executable, "-P", "-m", "snakemake_kochi.cleaning", machine.name],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # A terminal that is closed, or a Ctrl-C in it, does not end it.
            start_new_session=True,
        )


def _is_due(file: Path) -> bool:
    try:
        age = time.time() - os.stat(file).st_mtime
    except FileNotFoundError:
        return True
    # The clock of the filesystem may be ahead of ours.
    return not -_INTERVAL < age < _INTERVAL
