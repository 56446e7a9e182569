"""Controllers that died, who adopts their jobs, and the tickets they left in the queues."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import is_name, is_there, read_json, to_json, write_exclusively
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.controller_file import VERSION, last_adopter
from snakemake_kochi.queue.entries import controller_names, queue_names
from snakemake_kochi.queue.heartbeat import HEARTBEAT_INTERVAL
from snakemake_kochi.queue.jobs import JobView
from snakemake_kochi.queue.processes import Node, ProcessIdentity, this_node
from snakemake_kochi.queue.queue import Queue
from snakemake_kochi.queue.ticket import now


@dataclass(frozen=True)
class LockFile:
    """A file that keeps others out of a directory, as it was made: another one of the same path is
    somebody else's. `modified` in nanoseconds."""

    path: str
    inode: int
    modified: int

    @classmethod
    def of(cls, path: str) -> LockFile | None:
        """The one that is there, if any is."""
        try:
            found = os.stat(path)
        except OSError:
            return None
        return cls(path, found.st_ino, found.st_mtime_ns)

    @property
    def is_there(self) -> bool:
        return LockFile.of(self.path) == self


@dataclass(frozen=True)
class ControllerState:
    """controller.json: who a controller is, and in which directory it works (None when that is
    not known). `queues` are those into which it may have handed over tickets (None: any); it has
    `left` when it ended before all its jobs did, though its process may go on for a while; a person
    may have `said_gone`. `heartbeat` grows by one with each write, at least every
    `heartbeat_interval` seconds; None for one of a release that gave no signs of life. `allocation`
    is the scheduler's name of that in which it is. `locks` are the files by which it keeps others
    out of the directory."""

    identity: str
    node: Node
    process: ProcessIdentity
    directory: str | None
    queues: tuple[str, ...] | None = None
    left: bool = False
    started: str = ""
    heartbeat: int | None = None
    heartbeat_interval: float = HEARTBEAT_INTERVAL
    allocation: str | None = None
    locks: tuple[LockFile, ...] = ()
    said_gone: bool = False

    @property
    def is_dead(self) -> bool:
        """Whether it certainly does nothing more with jobs. Of one that could not say so this is
        known only on its host."""
        return self.left or self.said_gone or self.is_process_gone

    @property
    def is_process_gone(self) -> bool:
        """Whether its process certainly is no more. Snakemake tidies up, and has the directory
        locked, for a while after the controller has left."""
        here = this_node()
        if here.can_see(self.node):
            return not self.process.is_alive()
        return self.said_gone or here.has_rebooted_since(self.node)


def private_queue(controller: str) -> str:
    """The queue for the jobs of a run that name none. Others of its own begin with this name and a
    dash."""
    return f"run-{controller}"


def remove_private_queues(machine: MachinePaths, controller: str) -> None:
    """Remove a run's own queues, but for those in which a ticket is left."""
    first = private_queue(controller)
    for name in queue_names(machine):
        if name == first or name.startswith(f"{first}-"):
            Queue(machine, name).remove()


def read_controller(machine: MachinePaths, identity: str) -> ControllerState:
    """Raises OSError, FileNotFoundError among them, or DamagedFileError."""
    path = machine.controller(identity).state
    data = read_json(path, VERSION)
    try:
        directory, queues = data.get("directory"), data.get("queues")
        heartbeat, allocation = data.get("heartbeat"), data.get("allocation")
        if queues is not None:
            queues = tuple(map(str, queues))
            if not all(map(is_name, queues)):
                raise ValueError(f"key 'queues': {queues!r}")
        return ControllerState(
            identity=identity,
            node=Node.from_dict(data["node"]),
            process=ProcessIdentity.from_dict(data["process"]),
            directory=None if directory is None else str(directory),
            queues=queues,
            left=data.get("left") is True,
            started=str(data.get("started", "")),
            heartbeat=None if heartbeat is None else int(heartbeat),
            heartbeat_interval=float(data.get("heartbeat_interval", HEARTBEAT_INTERVAL)),
            allocation=None if allocation is None else str(allocation),
            locks=tuple(
                LockFile(str(lock["path"]), int(lock["inode"]), int(lock["modified"]))
                for lock in data.get("locks", ())
            ),
            said_gone=is_there(machine.controller(identity).gone),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{path}: not a controller's state ({error!r})") from error


def list_controllers(machine: MachinePaths) -> list[ControllerState]:
    """All that have not ended in good order. One whose file cannot be read is left out: it may be
    just being made."""
    found = []
    for identity in controller_names(machine):
        with contextlib.suppress(FileNotFoundError, DamagedFileError):
            found.append(read_controller(machine, identity))
    return found


def is_same_directory(one: str, other: str) -> bool:
    """Whether two names mean the same directory here, as far as that can be seen."""
    with contextlib.suppress(OSError):
        return one == other or os.path.samefile(one, other)
    return False


def adopt(machine: MachinePaths, dead: str, adopter: str, others: Collection[str] = ()) -> bool:
    """Become the one adopter of a dead controller's jobs; False when another one is.

    An adopter that died or ended since is followed by the next; the `others` are dead, too.
    Two controllers that both wait for the same job would both report it.
    """
    while True:
        number, last = last_adopter(machine, dead)
        if last is not None:
            if last.controller == adopter:
                return True
            if last.controller not in others and not _is_gone(machine, last.controller):
                return False
        adopted = {"version": VERSION, "adopter": adopter, "host": this_node().host, "time": now()}
        if write_exclusively(machine.controller(dead).adopter(number + 1), to_json(adopted)):
            return True


def _is_gone(machine: MachinePaths, identity: str) -> bool:
    """Of a controller that was there once."""
    try:
        return read_controller(machine, identity).is_dead
    except FileNotFoundError:
        return True  # it ended in good order
    except DamagedFileError:
        return False


def queues_of(states: Iterable[ControllerState]) -> set[str] | None:
    """The queues that may hold tickets of these controllers; None for all."""
    found: set[str] = set()
    for state in states:
        if state.queues is None:
            return None
        found.update(state.queues)
    return found


def jobs_of(
    machine: MachinePaths, controllers: Collection[str], queues: Collection[str] | None = None
) -> list[JobView]:
    """The waiting and running jobs that some controllers handed over, in all queues or in some;
    none is missed. Reads every ticket of them, and holds each queue's lock for a moment."""
    names = queue_names(machine) if queues is None else sorted(queues)
    return [
        view
        for name in (names if controllers else ())
        for view in Queue(machine, name).jobs()
        if view.ticket is not None and view.ticket.controller in controllers
    ]


def forget_controller(machine: MachinePaths, identity: str) -> None:
    """Remove all that there is of a controller that is dead, and its private queues, but for those
    in which a ticket is left."""
    shutil.rmtree(machine.controller(identity).inbox.parent, ignore_errors=True)
    remove_private_queues(machine, identity)
