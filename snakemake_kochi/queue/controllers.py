"""Controllers: their state files, the adopters of dead ones, and the tickets that they left."""

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
from snakemake_kochi.queue.heartbeat import LATE, HeartbeatFile, time_awake_or_asleep
from snakemake_kochi.queue.jobs import JobView
from snakemake_kochi.queue.queue import Queue
from snakemake_kochi.queue.ticket import now
from snakemake_kochi.queue.workers import HEARTBEAT_INTERVAL

_log = logging.getLogger(__name__)

VERSION = 1


@dataclass(frozen=True)
class Adopter:
    """adopter-<n>.json: the controller that adopted the jobs, and its host if that is known."""

    controller: str
    host: str = ""


def last_adopter(machine: MachinePaths, identity: str) -> tuple[int, Adopter | None]:
    """How many controllers have adopted the jobs of a controller, and the last of them.

    Raises OSError or DamagedFileError.
    """
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
    """Whether the directory of a controller that ended, or was adopted, has been removed.

    Raises OSError when that is unknown now.
    """
    if is_there(directory):
        return False
    # If the directory above is missing too, the filesystem is away and may come back. The directory
    # is listed because an NFS client takes a name that it once did not find for missing for up to a
    # minute.
    return is_there(directory.parent) and directory.name not in list_names(directory.parent)


class ControllerFile:
    """controller.json of the calling process. Any thread may call its methods."""

    def __init__(self, machine: MachinePaths, identity: str, fields: Mapping[str, Any]) -> None:
        """Write the file. Raises OSError when it cannot be written."""
        self._machine = machine
        self._identity = identity
        self._paths = machine.controller(identity)
        self._file = HeartbeatFile(self._paths.state, fields)
        self._file.write()
        self._looked = time_awake_or_asleep()
        self._adopter: Adopter | None = None
        # Since when this controller seems to have an adopter. This may be a transient fault.
        self._doubted: float | None = None

    def write(self, **changes: Any) -> None:
        """Write the file with some fields changed. Raises OSError."""
        self._file.write(**changes)

    def start(self) -> None:
        """Start the heartbeat; each beat also looks for an adopter."""
        self._file.start(self._has_no_adopter)

    def stop(self) -> None:
        """Stop the heartbeat. After this returns, only `write` writes the file."""
        self._file.stop()

    def _has_no_adopter(self) -> bool:
        self._look_for_adopter()
        return self._adopter is None

    @property
    def adopter(self) -> Adopter | None:
        """The controller that adopted the jobs of this one, if any.

        That happens after this controller gave no sign of life for too long. It is final: the jobs
        no longer belong to this controller. While the heartbeat runs, the call costs nothing.
        """
        if self._file.is_started and self._adopter is None:
            asleep = time_awake_or_asleep() - self._looked
            if asleep > LATE * self._file.interval:
                self._look_for_adopter()
                if self._doubted is not None:
                    time.sleep(self._file.interval)
                    self._look_for_adopter()
        return self._adopter

    def require_no_adopter(self) -> None:
        """Raise KochiError if there is an adopter.

        This must be called before tickets are submitted and before results are taken in.
        """
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
            return  # unknown now
        if not is_doubtful:
            self._doubted = None
        elif self._doubted is None:
            self._doubted = moment
        # It counts only when it was seen twice, because it ends the run for good.
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
    """A lock file that keeps others out of a directory, as it was when it was made.

    Another file at the same path belongs to another process. `modified` is in nanoseconds.
    """

    path: str
    inode: int
    modified: int

    @classmethod
    def of(cls, path: str) -> LockFile | None:
        """The present file at a path, if any."""
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
    """controller.json: the identity of a controller, and the directory in which it works.

    `directory` is None when it is unknown. `queues` are the queues to which the controller may have
    submitted tickets (None: any). `left` is true if it ended before all its jobs did; its process
    may go on for a while. `said_gone` is true if a person has said that it is gone. `heartbeat`
    grows by one with each write, at least every `heartbeat_interval` seconds; it is None for a
    controller of a release without heartbeats. `allocation` is the scheduler's name of the
    allocation in which it runs. `locks` are the files by which it keeps others out of the
    directory.
    """

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
        """Whether it certainly does nothing more with jobs.

        If the controller could not record its end, this is known only on its own host.
        """
        return self.left or self.said_gone or self.is_process_gone

    @property
    def is_process_gone(self) -> bool:
        """Whether its process has certainly ended.

        Snakemake tidies up for a while after the controller has left, and keeps the directory
        locked.
        """
        here = this_node()
        if here.can_see(self.node):
            return not self.process.is_alive()
        return self.said_gone or here.has_rebooted_since(self.node)


def private_queue(controller: str) -> str:
    """The queue for those jobs of a run that name no queue.

    The names of further queues of the run begin with this name and a dash.
    """
    return f"run-{controller}"


def remove_private_queues(machine: MachinePaths, controller: str) -> None:
    """Remove a run's own queues, except those that still hold a ticket."""
    first = private_queue(controller)
    for name in queue_names(machine):
        if name == first or name.startswith(f"{first}-"):
            Queue(machine, name).remove()


def read_controller(machine: MachinePaths, identity: str) -> ControllerState:
    """Read controller.json. Raises OSError (including FileNotFoundError) or DamagedFileError."""
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
    """All controllers that have not ended in good order.

    A controller whose file cannot be read is left out, because it may just be starting.
    """
    found = []
    for identity in controller_names(machine):
        with contextlib.suppress(FileNotFoundError, DamagedFileError):
            found.append(read_controller(machine, identity))
    return found


def is_same_directory(one: str, other: str) -> bool:
    """Whether two names mean the same directory on this host, as far as that can be seen."""
    with contextlib.suppress(OSError):
        return one == other or os.path.samefile(one, other)
    return False


def adopt(machine: MachinePaths, dead: str, adopter: str, others: Collection[str] = ()) -> bool:
    """Become the one adopter of a dead controller's jobs; False when there is another one.

    If an adopter has died or ended since, the next one follows it; the `others` are dead, too.
    There must be only one, because two controllers that wait for the same job would both report it.
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
    """Whether a controller that once existed is dead or has ended."""
    try:
        return read_controller(machine, identity).is_dead
    except FileNotFoundError:
        return True  # it ended in good order
    except DamagedFileError:
        return False


def queues_of(states: Iterable[ControllerState]) -> set[str] | None:
    """The queues that may hold tickets of these controllers; None for all queues."""
    found: set[str] = set()
    for state in states:
        if state.queues is None:
            return None
        found.update(state.queues)
    return found


def jobs_of(
    machine: MachinePaths, controllers: Collection[str], queues: Collection[str] | None = None
) -> list[JobView]:
    """The waiting and running jobs that some controllers submitted, in all queues or in some.

    No job is missed. The call reads every ticket of these queues, and holds each queue's lock for a
    moment.
    """
    names = queue_names(machine) if queues is None else sorted(queues)
    return [
        view
        for name in (names if controllers else ())
        for view in Queue(machine, name).jobs()
        if view.ticket is not None and view.ticket.controller in controllers
    ]


def forget_controller(machine: MachinePaths, identity: str) -> None:
    """Remove all files of a dead controller and its private queues.

    Queues that still hold a ticket stay.
    """
    shutil.rmtree(machine.controller(identity).inbox.parent, ignore_errors=True)
    remove_private_queues(machine, identity)
