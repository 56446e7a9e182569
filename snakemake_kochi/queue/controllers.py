"""Controllers: what each says of itself, who adopts the jobs of a dead one, and which tickets it
left in the queues."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import shutil
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import (
    is_name,
    is_there,
    list_names,
    read_json,
    to_json,
    write_exclusively,
)
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import Node, ProcessIdentity, this_node
from snakemake_kochi.queue.entries import controller_names, queue_names
from snakemake_kochi.queue.heartbeat import (
    HEARTBEAT_INTERVAL,
    LATE,
    HeartbeatFile,
    time_awake_or_asleep,
)
from snakemake_kochi.queue.jobs import JobView
from snakemake_kochi.queue.queue import Queue
from snakemake_kochi.queue.ticket import now

_log = logging.getLogger(__name__)

VERSION = 1


@dataclass(frozen=True)
class Adopter:
    """adopter-<n>.json: the controller that adopted the jobs, and its host, where that is known."""

    controller: str
    host: str = ""


def last_adopter(machine: MachinePaths, identity: str) -> tuple[int, Adopter | None]:
    """How many controllers have adopted the jobs of one, and the last of them. Raises OSError, or
    DamagedFileError."""
    paths = machine.controller(identity)
    found = None
    for number in itertools.count(0):
        try:
            data = read_json(paths.adopter(number + 1), VERSION)
        except FileNotFoundError:
            return number, found
        found = Adopter(str(data.get("adopter")), str(data.get("host", "")))
    raise AssertionError("unreachable")


def is_certainly_gone(directory: Path) -> bool:
    """Whether the directory of a controller was removed, which ended or was adopted from. Raises
    OSError when that is not known now."""
    if is_there(directory):
        return False
    # Where not even those of others are there, the filesystem is away, and may come back. Listed,
    # because what a client of NFS once did not find it takes for missing for up to a minute.
    return is_there(directory.parent) and directory.name not in list_names(directory.parent)


class ControllerFile:
    """controller.json of the calling process. Any thread may call."""

    def __init__(self, machine: MachinePaths, identity: str, fields: Mapping[str, Any]) -> None:
        """Raises OSError when it cannot be written."""
        self._machine = machine
        self._identity = identity
        self._paths = machine.controller(identity)
        self._file = HeartbeatFile(self._paths.state, fields)
        self._file.write()
        self._looked = time_awake_or_asleep()
        self._adopter: Adopter | None = None
        # Since when it looks as if it had an adopter, which may be a transient fault.
        self._doubted: float | None = None

    def write(self, **changes: Any) -> None:
        """Raises OSError."""
        self._file.write(**changes)

    def start(self) -> None:
        """Give signs of life from now on, and look each time whether there is an adopter."""
        self._file.start(self._has_no_adopter)

    def stop(self) -> None:
        """When this returns nothing is written any more, but by `write`."""
        self._file.stop()

    def _has_no_adopter(self) -> bool:
        self._look_for_adopter()
        return self._adopter is None

    @property
    def adopter(self) -> Adopter | None:
        """The controller that adopted this one's jobs, after it gave no sign of life for too long:
        nothing is its own any more, for good. Free while the heartbeat goes."""
        if self._file.is_started and self._adopter is None:
            asleep = time_awake_or_asleep() - self._looked
            if asleep > LATE * self._file.interval:
                self._look_for_adopter()
                if self._doubted is not None:
                    time.sleep(self._file.interval)
                    self._look_for_adopter()
        return self._adopter

    def require_no_adopter(self) -> None:
        """To be called before anything is handed over or taken in. Raises KochiError."""
        if (adopter := self.adopter) is None:
            return
        where = f" on {adopter.host}" if adopter.host else ""
        who = (
            f"controller {adopter.controller}{where}"
            if adopter.controller
            else "another run, which has ended since,"
        )
        raise KochiError(
            f"this run gave no sign of life for long, was presumed dead, and {who} adopted its "
            "jobs: it ends here, and leaves them to that one",
            "Was this host suspended, or cut off from the filesystem? How the jobs stand says: "
            "kochi show jobs -t",
        )

    def _look_for_adopter(self) -> None:
        moment = time_awake_or_asleep()
        try:
            _, found = last_adopter(self._machine, self._identity)
            # The adopter may have ended, and removed what it had adopted.
            is_doubtful = found is None and is_certainly_gone(self._paths.directory)
        except DamagedFileError:
            found, is_doubtful = None, True
        except OSError:
            return  # not known now
        if not is_doubtful:
            self._doubted = None
        elif self._doubted is None:
            self._doubted = moment
        # Seen twice before it counts: it ends the run for good.
        if self._doubted is not None:
            if moment < self._doubted + self._file.interval:
                return
            found = Adopter("")
        self._looked = moment
        if found is not None:
            self._adopter = found
            _log.warning("controller %s was presumed dead", self._identity)


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
