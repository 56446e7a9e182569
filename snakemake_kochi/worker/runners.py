"""The ways to execute a ticket, the cheapest first: phase, shell, zygote, command.

The supervisor forks the jobs of two of them; for the others servers do (see `server`): one for the
phases of each kind of Python, one for each workflow, one for shell jobs with a `benchmark:`.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from errno import ENOTSUP
from functools import lru_cache
from itertools import count
from typing import Any

from snakemake_kochi.base import clock, files
from snakemake_kochi.processes import ProcessIdentity
from snakemake_kochi.tickets.names import Name, WorkerPaths
from snakemake_kochi.tickets.ticket import ShellJob, Ticket
from snakemake_kochi.worker.forks import Exit, Forks
from snakemake_kochi.worker.shell_job import TEMPORARY_SOURCES, find_temporary_directory
from snakemake_kochi.worker.snakemake_internals import JOB_OPTIONS

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
# Of util-linux. It has the kernel end the command with its parent: see `end_with_parent`.
_LAUNCHER = ("setpriv", "--pdeathsig", "KILL", "--")

_PYTHON = "KOCHI_PYTHON"
# Variables that a Python, its libraries or its loader read when it starts, by the beginnings of
# their names. Jobs with different values have different servers.
_READ_AT_START = (
    *("GCONV_PATH", "GLIBC_", "HOME", "LANG", "LC_", "LD_", "LOCPATH", "MALLOC_"),
    *("NLSPATH", "PYTHON", "TZ", "VIRTUAL_ENV"),
)
# Bash acts on them before it starts the Python, and no bash is started.
_OF_BASH = ("BASH_COMPAT", "BASH_ENV", "BASHOPTS", "POSIXLY_CORRECT", "SHELLOPTS")
_SNAKEMAKE = ("-m", "snakemake")
# For a single job or group the scheduler has nothing to optimise.
_SCHEDULER = ("--scheduler", "greedy")


class UnfitError(Exception):
    """A runner cannot execute this ticket; the text says why, for people."""


@dataclass(frozen=True)
class _Program:
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
    program: _Program
    began: float = field(default_factory=lambda: clock.now())
    used: float = field(default_factory=lambda: clock.now())
    jobs: int = 0  # that it has forked
    memory_mb: int = 0
    is_ready: bool = False
    reads_cpus: bool = False  # it serves jobs with as many CPUs as the first one had
    failure: str = ""  # why it takes no more jobs
    # So many requests fit into its socket, however large their environments are.
    turns: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(4))

    def serves(self, program: _Program) -> bool:
        own = self.program
        is_same = own.key == program.key and (own.cpus == program.cpus or not self.reads_cpus)
        return is_same and not self.failure


Plan = tuple[dict[str, Any], _Program | None]


class Runners:
    """Starts the processes of jobs; any thread may call."""

    def __init__(
        self, forks: Forks, environment: Mapping[str, str], memory_mb: int, paths: WorkerPaths
    ) -> None:
        """`environment`: what all jobs have in common; `memory_mb` and `paths`: of the worker."""
        self._forks = forks
        self._environment = environment
        self._most_memory_mb = memory_mb * _MEMORY_SHARE
        self._paths = paths
        self._temporary: dict[tuple[str | None, ...], str] = {}
        self._environ = threading.Lock()  # of os.environ
        self._lock = threading.Lock()  # of all below
        self._servers: dict[str, _Server] = {}
        self._wasted: Counter[Hashable] = Counter()  # in a row
        self._unfit: dict[Hashable, str] = {}

    def start(
        self,
        name: Name,
        ticket: Ticket,
        log: int,
        environment: dict[str, str],
        pinned: Collection[int] | None,
        ended: Callable[[Exit], None],
        rest: Callable[[float], None],
        begin: Callable[[], None],
    ) -> tuple[ProcessIdentity, str, str]:
        """The main process, the runner, and why it is not a cheaper one. Raises OSError.

        It calls `rest` while it waits for a server, and `begin` just before it makes the process;
        and raises what they raise.
        """

        def fork(request: dict[str, Any], server: str = "") -> ProcessIdentity:
            begin()
            return self._forks.start(request, log, ended, server)

        skipped: list[str] = []
        cpus = None if pinned is None else sorted(pinned)
        job = {
            "job": f"{name.run}.{name.job}",
            "name": ticket.name,
            "directory": ticket.directory,
            "outputs": ticket.outputs,
            "logs": ticket.logs,
        }
        plans: dict[str, Callable[[dict[str, str]], Plan]] = {
            "phase": lambda own: self._phase(ticket, own),
            "shell": lambda own: self._shell(ticket, own),
            "zygote": lambda own: self._zygote(
                name, ticket, own, len(cpus or os.sched_getaffinity(0))
            ),
            "command": lambda own: self._command(ticket, own),
        }
        for runner, plan in plans.items():
            try:
                request, program = plan({**environment, "KOCHI_RUNNER": runner})
                request |= {"job": job, "cpus": cpus}
                if program is None:
                    process = fork(request)
                else:
                    process = self._by_server(program, request, fork, rest)
                return process, runner, "; ".join(skipped)
            except UnfitError as error:
                if str(error):
                    _log.info("job %s: no %s: %s", name, runner, error)
                    skipped.append(f"no {runner}: {error}")
        raise AssertionError

    # ---- what each runner needs for a ticket; these raise UnfitError

    def _command(self, ticket: Ticket, environment: dict[str, str]) -> Plan:
        request: dict[str, Any] = {"command": ticket.command, "shell": None}
        request["environment"] = environment
        path = environment.get("PATH")
        if (program := _launcher()) and _found(ticket.command[0], path):
            with suppress(OSError):
                if os.path.samestat(os.stat(ticket.directory), os.stat(".")):
                    request["launcher"] = [program, *_LAUNCHER[1:]]
        return request, None

    def _shell(self, ticket: Ticket, environment: dict[str, str]) -> Plan:
        if ticket.shell is None:
            raise UnfitError
        request = self._shell_request(ticket.shell, environment)
        _require_here(ticket.shell, request["environment"])
        if ticket.shell.benchmark is None:
            return request, None
        command = [sys.executable, "-P", "-m", f"{__package__}.benchmark"]
        return request, _Program("benchmark", "benchmark", command, self._environment)

    def _shell_request(self, shell: ShellJob, environment: dict[str, str]) -> dict[str, Any]:
        environment = {**environment, **shell.environment}
        temporary = self._temporary_directory(environment)
        return {"shell": shell.to_dict(), "environment": environment, "temporary": temporary}

    def _phase(self, ticket: Ticket, environment: dict[str, str]) -> Plan:
        shell = ticket.shell
        if shell is None or not shell.phase or shell.benchmark is not None:
            raise UnfitError
        common = {**self._environment, **ticket.environment, **shell.environment}
        python = common.get(_PYTHON, "")
        if not os.path.isabs(python):
            raise UnfitError(f"{_PYTHON} is not the path of a Python")
        for each in _OF_BASH:
            if each in common:
                raise UnfitError(f"{each} is set")
        paths = common.get("PYTHONPATH", "")
        if paths and not all(map(os.path.isabs, paths.split(os.pathsep))):
            # A Python finds them from its directory, which is another one for each job.
            raise UnfitError("PYTHONPATH has a path that is not absolute")
        read = frozenset(pair for pair in common.items() if pair[0].startswith(_READ_AT_START))
        command = [python, "-P", "-m", f"{__package__}.phase"]
        program = _Program("phase", ("phase", python, read), command, common)
        return self._shell_request(shell, environment), program

    def _zygote(self, name: Name, ticket: Ticket, environment: dict[str, str], cpus: int) -> Plan:
        if ticket.job_arguments is None:
            raise UnfitError
        start, stop = ticket.job_arguments
        command = ticket.command
        own = command[start:stop]
        if command[1:3] != _SNAKEMAKE or start < 3:
            raise UnfitError("the command does not run Snakemake by python -m snakemake")
        if unknown := sorted({word for word in own if word.startswith("--")} - JOB_OPTIONS):
            raise UnfitError(f"unknown options: {', '.join(unknown)}")
        common = [*command[3:start], *command[stop:], *_SCHEDULER]
        # Two runs do not share a zygote: programs, databases and the clock may also give other
        # answers by then. Within one run the main process has read the workflow only once.
        key = (
            *(command[0], *common, name.run, ticket.directory),
            frozenset(ticket.environment.items()),
        )
        program = _Program(
            "zygote",
            key,
            [command[0], "-P", "-m", f"{__package__}.zygote", str(cpus), *common],
            {**self._environment, "PWD": ticket.directory, **ticket.environment},
            ticket.directory,
            cpus,
        )
        request = {"command": [*command[3:], *_SCHEDULER], "options": own}
        return request | {"environment": environment, "shell": None}, program

    def _temporary_directory(self, environment: Mapping[str, str]) -> str | None:
        """The temporary directory of a job with this environment, if all such jobs have the same.

        Found once, because that takes longer than the rest of the preparation. None where each job
        must find it: it depends on the job's directory, or may not exist yet.
        """
        key = tuple(environment.get(name) for name in TEMPORARY_SOURCES)
        if not all(os.path.isabs(path) and os.access(path, os.W_OK) for path in key if path):
            return None
        if key not in self._temporary:
            with self._environ, suppress(OSError):  # then the job reports it
                self._temporary[key] = find_temporary_directory(environment)
        return self._temporary.get(key)

    # ---- servers

    def _by_server(
        self,
        program: _Program,
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

    def _server(self, program: _Program) -> _Server:
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


@lru_cache
def _found(program: str, path: str | None) -> bool:
    return shutil.which(program, path=path) is not None


@lru_cache
def _launcher() -> str:
    """The program that executes a command so that it ends with its parent; "" if there is none."""
    if program := shutil.which(_LAUNCHER[0]):
        with suppress(OSError, subprocess.SubprocessError):
            command = [program, *_LAUNCHER[1:], "true"]
            subprocess.run(command, capture_output=True, timeout=_START_PATIENCE, check=True)
            return program
    return ""


def _require_here(shell: ShellJob, environment: Mapping[str, str]) -> None:
    """Raises UnfitError where a Snakemake on this node would act differently."""
    program = shell.executable
    if "/" in program:
        is_there = os.access(program, os.X_OK)
    else:
        is_there = shutil.which(program, path=environment.get("PATH")) is not None
    if not is_there:
        raise UnfitError(f"no {program} on this node")
    if shell.temporary_directory and shell.temporary_directory in shell.script:
        for name in TEMPORARY_SOURCES:
            path = environment.get(name, "")
            # It is unknown whether the path is quoted in the command, or must be.
            if path and shlex.quote(path) != path:
                raise UnfitError(f"{name} is {path!r}, which needs quotes")
