"""Who commits what the runs of a burst leave in the journal: a process that has promised to.

A promise is a shared lock on a file, which the kernel takes back from a process that is killed. So
a run knows that nobody will commit its result after it, and does it itself: one that outlives the
process that started it, say.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from snakemake_kochi.files import make_directory
from snakemake_kochi.paths import ProjectPaths


@contextmanager
def promise_to_commit(paths: ProjectPaths, machine: str) -> Iterator[None]:
    """Promise to look into the journal of a machine after leaving this."""
    file = paths.commit_promise(machine)
    make_directory(file.parent)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Where the filesystem has no such locks nobody sees the promise, and each run commits.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        # Closing is not enough: a child that another thread is just starting has it open, too.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def is_commit_promised(paths: ProjectPaths, machine: str) -> bool:
    """Whether somebody will look into the journal later than now, so that a result which is in it
    already need not be committed by the caller."""
    try:
        descriptor = os.open(paths.commit_promise(machine), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        # Or another one asks at this very moment; if the answer is no, that one commits ours, too.
        return True
    except OSError:
        return False
    else:
        return False
    finally:
        os.close(descriptor)
