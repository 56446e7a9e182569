"""A world of computers that share a filesystem, in one thread and in virtual time.

Simulated processes are greenlets that run the real code. Each call of `base` leaves to the world,
which lets the process go on whose time is next. With one seed everything happens again.
"""

from __future__ import annotations

import errno
import heapq
import itertools
import logging
import math
import os
import random
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from greenlet import getcurrent, greenlet

from simulator.tree import Tree
from snakemake_kochi.base import clock, files, wake
from snakemake_kochi.files import names


class Killed(BaseException):
    """A call of a process that is dead."""


@dataclass
class Node:
    """A computer. `asleep`: until when; `away`: until when the file server does not answer it."""

    name: str
    asleep: float = 0.0
    away: float = 0.0
    gone: float = 0.0
    listings: dict[str, tuple[float, list[str]]] = field(default_factory=dict)
    # By the identity of a file, which is kept: when its length was learned, and what it was.
    lengths: dict[int, tuple[float, int, bytearray]] = field(default_factory=dict)

    @property
    def until(self) -> float:
        """When it is well again."""
        return max(self.asleep, self.away, self.gone)


@dataclass(eq=False)
class Process:
    name: str
    node: Node
    calls: int = 0
    changes: list[int] = field(
        default_factory=list, repr=False
    )  # calls after which others find a change
    effects: list[int] = field(default_factory=list, repr=False)  # calls that do more than look
    threads: int = 0
    killed: float = math.inf
    is_alive: bool = True


@dataclass(frozen=True)
class Fault:
    """What happens at a call: an error (its number) before or after it is done; or else a kill.

    `late`: it is done so many seconds after the error. `slow`: it takes so many seconds. `asleep`,
    `away`, `gone`: for so many seconds the node sleeps, the file server does not answer it, or the
    mount is missing there.
    """

    error: int | None = None
    is_done: bool = False
    late: float = 0.0
    asleep: float = 0.0
    away: float = 0.0
    gone: float = 0.0
    slow: float = 0.0


_LENGTHS = 1.0  # seconds for which a node believes the length of a file, as GlusterFS does
KILL = Fault()
SLOW = Fault(slow=20.0)
SLEEP = Fault(asleep=150.0)
AWAY, LONG_AWAY = Fault(away=40.0), Fault(away=150.0)


@dataclass
class World:
    """`latency`: the most seconds of a call. `cache`: for how long a node believes a listing.

    `faults`: by name of process and number of its call. `chance`: of a fault in any other call.
    """

    seed: int = 0
    latency: float = 0.01
    cache: float = 0.0
    faults: dict[tuple[str, int], Fault] = field(default_factory=dict)
    chance: float = 0.0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.tree = Tree()
        self.time = 1000.0
        self.calls = 0
        self.trace: list[str] = []
        self.processes: list[Process] = []
        self.crashes: list[str] = []
        self.is_traced = False
        self.is_full = False
        self.was_full = False
        self._queue: list[tuple[float, int, greenlet]] = []
        self._count = itertools.count()
        self._due: dict[greenlet, int] = {}  # the number of a thread's turn
        self.created: dict[str, float] = {}  # when each file was
        self.numbers = itertools.count(1)  # for names that are used once
        self._nodes: dict[str, Node] = {}
        self._names: Counter[str] = Counter()
        self._processes: dict[greenlet, Process] = {}
        self._hub = getcurrent()
        self._server = Process("server", Node("server"))

    # ---- processes

    def node(self, name: str) -> Node:
        return self._nodes.setdefault(name, Node(name))

    def start(self, name: str, node: str, function: Callable[[], Any]) -> Process:
        self._names[name] += 1
        number = self._names[name]
        process = Process(name if number == 1 else f"{name}#{number}", self.node(node))
        self.processes.append(process)
        self.fork(function, process)
        return process

    def fork(self, function: Callable[[], Any], process: Process | None = None) -> None:
        """One more thread of the process that calls."""
        process = process or self.current
        thread = greenlet(lambda: self._main(function, process), self._hub)
        self._processes[thread] = process
        process.threads += 1
        self._later(0.0, thread)

    def _main(self, function: Callable[[], Any], process: Process) -> None:
        try:
            function()
        except Killed:
            return
        except Exception:
            # As of a real process: a thread that fails ends it.
            self.crashes.append(f"{process.name} failed: {traceback.format_exc(limit=-3)}")
            self.kill(process)

    @property
    def current(self) -> Process:
        if (process := self._processes.get(getcurrent())) is None:
            raise Killed  # a thread of a process that was killed before
        return process

    def is_gone(self, name: str) -> bool:
        """What the kernel says of a process of the node that asks."""
        here = self.current.node
        return any(p.name == name and p.node is here and not p.is_alive for p in self.processes)

    def kill(self, process: Process) -> None:
        process.is_alive = False
        process.killed = min(process.killed, self.time)

    def _later(self, seconds: float, thread: greenlet) -> None:
        """Its turn comes then, and no sooner; never, if its process is dead."""
        if thread not in self._processes:
            return
        self._due[thread] = number = next(self._count)
        heapq.heappush(self._queue, (self.time + seconds, number, thread))

    def run(self, seconds: float) -> None:
        """Let so much time pass, or less if nothing is left to happen."""
        end = self.time + seconds
        while self._queue and self._queue[0][0] <= end:
            when, number, thread = heapq.heappop(self._queue)
            self.time = max(self.time, when)
            if self._due.get(thread) != number:
                continue  # it was woken before
            process = self._processes[thread]
            if not process.is_alive:
                del self._processes[thread], self._due[thread]  # never goes on
            elif process.node.asleep > self.time:
                self._later(process.node.asleep - self.time, thread)
            else:
                thread.switch()
                if thread.dead:
                    del self._processes[thread], self._due[thread]
                    process.threads -= 1
                    process.is_alive &= process.threads > 0
        self.time = max(self.time, end)

    def wait(self, seconds: float) -> None:
        """Of a process: let others go on."""
        if seconds < math.inf:
            self._later(seconds, getcurrent())
        self._hub.switch()

    # ---- calls

    def call(self, what: str, path: str, action: Callable[[], Any]) -> Any:
        process = self._processes.get(getcurrent())
        if process is None:  # the test itself
            return action()
        if not process.is_alive:
            raise Killed
        process.calls += 1
        number = process.calls
        fault = self.faults.get((process.name, number))
        if fault is None and self.chance and self.random.random() < self.chance:
            fault = self._any_fault()
        if self.is_traced:
            self.trace.append(
                f"{self.time:9.3f} {process.name} {number}: {what} {path} {fault or ''}"
            )
        if fault is KILL:
            self.kill(process)
            self._hub.switch()
        if what == "report" and fault is not KILL:
            return action()  # no call of a filesystem
        if fault is not None and (fault.asleep or fault.away or fault.gone):
            process.node.asleep = self.time + fault.asleep
            process.node.away = self.time + fault.away
            process.node.gone = self.time + fault.gone
            fault = None
        slow = 0.0
        if fault is not None and fault.slow:
            slow, fault = fault.slow, None
        self.wait(slow + self.random.uniform(0.0, self.latency))
        if not process.is_alive:
            raise Killed
        self.calls += 1
        if what not in ("list", "read", "lock", "unlock"):
            process.effects.append(number)
        if what not in ("list", "read", "open", "lock", "unlock") and not path.endswith("/alive"):
            process.changes.append(number)
        self._refuse(process.node, what, path)
        if fault is not None and fault.late:
            self._act_late(action, fault.late)
        if fault is not None and not fault.is_done:
            raise OSError(fault.error, os.strerror(fault.error or 0), path)
        result = action()
        if fault is not None:
            raise OSError(fault.error, os.strerror(fault.error or 0), path)
        return result

    def _refuse(self, node: Node, what: str, path: str) -> None:
        """Raise the error of a node's outage, or of a full disk."""
        if node.away > self.time:
            raise OSError(errno.EIO, "server away", path)
        if node.gone > self.time:
            raise OSError(errno.ENOENT, "mount missing", path)
        self.was_full |= self.is_full
        if self.is_full and what in ("make", "create", "write"):
            raise OSError(errno.ENOSPC, "full", path)

    def _act_late(self, action: Callable[[], Any], seconds: float) -> None:
        def act() -> None:
            self.wait(seconds)
            with suppress(OSError):
                action()

        self.fork(act, self._server)

    def _any_fault(self) -> Fault:
        return self.random.choice(FAULTS)

    # ---- in place of the system

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The real code lives in this world."""
        before = vars(clock).copy(), vars(files).copy(), wake.fifos, names.urandom
        state = random.getstate()
        # Of its own: how many words a process needs changes nothing else in a story.
        names.urandom = random.Random(self.seed).randbytes
        random.seed(self.seed)  # the pauses of workers
        for module, own in ((clock, WorldClock(self)), (files, WorldDisk(self))):
            for name in vars(type(own)):
                if not name.startswith("_"):
                    assert name in vars(module), name
                    setattr(module, name, getattr(own, name))
        wake.fifos = WorldFifos(self)  # type: ignore[assignment]
        logging.disable()
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
            vars(clock).update(before[0])
            vars(files).update(before[1])
            wake.fifos, names.urandom = before[2:]
            random.setstate(state)


GONE = Fault(gone=20.0)
NOT_DONE, DONE = Fault(errno.EIO), Fault(errno.EIO, is_done=True)
LATE, A_LITTLE_LATE = Fault(errno.ETIMEDOUT, late=20.0), Fault(errno.ETIMEDOUT, late=0.03)
MISSING = Fault(errno.ENOENT)
FAULTS = [
    *(NOT_DONE, DONE, LATE, A_LITTLE_LATE, MISSING),
    *(Fault(errno.ETIMEDOUT, late=late) for late in (0.3, 3.0, 100.0)),
    *(Fault(errno.ESTALE), Fault(errno.ENOSPC), Fault(errno.EROFS)),
]


def twice(names: list[str]) -> list[str]:
    """A listing that goes on while names move: one of them is in it twice."""
    return [*names, *names[:1]]


class WorldMailbox:
    def __init__(self, world: World) -> None:
        self._world = world
        self._items: deque[Any] = deque()
        self._waiting: greenlet | None = None

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._waiting is not None:
            self._world._later(0.0, self._waiting)
            self._waiting = None

    def get(self, seconds: float) -> Any:
        if not self._items and seconds > 0:
            self._waiting = getcurrent()
            self._world.wait(seconds)
            self._waiting = None
            if not self._world.current.is_alive:
                raise Killed
        return self._items.popleft() if self._items else None


class WorldClock:
    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> float:
        return self._world.time

    def sleep(self, seconds: float) -> None:
        process = self._world.current
        if not process.is_alive:
            raise Killed
        self._world.wait(seconds)
        if not process.is_alive:
            raise Killed

    def mailbox(self) -> WorldMailbox:
        return WorldMailbox(self._world)

    def spawn(self, function: Callable[[], Any]) -> None:
        self._world.fork(function)


class WorldFifos:
    """Who listens on a node is woken by those of the same node."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._woken: dict[tuple[str, str], Callable[[], None]] = {}

    def listen(self, path: str, woken: Callable[[], None]) -> None:
        self._woken[self._world.current.node.name, path] = woken

    def wake(self, path: str) -> None:
        if woken := self._woken.get((self._world.current.node.name, path)):
            woken()


class WorldDisk:
    """The calls of `base.files`, on the world's tree."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._tree = world.tree

    def _changes(self, what: str, action: Callable[[], None], *paths: str) -> None:
        parents = [path.rpartition("/")[0] for path in paths]
        process = self._world._processes.get(getcurrent())
        try:
            self._world.call(what, " ".join(paths), action)
        finally:
            # A client that has asked the server for a change believes nothing old.
            if process is not None:
                for parent in parents:
                    process.node.listings.pop(parent, None)

    def listed(self, path: str) -> list[str]:
        world = self._world

        def action() -> list[str]:
            process = world._processes.get(getcurrent())
            if process is None or not world.cache:
                return twice(self._tree.names(path))
            when, known = process.node.listings.get(path, (-1e9, []))
            if world.time - when > world.cache:
                known = self._tree.names(path)
                process.node.listings[path] = (world.time, known)
                for file in self._tree.files(path):  # a listing brings their lengths
                    self._length(process.node, file)
            return twice(known)

        return world.call("list", path, action)

    def move(self, source: str, target: str) -> None:
        # The client knows the directories when it sends the request, whatever their names are then.
        self._changes("move", self._tree.bound(source, target), source, target)

    def make(self, directory: str) -> None:
        self._changes("make", lambda: self._tree.make(directory), directory)

    def write(self, path: str, data: bytes, flags: int, sync: bool) -> None:
        tree, name = self._tree, path
        opened: list[bytearray] = []
        # An open file is written although its name has changed.
        if flags & os.O_CREAT:
            is_new = bool(flags & os.O_EXCL)
            self._changes("create", lambda: opened.append(tree.create(name, is_new)), path)
            self._world.created.setdefault(path, self._world.time)
        else:
            self._world.call("open", name, lambda: opened.append(tree.file(name)))
        at_end = flags & os.O_APPEND
        # Killed in between, a process leaves a part of its line.
        for part in (data[: len(data) // 2], data[len(data) // 2 :]) if at_end else (data,):
            write = partial(tree.write, opened[0], part, bool(at_end))
            self._world.call("write", name, write)
            if (process := self._world._processes.get(getcurrent())) is not None:
                process.node.lengths.pop(id(opened[0]), None)

    @contextmanager
    def mapped(self, path: str) -> Iterator[bytes]:
        yield self.read(path)

    def open_end(self, path: str) -> int:
        self._changes("create", lambda: self._tree.create(path, False), path)
        return 0

    def close(self, number: int) -> None:
        return

    def read(self, path: str, most: int = -1) -> bytes:
        return self._world.call("read", path, lambda: self._content(path))

    def _content(self, path: str) -> bytes:
        """What a node does not see yet: what another one has just appended."""
        content = self._found(path)
        process, world = self._world._processes.get(getcurrent()), self._world
        if process is None or not world.cache:
            return content
        file = self._tree.moved.get(path) or Tree.file(self._tree, path)
        return content[: self._length(process.node, file)]

    def _length(self, node: Node, file: bytearray) -> int:
        """As a node believes it to be."""
        when, length, _ = node.lengths.get(id(file), (-1e9, 0, file))
        if self._world.time - when > min(self._world.cache, _LENGTHS):
            length = len(file)
            node.lengths[id(file)] = self._world.time, length, file
        return length

    def _found(self, path: str) -> bytes:
        """A node may find a file by a name that it has listed and that another one has moved."""
        try:
            return self._tree.read(path)
        except FileNotFoundError:
            directory, _, name = path.rpartition("/")
            process = self._world._processes.get(getcurrent())
            when, known = (process and process.node.listings.get(directory)) or (-1e9, [])
            if name not in known or self._world.time - when > self._world.cache:
                raise
            if path not in self._tree.moved or self._world.random.random() < 0.5:
                raise
            return bytes(self._tree.moved[path])

    def try_lock(self, path: str) -> int | None:
        """Any answer: a lock may be kept on its node, or not exist."""
        return self._world.call("lock", path, lambda: self._world.random.choice((1, None)))

    def unlock(self, number: int) -> None:
        self._world.call("unlock", "", lambda: None)

    def unlink(self, path: str) -> None:
        self._changes("unlink", lambda: self._tree.unlink(path), path)

    def rmdir(self, path: str) -> None:
        self._changes("rmdir", lambda: self._tree.rmdir(path), path)

    def sync_names(self, directory: str) -> None:
        self._world.call("sync", directory, lambda: None)
