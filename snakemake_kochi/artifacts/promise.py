"""Who commits what the runs of a burst leave in the journal: a process that has promised to.

A promise is a lock of the machine's kind, which is free when the process that held it was killed.
So a run knows that nobody will commit its result after it, and does it itself: one that outlives
the process that started it, say.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import list_names
from snakemake_kochi.locks import LockSettings, find_lock_settings, is_held
from snakemake_kochi.paths import ProjectLockPaths, ProjectPaths

_KEPT = 86400.0  # seconds for which the file of a process that was killed stays


@contextmanager
def promise_to_commit(paths: ProjectPaths, machine: str) -> Iterator[None]:
    """Promise to look into the journal of a machine after leaving this."""
    with ExitStack() as stack:
        # Where there can be no such lock, or the disk is full, nobody sees the promise, and each
        # run commits.
        with suppress(KochiError, OSError):
            locks = find_lock_settings(paths.machine(machine))
            own = locks.paths.project(paths).promise(secrets.token_hex(8))
            _remove_old(locks, locks.paths.project(paths))
            stack.callback(_remove, own)
            stack.enter_context(locks.hold(own))
        yield


def is_commit_promised(paths: ProjectPaths, machine: str) -> bool:
    """Whether somebody will look into the journal later than now, so that a result which is in it
    already need not be committed by the caller."""
    try:
        locks = find_lock_settings(paths.machine(machine))
        project = locks.paths.project(paths)
        # Of two that ask about one that was killed, one may hear that it is held: by the other,
        # who commits for both.
        return any(
            is_held(project.promise(name), locks.kind) for name in list_names(project.promises)
        )
    except (KochiError, OSError):
        return False


def _remove_old(locks: LockSettings, project: ProjectLockPaths) -> None:
    for name in list_names(project.promises):
        promise = project.promise(name)
        with suppress(KochiError, OSError):  # another has just removed it
            if time.time() - os.stat(promise).st_mtime > _KEPT and not is_held(promise, locks.kind):
                _remove(promise)


def _remove(promise: Path) -> None:
    # Unlike other locks: nobody ever waits for it.
    with suppress(OSError):
        promise.unlink(missing_ok=True)
