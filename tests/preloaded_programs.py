"""Snakemakes and commands of `kochi` that need not import anything: forks of a process that has.

A Snakemake uses a second of a processor before it reads its command line, a `kochi` a third of one,
and the tests start some thousands. There is a server for each of the two. That of Snakemake imports
what a run with the local executor imports, and the libraries that Kochi uses; the other one the
modules of all commands. Each run is a process of its own with its own arguments, directory,
environment and streams, as after `python -m snakemake` or `python -m snakemake_kochi.cli`;
tests/package/test_preloaded_programs.py compares the two.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TextIO

_MODULES = ("snakemake", "snakemake_kochi.cli")
_SAFE_PATH = "-P"
_STREAMS = ("stdin", "stdout", "stderr")
_MESSAGE = 1 << 20  # the bytes of a request, at most
_NUMBER = 20  # the bytes of a process's number
_END_LIMIT = 10  # seconds for the server to notice that no more runs will come
# What a run of Kochi's rules and its executor import of other projects; not our own, which is what
# is tested. (Snakemake imports pandas when it first compares the `params` of a rule.)
_FURTHER = ("attr", "filelock", "git", "jsonschema", "pandas", "pathspec")
# Room for the environment of a run where the kernel shows that of a process.
_ROOM = "ROOM_FOR_ANOTHER_ENVIRONMENT"
_ROOM_BYTES = 100_000


class PreloadedPrograms:
    """The side of the tests: starts a server with the first run of its program, and ends all with
    `close`. The runs have this PYTHONPATH."""

    def __init__(self, python_path: str) -> None:
        self._python_path = python_path
        self._servers: dict[str, _Server] = {}
        self._fixed: dict[str, str] = {}
        self._starting = threading.Lock()

    def serves(self, command: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Whether the command is one of the programs, for whose interpreter nothing else is set."""
        if not self._servers:
            # The first test of a process may have another path than the tests after it.
            self._fixed = {**_of_interpreter(os.environ), "PYTHONPATH": self._python_path}
        return _program(command) is not None and _of_interpreter(environment) == self._fixed

    def start(
        self,
        command: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str],
        *,
        given: str = "",
        output: IO[bytes] | None = None,
        apart: bool = False,
        start_new_session: bool = False,
    ) -> ProgramRun:
        """Standard input is the text `given`. Both other streams go to `output`, or else to the
        run's `stdout`; or `apart`, the errors to its `stderr`."""
        program = _program(command)
        assert program is not None
        with self._starting:
            if program.module not in self._servers:
                self._servers[program.module] = _Server(program.module, self._fixed)
        request = {
            "module": program.module,
            "arguments": program.arguments,
            "safe_path": program.safe_path,
            "directory": os.path.abspath(cwd),
            "environment": dict(environment),
            "start_new_session": start_new_session,
        }
        reader, writer = os.pipe() if output is None else (None, os.dup(output.fileno()))
        second, errors = os.pipe() if apart else (None, os.dup(writer))
        status, noted = os.pipe()
        theirs = [_pipe_with(given.encode()), writer, errors, noted]
        try:
            self._servers[program.module].send(json.dumps(request).encode(), theirs)
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        return ProgramRun(tuple(command), status, reader, second)

    def close(self) -> None:
        for server in self._servers.values():
            server.close()
        self._servers.clear()


class _Server:
    """The process that has imported what the program `module` imports. `fixed`: the variables of
    its interpreter, which are those of all runs."""

    def __init__(self, module: str, fixed: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # It outlives the test, which must not take it for a process of its own.
        names = [name for name in os.environ if not name.startswith("KOCHI_")]
        environment = {name: os.environ[name] for name in names}
        with theirs:
            self._process = subprocess.Popen(
                # -P: this file's directory is on no run's path.
                [sys.executable, "-P", __file__, module, str(theirs.fileno())],
                env={**environment, **fixed, _ROOM: " " * _ROOM_BYTES},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def send(self, request: bytes, descriptors: Sequence[int]) -> None:
        socket.send_fds(self._socket, [request], descriptors)

    def close(self) -> None:
        self._socket.close()
        try:
            self._process.wait(_END_LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class ProgramRun:
    """A started one, with the methods of a subprocess.Popen with text=True."""

    def __init__(
        self, command: tuple[str, ...], status: int, output: int | None, errors: int | None
    ) -> None:
        self.args = command
        self.returncode: int | None = None
        self.stdout = None if output is None else os.fdopen(output, "r", errors="replace")
        self.stderr = None if errors is None else os.fdopen(errors, "r", errors="replace")
        self._status = os.fdopen(status, "rb", buffering=0)
        self._reading: list[threading.Thread] = []
        self._said: dict[TextIO | None, str | None] = {None: None}
        self.pid = int(self._status.read(_NUMBER))

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._status, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0)
            with self._status:
                self.returncode = os.waitstatus_to_exitcode(int(self._status.read()))
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str | None, str | None]:
        """Raises subprocess.TimeoutExpired, after which the rest can be asked for once more."""
        end = None if timeout is None else time.monotonic() + timeout

        def rest() -> float | None:
            return None if end is None else max(0, end - time.monotonic())

        if not self._reading:
            for stream in filter(None, (self.stdout, self.stderr)):
                self._reading.append(
                    threading.Thread(target=self._read, args=(stream,), daemon=True)
                )
                self._reading[-1].start()
        for thread in self._reading:
            thread.join(rest())
            if thread.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(rest())
        return self._said[self.stdout], self._said[self.stderr]

    def _read(self, stream: TextIO) -> None:
        with stream:
            self._said[stream] = stream.read()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@dataclass(frozen=True)
class _Program:
    """What `python -m MODULE ARGUMENTS` runs. With a `safe_path`, as after `python -P`, the
    directory in which it starts is on no path."""

    module: str
    arguments: tuple[str, ...]
    safe_path: bool


def _program(command: Sequence[str]) -> _Program | None:
    """The one that a command starts, if it is here."""
    python, *words = command
    safe_path = words[:1] == [_SAFE_PATH]
    option, module, *arguments = [*words[safe_path:], "", ""]
    if python != sys.executable or option != "-m" or module not in _MODULES:
        return None
    return _Program(module, tuple(arguments[:-2]), safe_path)


def _pipe_with(given: bytes) -> int:
    """The end to read from of a pipe that gets these bytes."""
    reader, writer = os.pipe()

    def write() -> None:
        with contextlib.suppress(BrokenPipeError), os.fdopen(writer, "wb", buffering=0) as stream:
            stream.write(given)

    if given:
        # A pipe takes no more than its reader has left room for.
        threading.Thread(target=write, daemon=True).start()
    else:
        os.close(writer)
    return reader


def _of_interpreter(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that an interpreter, or a module that chooses, reads when it starts."""
    fixed = ("PYTHON", "LC_", "LANG", "TZ")
    names = [name for name in environment if name.startswith(fixed)]
    return {name: environment[name] for name in names}


# ---- the server


def _modules_of_a_run() -> list[str]:
    """What a run imports, in its order."""
    reader, writer = os.pipe()
    if not os.fork():
        with tempfile.TemporaryDirectory() as directory:
            os.chdir(directory)
            snakefile = Path("Snakefile")
            snakefile.write_text("rule all:\n    output: 'out'\n    shell: 'touch out'\n")
            sys.argv = ["snakemake", "--executor", "local", "--cores", "1", "--quiet", "all"]
            os.environ["HOME"] = directory
            for stream in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
            with contextlib.suppress(SystemExit):
                runpy.run_module("snakemake", run_name="__main__", alter_sys=True)
            with open(writer, "w") as names:
                names.write("\n".join(sys.modules))
            os._exit(0)
    os.close(writer)
    with open(reader) as names:
        found = names.read().splitlines()
    os.wait()
    return found


def _become(request: Mapping[str, Any], streams: Sequence[int], own: Mapping[str, str]) -> None:
    """What a new process has, `own` being what Python sets in its environment."""
    environment = request["environment"]
    _show_environment(environment)
    os.environ.update({**own, **environment})
    for number, (name, stream) in enumerate(zip(_STREAMS, streams, strict=True)):
        os.dup2(stream, number)
        os.close(stream)
        setattr(sys, name, _opened_again(getattr(sys, name)))
    os.chdir(request["directory"])
    if request["start_new_session"]:
        os.setsid()
    if not request["safe_path"]:
        sys.path.insert(0, request["directory"])
    sys.argv = [request["module"], *request["arguments"]]
    # What depends on where, and with which variables, a module was imported.
    tempfile.tempdir = None
    if "snakemake.workflow" in sys.modules:
        sys.modules["snakemake.workflow"].Workflow._rundir = request["directory"]


def _opened_again(stream: TextIO) -> TextIO:
    """A standard stream whose number another file has got: as that file can be used."""
    return open(
        stream.fileno(),
        stream.mode,
        buffering=1 if stream.line_buffering else -1,
        encoding=stream.encoding,
        errors=stream.errors,
        closefd=False,
    )


def _show_environment(environment: Mapping[str, str]) -> None:
    """Write it where the kernel, and whoever asks it, finds that of a process."""
    numbers = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(numbers[47]), int(numbers[48])  # proc(5): env_start, env_end
    block = b"".join(os.fsencode(f"{name}={value}\0") for name, value in environment.items())
    assert len(block) <= end - start, "the environment of a run is too large"
    os.environ.clear()  # nothing points there any more
    ctypes.memmove(start, block.ljust(end - start, b"\0"), end - start)


def _serve(requests: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Returns in the process of each run."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, _MESSAGE, len(_STREAMS) + 1)
        if not message:
            os._exit(0)
        *streams, status = descriptors
        if not os.fork():  # the one that waits for the run
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if not (pid := os.fork()):
                os.close(status)
                requests.close()
                return json.loads(message), streams
            for stream in streams:
                os.close(stream)
            os.write(status, f"{pid:{_NUMBER}}".encode())
            os.write(status, f"{os.waitpid(pid, 0)[1]}".encode())
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)


def _import_for_snakemake() -> None:
    importlib.import_module("snakemake.cli")  # what is below it cannot be imported in any order
    for name in (*_modules_of_a_run(), *_FURTHER):
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def _import_for_kochi() -> None:
    package = importlib.import_module("snakemake_kochi.cli")
    for module in pkgutil.walk_packages(package.__path__, "snakemake_kochi.cli."):
        if not module.name.endswith(".__main__"):
            importlib.import_module(module.name)


def _main() -> str:
    """Returns in the process of each run."""
    _, module, number = sys.argv
    own = {name: os.environ[name] for name in ("LC_CTYPE",) if name in os.environ}
    _import_for_snakemake() if module == "snakemake" else _import_for_kochi()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    request, streams = _serve(socket.socket(fileno=int(number)))
    _become(request, streams, own)
    return module


if __name__ == "__main__":
    runpy.run_module(_main(), run_name="__main__", alter_sys=True)
