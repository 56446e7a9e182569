"""Wake-up FIFOs, and what wakes a worker: its queues, their tickets, and its release.

One process sleeps on a FIFO, and any process of the same host can notify it. A notification carries
no data. The process then reads files, so a lost notification costs a time-out and nothing else. A
FIFO does not reach processes on other nodes, and some filesystems have no FIFOs. In both cases
processes rely on the time-out alone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Literal, get_args

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import list_names, make_directory, read_json, to_json, write_atomically
from snakemake_kochi.paths import MachinePaths, QueuePaths
from snakemake_kochi.queue.workers import WorkerState, find_lost, read_worker

VERSION = 2
# How a worker leaves that a person releases: "finish" when its jobs have ended, or "now", when they
# are requeued.
Release = Literal["finish", "now"]

# The errors of filesystems without FIFOs.
_NO_FIFOS = frozenset({errno.EPERM, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
# Seconds between two looks of a waiting process without a FIFO.
SILENT_WAIT = 0.1


class WakeUp:
    """The waiting end of a FIFO, which is created (mode 0600) if it does not exist.

    `is_silent` means that the filesystem has no FIFOs, so that no notification arrives.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_silent = False
        try:
            os.mkfifo(path, 0o600)
        except FileExistsError:
            pass
        except OSError as error:
            if error.errno not in _NO_FIFOS:
                raise
            self.is_silent = True
        self._descriptor = self._open()
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)

    def _open(self) -> int:
        if self.is_silent:
            return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        if not stat.S_ISFIFO(self.path.lstat().st_mode):
            raise KochiError(
                f"{self.path} is not a FIFO",
                "Move this file elsewhere, and type your command again.",
            )
        # Opened for writing too: a FIFO without a writer is at its end, and poll would always
        # return at once.
        return os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """The descriptor, for an event loop that waits on other things as well.

        Call `drain` when it is readable.
        """
        return self._descriptor

    def drain(self) -> bool:
        """Consume all notifications so far; return whether there was one."""
        notified = False
        with contextlib.suppress(BlockingIOError):
            while os.read(self._descriptor, 65536):
                notified = True
        return notified

    def wait(self, timeout: float) -> bool:
        """Sleep until notified, at most `timeout` seconds; return whether a notification came."""
        if self.is_silent:
            timeout = min(timeout, SILENT_WAIT)
        if self._poll.poll(max(0.0, timeout) * 1000):
            return self.drain()
        return False

    def close(self) -> None:
        """Close the FIFO. A second call does no harm, as after an interruption of the first."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


def notify(path: Path) -> bool:
    """Notify the process that waits at `path`; return whether a process of this host was listening.

    This never blocks and never raises. A missing FIFO, a FIFO without a listener (ENXIO) and a FIFO
    full of notifications are no errors. A path that is not a FIFO is left alone.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return False
        with contextlib.suppress(BlockingIOError):
            os.write(descriptor, b"!")
        return True
    except BrokenPipeError:
        return False
    finally:
        os.close(descriptor)


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
        raise DamagedFileError(
            f"{path}: key 'how': {how!r} is not a way to leave; 'finish' or 'now' was expected"
        )
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


def subscribe(queue: QueuePaths, worker: int) -> None:
    """Have a worker's wake-up FIFO notified of each ticket that comes into the queue."""
    queue.make()
    queue.subscription(worker).touch(mode=0o600)


def unsubscribe(queue: QueuePaths, worker: int) -> None:
    queue.subscription(worker).unlink(missing_ok=True)


def subscribers(queue: QueuePaths, names: Iterable[str] | None = None) -> list[int]:
    """The workers that serve a queue; `names`: the names in their directory, if they are known."""
    names = list_names(queue.subscribers) if names is None else names
    return sorted(int(name) for name in names if name.isdecimal())


def shared_workers(
    machine: MachinePaths,
    name: str,
    controller: str | None = None,
    but: Container[int] = (),
    serving: Iterable[int] | None = None,
) -> list[WorkerState]:
    """The workers that serve a queue now for all controllers, and those for the given controller.

    Workers that other controllers started for themselves are left out, and so are those of `but`.
    Costs a small file for each other worker of the queue. `serving`: the numbers of all workers
    that serve it, if they are known.
    """
    found = []
    for worker in subscribers(machine.queue(name)) if serving is None else serving:
        if worker in but:
            continue
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
