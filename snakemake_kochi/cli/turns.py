"""`python -m snakemake_kochi.cli.turns WORDS`: Snakemake that waits for a run of Kochi that makes
some of its files.

Two batches that are typed one after the other may need the same build. By itself the second
Snakemake would end at once, and advise to remove the lock of the first.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_POLL = 0.5  # seconds
_NEW = 5.0  # seconds within which a run that has just locked the directory notes itself


def run_snakemake() -> None:
    """Become `python -m snakemake`; for an unknown one, without the waiting."""
    from snakemake import persistence

    classes = (getattr(persistence, name, None) for name in ("PersistenceBase", "Persistence"))
    if found := next((each for each in classes if each is not None), None):
        _wait_at(found)
    runpy.run_module("snakemake", run_name="__main__", alter_sys=True)


def _wait_at(persistence: Any) -> None:
    lock = persistence.lock

    @contextmanager
    def wait_and_lock(self: Any) -> Iterator[None]:
        # What the other run has made, this one need not make: it has to look at all files again.
        if self.locked and _is_free_after_waiting(self):
            sys.stdout.flush()
            sys.stderr.flush()
            os.execv(sys.executable, sys.orig_argv)
        with lock(self):
            yield

    persistence.lock = wait_and_lock


def _is_free_after_waiting(persistence: Any) -> bool:
    """Wait while a run of Kochi that is not dead holds the lock; whether it is gone then."""
    from snakemake_kochi.cli.output import remark
    from snakemake_kochi.location import find_location
    from snakemake_kochi.queue.runs import MakingWatch

    watch = MakingWatch(find_location(None).machine_paths, os.getcwd())
    told = False
    deadline = time.monotonic() + _NEW
    while persistence.locked:
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL)
        # One that has ended is about to remove its lock.
        alive = [run for run, life in watch.holders() if life != "dead" and run.state != "ended"]
        if not alive:
            continue
        if not told:
            told = True
            remark(
                f"Waiting for the end of a run that makes some of these files ({alive[0].who}) ..."
            )
        deadline = time.monotonic() + _NEW
    return True


if __name__ == "__main__":
    run_snakemake()
