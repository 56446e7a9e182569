"""Controllers: their state files, the adopters of dead ones, and rivals that may write one's files.

A rival whose heartbeat moves is alive, and a new run in its directory is refused. If its heartbeat
stands still for long, it is dead, and the new run adopts its jobs.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import time
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, replace

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import (
    is_name,
    is_same_directory,
    is_there,
    read_json,
    to_json,
    write_exclusively,
)
from snakemake_kochi.heartbeat import HEARTBEAT_INTERVAL, LOST_AFTER, Stillness, sign_of_life
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import Node, ProcessIdentity, this_node
from snakemake_kochi.queue.entries import controller_names
from snakemake_kochi.queue.heartbeat import SETTLING
from snakemake_kochi.queue.queue import remove_private_queues
from snakemake_kochi.queue.ticket import now

VERSION = 1
# In heartbeat intervals. A scheduler reports a node that it cannot reach as gone, although
# processes there may go on.
SILENT_AFTER = 3


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

    `directory` is None when it is unknown. `queues` are the queues to which the controller may
    have submitted tickets (None: any). `left` is true if it ended before all its jobs did; its
    process may go on for a while. `said_gone` is true if a person has said that it is gone.
    `heartbeat` grows by one with each write, and the time of the file changes at least every
    `heartbeat_interval` seconds; it is None for a controller of a release without heartbeats.
    `allocation` is the scheduler's name of the allocation in which it runs. `locks` are the
    files by which it keeps others out of the directory.
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
    number, found = 0, None
    with contextlib.suppress(FileNotFoundError):
        while data := read_json(paths.adopter(number + 1), VERSION):
            number, found = number + 1, Adopter(str(data.get("adopter")), str(data.get("host", "")))
    return number, found


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
        try:
            if write_exclusively(machine.controller(dead).adopter(number + 1), to_json(adopted)):
                return True
        except FileNotFoundError:
            return False  # its files were just deleted: it had no jobs


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


def forget_controller(machine: MachinePaths, identity: str) -> None:
    """Remove all files of a dead controller and its private queues.

    Queues that still hold a ticket stay.
    """
    shutil.rmtree(machine.controller(identity).inbox.parent, ignore_errors=True)
    remove_private_queues(machine, identity)


# Whether a controller is known to have ended. The second argument tells whether it has been silent
# for a while; then sources that are not always right may be asked, too.
IsOver = Callable[[ControllerState, bool], bool]


@dataclass(frozen=True)
class Watched:
    """A controller that may be alive.

    `seconds_left` is the number of seconds without a sign of life after which it is presumed dead;
    None before the first look.
    """

    state: ControllerState
    seconds_left: float | None = None


class OtherControllers:
    """The controllers that may write the same files as the caller's run.

    `own` is the caller's identity. Its file exists already, so that of two controllers that start
    at the same time at least one sees the other. `among` are the controllers to look at, for a
    caller without a run.
    """

    def __init__(
        self,
        machine: MachinePaths,
        directory: str,
        own: str,
        is_over: IsOver,
        clock: Callable[[], float] = time.monotonic,
        among: Collection[ControllerState] | None = None,
    ) -> None:
        self._machine = machine
        self._is_over = is_over
        self._clock = clock
        self._stillness = Stillness(clock)
        self._signs: dict[str, Hashable] = {}
        rivals = _rivals(machine, directory, own) if among is None else among
        self._open = [Watched(state) for state in rivals]
        # Controllers that look dead by the looks so far although no process can be sure. Each has
        # the number of seconds within which it will see its adopter if it is alive after all.
        self.dead: dict[str, float] = {}
        # Controllers whose files were removed or damaged meanwhile, so that nothing more can be
        # learned.
        self.ended: set[str] = set()

    def look(self) -> list[Watched]:
        """Look at the controllers; return those that may still be alive.

        Raises KochiError, with what to type, for one that is alive and for one that cannot be
        watched.
        """
        found = []
        for watched in self._open:
            try:
                left = self._look_at(watched.state.identity)
            except (FileNotFoundError, DamagedFileError):
                self.ended.add(watched.state.identity)
                continue
            except OSError:
                found.append(watched)  # a filesystem that answers with an error proves nothing
                continue
            if left is not None:
                found.append(replace(watched, seconds_left=left))
        self._open = found
        return found

    def _look_at(self, identity: str) -> float | None:
        """The seconds until a controller is presumed dead; None for a dead one."""
        began = self._clock()
        state = read_controller(self._machine, identity)
        if state.is_dead:
            return None
        if this_node().can_see(state.node):
            raise _refusal(state)
        path = self._machine.controller(identity).state
        sign = sign_of_life(path, state.process, state.heartbeat)
        if self._signs.setdefault(identity, sign) != sign:
            raise _refusal(state)
        interval = state.heartbeat_interval
        still = self._stillness.note(identity, sign, interval, began)
        is_silent = still >= SILENT_AFTER * interval
        is_lost = state.heartbeat is not None and still >= LOST_AFTER * interval
        if is_lost or self._is_over(state, is_silent):
            self.dead[identity] = SETTLING * interval if is_silent else 0.0
            return None
        if state.heartbeat is None:
            raise _cannot_be_watched(self._machine, state)
        return LOST_AFTER * interval - still


def _rivals(machine: MachinePaths, directory: str, own: str) -> list[ControllerState]:
    """The controllers that may write the same files as one, and their adopters."""
    outputs = outputs_of(machine, own)
    here = {
        state.identity: state
        for state in list_controllers(machine)
        if state.directory is not None and is_same_directory(state.directory, directory)
    }
    found: set[str] = set()
    for identity in here.keys() - {own}:
        theirs = outputs_of(machine, identity)
        if outputs is None or theirs is None or not outputs.isdisjoint(theirs):
            found.add(identity)
            with contextlib.suppress(DamagedFileError):
                # The adopter waits for jobs of that controller, apart from its own jobs.
                _, adopter = last_adopter(machine, identity)
                found.update({adopter.controller} & here.keys() if adopter is not None else ())
    # A program may call Snakemake several times, one run after the other.
    me, myself = this_node(), ProcessIdentity.of(os.getpid())
    return [
        state
        for state in (here[identity] for identity in sorted(found - {own}))
        if not (me.can_see(state.node) and state.process == myself)
    ]


def may_make(machine: MachinePaths, controller: str, path: str) -> bool:
    """Whether the run of a controller may make a file, relative to its directory."""
    outputs = outputs_of(machine, controller)
    return outputs is None or path in outputs


def outputs_of(machine: MachinePaths, identity: str) -> frozenset[str] | None:
    """The files that the run of a controller may write; None for any."""
    try:
        return frozenset(read_json(machine.controller(identity).outputs, VERSION)["outputs"])
    except (FileNotFoundError, DamagedFileError, KeyError, TypeError):
        return None


def _refusal(state: ControllerState) -> KochiError:
    host, pid = state.node.host, state.process.pid
    is_here = this_node().can_see(state.node)
    where = "this host" if is_here else host
    return KochiError(
        f"another run in this directory is alive on {where} (process {pid}, started at "
        f"{state.started}) and makes the same files: each job would be executed twice",
        "Wait for its end, or interrupt it. To interrupt it, type"
        + ("" if is_here else f" on {host}")
        + f": kill -INT {pid}\nThen type your command again. To see the jobs that still run, type: "
        "kochi show jobs",
    )


def _cannot_be_watched(machine: MachinePaths, state: ControllerState) -> KochiError:
    host, pid = state.node.host, state.process.pid
    return KochiError(
        f"another run in this directory was started on {host} (process {pid}, at {state.started}) "
        "by an earlier release: it has no heartbeat, so this host cannot see whether it is alive",
        f"To see whether it is alive, type on {host}: ps {pid}\nIf it is not, type the following, "
        "and then your command again, which adopts its jobs: touch "
        f"{shlex.quote(str(machine.controller(state.identity).gone))}",
    )
