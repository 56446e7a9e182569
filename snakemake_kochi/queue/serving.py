"""Which queues a worker serves, which workers are notified of tickets, and how a worker leaves."""

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
# How a worker leaves that a person releases: "finish" when its jobs have ended, or "now", when they
# are requeued.
Release = Literal["finish", "now"]


def order_release(machine: MachinePaths, worker: int, how: Release) -> None:
    """Have a worker leave, on any node, even if it has not started yet.

    "now" also counts after an earlier "finish".
    """
    paths = machine.worker(worker)
    write_atomically(paths.release, to_json({"version": VERSION, "how": how}))
    notify(paths.wakeup)


def read_release(machine: MachinePaths, worker: int) -> Release | None:
    """How a worker must leave; None without a release.

    Raises DamagedFileError, and OSError when that is unknown.
    """
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
    """Set the queues that a worker serves, in that order; also while it runs.

    Only the process that starts the worker may call this. Raises KochiError for a name that cannot
    be used, before anything is written.
    """
    for name in queues:
        machine.queue(name)
    paths = machine.worker(worker)
    make_directory(paths.directory)
    write_atomically(paths.queues, to_json({"version": VERSION, "queues": list(queues)}))
    notify(paths.wakeup)


def read_queues(machine: MachinePaths, worker: int) -> tuple[str, ...]:
    """The queues that a worker serves. Raises FileNotFoundError or DamagedFileError."""
    path = machine.worker(worker).queues
    queues = read_json(path, VERSION).get("queues")
    if not isinstance(queues, list) or not all(isinstance(name, str) for name in queues):
        raise DamagedFileError(f"{path}: key 'queues': a list of names was expected")
    return tuple(queues)


def subscribe(machine: MachinePaths, worker: int, queue: QueuePaths) -> None:
    """Have a worker's wake-up FIFO notified of each ticket that comes into the queue."""
    queue.make()
    queue.subscription(worker).touch(mode=0o600)


def unsubscribe(queue: QueuePaths, worker: int) -> None:
    queue.subscription(worker).unlink(missing_ok=True)


def subscribers(queue: QueuePaths) -> list[int]:
    return sorted(int(name) for name in list_names(queue.subscribers) if name.isdecimal())


def shared_workers(
    machine: MachinePaths, name: str, controller: str | None = None
) -> list[WorkerState]:
    """The workers that serve a queue now for all controllers, and those for the given controller.

    Workers that other controllers started for themselves are left out. Costs a small file for each
    worker of the queue.
    """
    found = []
    for worker in subscribers(machine.queue(name)):
        with contextlib.suppress(FileNotFoundError, DamagedFileError):
            state = read_worker(machine, worker)
            # A released worker may take long to finish its jobs, and claims no more.
            is_there_for = state.state != "finishing" and not state.is_gone
            if state.controller in (None, controller) and is_there_for:
                found.append(state)
    return found


def notify_subscribers(machine: MachinePaths, queue: QueuePaths) -> None:
    """Notify the workers that serve a queue.

    A dead worker is removed from the list. A worker on another node, or one whose state is unknown
    now, looks by itself after a while.
    """
    with contextlib.suppress(OSError):
        for worker in subscribers(queue):
            if not notify(machine.worker(worker).wakeup) and find_lost(machine, [worker]):
                unsubscribe(queue, worker)
