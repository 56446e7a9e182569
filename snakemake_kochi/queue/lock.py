"""The locks of a machine's queues and counters."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import is_there
from snakemake_kochi.locks import find_lock_settings
from snakemake_kochi.paths import MachinePaths


class QueueRemovedError(KochiError):
    """The queue does not exist (any more): its controller removed it."""


@contextlib.contextmanager
def queue_lock(machine: MachinePaths, queue: str, complain_after: float = 30.0) -> Iterator[None]:
    """Hold the lock of a queue, whose directory must exist.

    Waits as long as another holds it, and says so every `complain_after` seconds. Not reentrant;
    nor may a process hold two of them, for queues share locks. Raises QueueRemovedError when the
    queue's directory is not there, also when it was removed during the wait, and KochiError when
    locking is not possible.
    """
    directory = machine.queue(queue).directory
    _require(directory)
    settings = find_lock_settings(machine)
    with settings.hold(settings.paths.queue(queue), complain_after):
        # Whoever removes a queue does it under this lock.
        _require(directory)
        yield


@contextlib.contextmanager
def ids_lock(machine: MachinePaths, complain_after: float = 30.0) -> Iterator[None]:
    """Hold the lock of the machine's counters. Waits and raises as `queue_lock` does."""
    settings = find_lock_settings(machine)
    with settings.hold(settings.paths.ids, complain_after):
        yield


def _require(directory: Path) -> None:
    if not is_there(directory):
        raise QueueRemovedError(f"{directory} does not exist: nothing is left to be locked")
