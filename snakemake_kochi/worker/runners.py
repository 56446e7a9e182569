"""The ways to execute a ticket, the cheapest first: phase, shell, zygote, command.

The supervisor forks the jobs of two of them; for the others servers do (see `servers`): one for the
phases of each kind of Python, one for each workflow, one for shell jobs with a `benchmark:`.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import count
from queue import Empty, SimpleQueue
from signal import SIGKILL, Signals
from typing import Any, NoReturn

from snakemake_kochi.parent_death import children
from snakemake_kochi.processes import ProcessIdentity, find_job_processes, send_signal
from snakemake_kochi.tickets.names import Name, WorkerPaths
from snakemake_kochi.tickets.ticket import ShellJob, Ticket
from snakemake_kochi.worker.job_process import TEMPORARY_SOURCES
from snakemake_kochi.worker.servers import Program, Servers, UnfitError
from snakemake_kochi.worker.snakemake_internals import JOB_OPTIONS
from snakemake_kochi.worker.supervisor import receive, send

_log = logging.getLogger(__name__)

_SERVER_PATIENCE = 10.0  # seconds for a fork, which takes milliseconds
# Of util-linux. It has the kernel end the command with its parent: see `end_with_parent`.
_LAUNCHER = ("setpriv", "--pdeathsig", "KILL", "--")
_LAUNCHER_PATIENCE = 60.0

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


@dataclass(frozen=True)
class Exit:
    """How a process ended: by a status or by a signal; the other is None. `cpu_seconds` and
    `peak_memory_mb` (MiB, of the largest single process) also count what it waited for."""

    status: int | None
    signal: int | None
    cpu_seconds: float = 0.0
    peak_memory_mb: int = 0

    @property
    def is_success(self) -> bool:
        return self.status == 0

    def is_by(self, signals: Collection[Signals]) -> bool:
        """Whether one of these signals ended it, or what it waited for."""
        return self.signal in signals or (self.status or 0) - 128 in signals


@dataclass
class Start:
    """A process that was asked for; `ended` is called by another thread."""

    ended: Callable[[Exit], None]
    process: ProcessIdentity | None = None
    error: OSError | None = None
    known: SimpleQueue[None] = field(default_factory=SimpleQueue)


class Forks:
    """The socket of the supervisor. Any thread may call."""

    def __init__(
        self,
        link: socket.socket,
        stop: Callable[[Signals], None],
        hear: Callable[[str, Mapping[str, Any]], None],
    ) -> None:
        """`stop` gets each request to stop; `hear`: what happened to a server, by its name."""
        self._link = link
        self._stop = stop
        self._hear = hear
        self._supervisor = os.getppid()
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._starts: dict[int, Start] = {}
        self._servers: dict[str, int] = {}
        self._serving: set[str] = set()  # also those that have no process yet
        threading.Thread(target=self._listen, daemon=True).start()

    def beat(self) -> None:
        """Tell the supervisor that the loop lives."""
        self._send({"beat": 1})

    def start(
        self, request: Mapping[str, Any], log: int, ended: Callable[[Exit], None], server: str = ""
    ) -> ProcessIdentity:
        """Fork the main process of a job. Raises OSError, by which nothing of it was executed.

        A server that does not answer is killed.
        """
        number, start = next(self._numbers), Start(ended)
        with self._lock:
            self._starts[number] = start
        try:
            self._send({"fork": number, "server": server, **request}, log)
        except OSError:
            with self._lock:
                del self._starts[number]
            raise
        try:
            start.known.get(timeout=_SERVER_PATIENCE if server else None)
        except Empty:
            self.end(server, SIGKILL)
            start.known.get()
        if start.error is not None:
            raise start.error
        assert start.process is not None
        return start.process

    def serve(
        self,
        name: str,
        command: list[str],
        environment: Mapping[str, str],
        directory: str,
        log: int,
    ) -> None:
        """Start a server; `hear` gets what becomes of it. Raises OSError."""
        request = {"command": command, "environment": dict(environment), "directory": directory}
        self._serving.add(name)
        try:
            self._send({"serve": name, **request}, log)
        except OSError:
            self._serving.discard(name)
            raise

    def serves(self, name: str) -> bool:
        """Whether a server was started and has not ended."""
        return name in self._serving

    def end(self, server: str, by: Signals) -> None:
        """Send a server a signal. Raises OSError."""
        self._send({"end": server, "by": by})

    def abandon(self) -> NoReturn:
        """End this process, by which the supervisor ends all others."""
        os._exit(1)

    def signal(self, process: ProcessIdentity, nonce: str, number: Signals) -> None:
        """Signal all processes of a job."""
        send_signal(find_job_processes(process, nonce), number)

    def left(
        self, process: ProcessIdentity, nonce: str, is_alone: Callable[[], bool]
    ) -> list[ProcessIdentity]:
        """What a job has left whose main process has ended; `is_alone`: no other job runs now."""
        if not (orphans := self._orphans()):
            return []
        # Asked after they were listed: the process of a job that began meanwhile may be among them.
        found = {*find_job_processes(process, nonce), *(orphans if is_alone() else ())}
        return sorted(found, key=lambda each: each.pid)

    def _orphans(self) -> list[ProcessIdentity]:
        """The living processes that ended ones left behind, of whichever job."""
        with self._lock:
            known = {s.process.pid for s in self._starts.values() if s.process is not None}
            helpers = {os.getpid(), *self._servers.values()}
        pids = {*children(self._supervisor)} - known - helpers
        found = [ProcessIdentity.of(pid) for pid in pids if _session(pid) not in helpers]
        return [process for process in found if process is not None and process.is_alive()]

    def _send(self, message: dict[str, Any], *descriptors: int) -> None:
        with self._lock:
            send(self._link, message, *descriptors)

    def _listen(self) -> None:
        while True:
            try:
                message, _ = receive(self._link)
            except OSError:
                message = None
            if message is None:  # the supervisor is gone, and its death ends this process
                os._exit(1)
            self._take(message)

    def _take(self, message: dict[str, Any]) -> None:
        if "forked" in message:
            start = self._starts[message["forked"]]
            if "pid" in message:
                start.process = ProcessIdentity(message["pid"], message["start"])
            else:
                code = message["error"]
                start.error = OSError(code, message.get("why") or os.strerror(code))
                with self._lock:
                    del self._starts[message["forked"]]
            start.known.put(None)
        elif "ended" in message:
            with self._lock:
                start = self._starts.pop(message["ended"])
            start.ended(
                Exit(message["status"], message["signal"], message["cpu"], message["memory"])
            )
        elif "signal" in message:
            self._stop(Signals(message["signal"]))
        else:
            name = next(message[key] for key in ("served", "said", "gone") if key in message)
            with self._lock:
                if "served" in message:
                    self._servers[name] = message["pid"]
                elif "gone" in message:
                    self._servers.pop(name, None)
                    self._serving.discard(name)
            self._hear(name, message)


Plan = tuple[dict[str, Any], Program | None]


class Runners:
    """Starts the processes of jobs; any thread may call."""

    def __init__(
        self, forks: Forks, environment: Mapping[str, str], memory_mb: int, paths: WorkerPaths
    ) -> None:
        """`environment`: what all jobs have in common; `memory_mb` and `paths`: of the worker."""
        self._forks = forks
        self._environment = environment
        self._servers = Servers(forks, memory_mb, paths)
        self.hear, self.close = self._servers.hear, self._servers.close

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
        plans = {
            "phase": partial(self._phase, ticket),
            "shell": partial(self._shell, ticket),
            "zygote": partial(self._zygote, name, ticket, len(cpus or os.sched_getaffinity(0))),
            "command": partial(self._command, ticket),
        }
        for runner, plan in plans.items():
            try:
                request, program = plan({**environment, "KOCHI_RUNNER": runner})
                request |= {"job": job, "cpus": cpus}
                if program is None:
                    process = fork(request)
                else:
                    process = self._servers.fork(program, request, fork, rest)
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
        return request, Program("benchmark", "benchmark", command, self._environment)

    def _shell_request(self, shell: ShellJob, environment: dict[str, str]) -> dict[str, Any]:
        return {"shell": shell.to_dict(), "environment": {**environment, **shell.environment}}

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
        program = Program("phase", ("phase", python, read), command, common)
        return self._shell_request(shell, environment), program

    def _zygote(self, name: Name, ticket: Ticket, cpus: int, environment: dict[str, str]) -> Plan:
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
        program = Program(
            "zygote",
            key,
            [command[0], "-P", "-m", f"{__package__}.zygote", str(cpus), *common],
            {**self._environment, "PWD": ticket.directory, **ticket.environment},
            ticket.directory,
            cpus,
        )
        request = {"command": [*command[3:], *_SCHEDULER], "options": own}
        return request | {"environment": environment, "shell": None}, program


@lru_cache
def _found(program: str, path: str | None) -> bool:
    return shutil.which(program, path=path) is not None


@lru_cache
def _launcher() -> str:
    """The program that executes a command so that it ends with its parent; "" if there is none."""
    if program := shutil.which(_LAUNCHER[0]):
        with suppress(OSError, subprocess.SubprocessError):
            command = [program, *_LAUNCHER[1:], "true"]
            subprocess.run(command, capture_output=True, timeout=_LAUNCHER_PATIENCE, check=True)
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


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0
