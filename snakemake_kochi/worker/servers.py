"""The servers that fork some jobs (see `server`): which a job needs, and which are worthwhile."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from errno import ENOTSUP
from itertools import count
from typing import TYPE_CHECKING, Any

from snakemake_kochi.base import clock, files
from snakemake_kochi.processes import ProcessIdentity
from snakemake_kochi.tickets.names import WorkerPaths

if TYPE_CHECKING:
    from snakemake_kochi.worker.runners import Forks

_log = logging.getLogger(__name__)

# Each takes the memory of a Python or a Snakemake, some 30 or 100 MiB. Together they may take a
# share of the worker's memory, of which jobs are told that they have all.
_MOST_SERVERS = 4
_MEMORY_SHARE = 0.25
# A server takes as long to start as a job without one takes to run. One that ends before it has
# forked _WORTH_IT jobs was wasted, unless nothing came for _UNUSED seconds. After _MOST_WASTED in a
# row its jobs go to the next runner.
_WORTH_IT = 3
_UNUSED = 60.0
_MOST_WASTED = 3
_START_PATIENCE = 60.0  # seconds
_END_PATIENCE = 2.0
_PAUSE = 0.01  # between two looks whether a server is ready, which takes 0.1 to 2 s


class UnfitError(Exception):
    """A runner cannot execute this ticket; the text says why, for people."""


@dataclass(frozen=True)
class Program:
    """A server that a job needs. `key`: equal for two jobs that one server can fork.

    `cpus`: how many the job has, if the server may depend on that.
    """

    kind: str
    key: Hashable
    command: list[str]
    environment: Mapping[str, str]
    directory: str = "/"
    cpus: int = 0


@dataclass
class _Server:
    name: str
    program: Program
    began: float = field(default_factory=lambda: clock.now())
    used: float = field(default_factory=lambda: clock.now())
    jobs: int = 0  # that it has forked
    memory_mb: int = 0
    is_ready: bool = False
    reads_cpus: bool = False  # it serves jobs with as many CPUs as the first one had
    failure: str = ""  # why it takes no more jobs
    # So many requests fit into its socket, however large their environments are.
    turns: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(4))

    def serves(self, program: Program) -> bool:
        own = self.program
        is_same = own.key == program.key and (own.cpus == program.cpus or not self.reads_cpus)
        return is_same and not self.failure


class Servers:
    """All of a worker; any thread may call."""

    def __init__(self, forks: Forks, memory_mb: int, paths: WorkerPaths) -> None:
        self._forks = forks
        self._most_memory_mb = memory_mb * _MEMORY_SHARE
        self._paths = paths
        self._lock = threading.Lock()  # of all below
        self._servers: dict[str, _Server] = {}
        self._wasted: Counter[Hashable] = Counter()  # in a row
        self._unfit: dict[Hashable, str] = {}

    def fork(
        self,
        program: Program,
        request: dict[str, Any],
        fork: Callable[[dict[str, Any], str], ProcessIdentity],
        rest: Callable[[float], None],
    ) -> ProcessIdentity:
        """Have a server fork a job. Raises UnfitError."""
        why = ""
        for _ in range(_MOST_WASTED):
            server = self._server(program)
            while not (server.is_ready or server.failure):
                rest(_PAUSE)
                if clock.now() > server.began + _START_PATIENCE:
                    with self._lock:
                        self._give_up(server, f"not ready within {_START_PATIENCE:.0f} seconds")
            if not server.serves(program):
                why = server.failure
                continue
            try:
                with server.turns:
                    process = fork(request, server.name)
            except OSError as error:
                why = error.strerror or ""
                with self._lock:
                    if error.errno != ENOTSUP:
                        self._lose(server, why)
                    elif not server.jobs:
                        self._give_up(server, why)
                if error.errno == ENOTSUP:
                    raise UnfitError(why) from error
            else:
                with self._lock:
                    server.jobs += 1
                    server.used = clock.now()
                return process
        raise UnfitError(why)

    def _server(self, program: Program) -> _Server:
        """The server of this program, which may not be ready. Raises UnfitError."""
        with self._lock:
            if program.key in self._unfit:
                raise UnfitError(self._unfit[program.key])
            for server in self._servers.values():
                if server.serves(program):
                    return server
            if len(self._living()) >= _MOST_SERVERS:
                self._lose_least_used()
            names = (f"{program.kind}-{number}" for number in count())
            name = next(name for name in names if name not in self._servers)
            server = self._servers[name] = _Server(name, program)
        try:
            log = files.open_end(self._paths.server_log(server.name))
            try:
                start = program.command, program.environment, program.directory
                self._forks.serve(name, *start, log)
            finally:
                os.close(log)
        except OSError as error:
            with self._lock:
                server.failure = str(error)
                del self._servers[name]
            raise UnfitError(str(error)) from error
        return server

    def _living(self) -> list[_Server]:
        return [server for server in self._servers.values() if not server.failure]

    def _lose_least_used(self) -> None:
        least = min(self._living(), key=lambda server: server.used)
        self._lose(least, "other servers are used more")

    def _lose(self, server: _Server, why: str) -> None:
        """It takes no more jobs; decide by its use whether another one is worthwhile."""
        if server.failure:
            return
        key = server.program.key
        if server.jobs >= _WORTH_IT:
            del self._wasted[key]
        elif clock.now() < server.used + _UNUSED:
            self._wasted[key] += 1
            if self._wasted[key] >= _MOST_WASTED:
                last = f"{_MOST_WASTED} in a row were of little use; the last one: {why}"
                return self._give_up(server, f"{last} (see {self._paths.server_log(server.name)})")
        self._end(server, why)

    def _give_up(self, server: _Server, why: str) -> None:
        """No such server takes jobs any more."""
        program = server.program
        if program.key not in self._unfit:
            self._unfit[program.key] = why
            _log.warning("no %s any more, its jobs go to the next runner: %s", program.kind, why)
        self._end(server, why)

    def _end(self, server: _Server, why: str) -> None:
        server.failure = server.failure or why
        _log.info("%s ends after %d jobs: %s", server.name, server.jobs, why)
        with suppress(OSError):
            self._forks.end(server.name, signal.SIGTERM)

    def hear(self, name: str, message: Mapping[str, Any]) -> None:
        """What happened to a server, or what it said."""
        with self._lock:
            if (server := self._servers.get(name)) is None:
                return
            if "served" in message:
                _log.info("%s is process %d", name, message["pid"])
            elif "gone" in message:
                self._lose(server, "its process ended")
                del self._servers[name]
            elif server.failure or server.is_ready:
                pass
            elif "failed" in message:
                self._give_up(
                    server, f"{message['failed']} (see {self._paths.server_log(server.name)})"
                )
            else:
                self._note_ready(server, message)

    def _note_ready(self, server: _Server, message: Mapping[str, Any]) -> None:
        server.used = clock.now()
        server.memory_mb = message["memory"]
        server.reads_cpus = message.get("reads_cpus", False)
        taken = server.used - server.began
        _log.info("%s is ready after %.1f s, %d MiB", server.name, taken, server.memory_mb)
        if server.memory_mb > self._most_memory_mb:
            return self._give_up(server, f"it takes {server.memory_mb} MiB")
        server.is_ready = True
        while sum(each.memory_mb for each in self._living()) > self._most_memory_mb:
            self._lose_least_used()

    def close(self) -> None:
        """End the servers; they remove their temporary directories."""
        with self._lock:
            for server in self._servers.values():
                self._end(server, "the worker leaves")
        until = clock.now() + _END_PATIENCE
        while self._servers and clock.now() < until:
            clock.sleep(_PAUSE)
