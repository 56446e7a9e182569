"""Which queues a worker serves, who is notified of tickets, and how a worker is to leave."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Literal, get_args

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import list_names, make_directory, read_json, to_json, write_atomically
from snakemake_kochi.paths import MachinePaths, QueuePaths
from snakemake_kochi.queue.wakeup import notify
from snakemake_kochi.queue.workers import WorkerState, find_lost, read_worker

VERSION = 2
# How a worker is to leave that a person releases: once its jobs have ended, or now; then they
# are requeued.
Release = Literal["finish", "now"]


def order_release(machine: MachinePaths, worker: int, how: Release) -> None:
    """Have a worker leave, on whatever node it is, also one that has not come yet; "now" counts
    though "finish" was said before."""
    paths = machine.worker(worker)
    write_atomically(paths.release, to_json({"version": VERSION, "how": how}))
    notify(paths.wakeup)


def read_release(machine: MachinePaths, worker: int) -> Release | None:
    """How a worker is to leave, None if nobody has said so. Raises DamagedFileError, and OSError
    where it is not known."""
    path = machine.worker(worker).release
    try:
        how = read_json(path, VERSION).get("how")
    except FileNotFoundError:
        return None
    found: Release | None = next((each for each in get_args(Release) if each == how), None)
    if found is None:
        raise DamagedFileError(f"{path}: key 'how': {how!r} is no way to leave")
    return found


def assign_queues(machine: MachinePaths, worker: int, queues: Sequence[str]) -> None:
    """Say which queues a worker serves, in that order; also while it runs.

    Only who starts the worker may call this. Raises KochiError for a name that cannot be used,
    before anything is written.
    """
    for name in queues:
        machine.queue(name)
    paths = machine.worker(worker)
    make_directory(paths.directory)
    write_atomically(paths.queues, to_json({"version": VERSION, "queues": list(queues)}))
    notify(paths.wakeup)


def read_queues(machine: MachinePaths, worker: int) -> tuple[str, ...]:
    """Raises FileNotFoundError, or DamagedFileError."""
    path = machine.worker(worker).queues
    queues = read_json(path, VERSION).get("queues")
    if not isinstance(queues, list) or not all(isinstance(name, str) for name in queues):
        raise DamagedFileError(f"{path}: key 'queues': a list of names was expected")
    return tuple(queues)


def subscribe(machine: MachinePaths, worker: int, queue: QueuePaths) -> None:
    """Have a worker's wake-up FIFO notified whenever something is put into the queue."""
    queue.make()
    queue.subscription(worker).touch(mode=0o600)


def unsubscribe(queue: QueuePaths, worker: int) -> None:
    queue.subscription(worker).unlink(missing_ok=True)


def subscribers(queue: QueuePaths) -> list[int]:
    return sorted(int(name) for name in list_names(queue.subscribers) if name.isdecimal())


def shared_workers(
    machine: MachinePaths, name: str, controller: str | None = None
) -> list[WorkerState]:
    """The workers that serve a queue now whoever handed its tickets over, and those of one
    controller: not those that others started for themselves. Costs a small file for each worker of
    the queue."""
    found = []
    for worker in subscribers(machine.queue(name)):
        with contextlib.suppress(FileNotFoundError, DamagedFileError):
            state = read_worker(machine, worker)
            # One that was released may take long to finish what it has, and takes no more.
            is_there_for = state.state != "finishing" and not state.is_gone
            if state.controller in (None, controller) and is_there_for:
                found.append(state)
    return found


def notify_subscribers(machine: MachinePaths, queue: QueuePaths) -> None:
    """Wake the workers that serve a queue. One that died is taken off the list; one on another
    node, and one that is not known of now, looks by itself after a while."""
    with contextlib.suppress(OSError):
        for worker in subscribers(queue):
            if not notify(machine.worker(worker).wakeup) and find_lost(machine, [worker]):
                unsubscribe(queue, worker)
