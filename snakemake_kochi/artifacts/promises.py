"""Promises of the main processes of runs: to commit at their end what their runs have journaled.

A promise is a lock of the machine's kind, which is free once the process that held it was killed. A
run that finds no promise, because it outlives the process that started it, commits its result
itself. `kochi clean` sees by it that a run is alive, whatever its executor; so is
a rerun, which starts several.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import list_names, random_word
from snakemake_kochi.locks import LockSettings, find_lock_settings
from snakemake_kochi.paths import ProjectLockPaths, ProjectPaths

# Seconds after which the files of killed processes are removed.
_ABANDONED = 24 * 3600


@contextmanager
def promise_to_commit(paths: ProjectPaths, machine: str) -> Iterator[None]:
    """Promise to read the journal of a machine after leaving this context."""
    with ExitStack() as stack:
        # If the lock is impossible, or the disk is full, nobody sees the promise, and each run
        # commits.
        with suppress(KochiError, OSError):
            locks = find_lock_settings(paths.machine(machine))
            own = locks.paths.project(paths.directory).promise(random_word(8))
            _remove_old(locks, locks.paths.project(paths.directory))
            stack.callback(_remove, own)
            stack.enter_context(locks.hold(own))
        yield


def is_commit_promised(paths: ProjectPaths, machine: str) -> bool:
    """Whether another process will read the journal later than now, so that the caller need not
    commit a result that is already in it."""
    try:
        # Two processes may ask at once about one that was killed, and one of them may hear that the
        # lock is held: by the other one, which commits for both.
        return has_promise(paths, machine)
    except (KochiError, OSError):
        return False


def has_promise(paths: ProjectPaths, machine: str) -> bool:
    """Whether the main process of a run is alive. Raises KochiError and OSError if not known."""
    return bool(promises(paths, machine))


def promises(paths: ProjectPaths, machine: str) -> list[Path]:
    """The locks that main processes of runs hold. Raises KochiError and OSError."""
    locks = find_lock_settings(paths.machine(machine))
    project = locks.paths.project(paths.directory)
    files = map(project.promise, list_names(project.promises))
    return [file for file in files if locks.is_held(file)]


def _remove_old(locks: LockSettings, project: ProjectLockPaths) -> None:
    for name in list_names(project.promises):
        promise = project.promise(name)
        with suppress(KochiError, OSError):  # another process has just removed it
            if time.time() - os.stat(promise).st_mtime > _ABANDONED and not locks.is_held(promise):
                _remove(promise)


def _remove(promise: Path) -> None:
    # Unlike other locks: nobody ever waits for it.
    with suppress(OSError):
        promise.unlink(missing_ok=True)
