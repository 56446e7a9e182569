"""Snakemakes that need not import Snakemake: forks of one process that has.

A Snakemake uses a second of a processor before it reads its command line, and the tests start some
hundreds. The server here imports what a run with the local executor imports, and the libraries that
Kochi uses. Each run is a process of its own with its own arguments, directory, environment and
streams, as after `python -m snakemake`; tests/package/test_preloaded_snakemake.py compares the two.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
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
from pathlib import Path
from typing import IO, Any, TextIO

_REPOSITORY = Path(__file__).resolve().parents[1]
_COMMAND = (sys.executable, "-m", "snakemake")
_MESSAGE = 1 << 20  # the bytes of a request, at most
_NUMBER = 20  # the bytes of a process's number
_END_LIMIT = 10  # seconds for the server to notice that no more runs will come
# What a run of Kochi's rules and its executor import of other projects; not our own, which is what
# is tested. (Snakemake imports pandas when it first compares the `params` of a rule.)
_FURTHER = ("attr", "filelock", "git", "jsonschema", "pandas", "pathspec")
# Room for the environment of a run where the kernel shows that of a process.
_ROOM = "ROOM_FOR_ANOTHER_ENVIRONMENT"
_ROOM_BYTES = 100_000


class PreloadedSnakemake:
    """The side of the tests: starts the server with the first run, and ends it with `close`."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._fixed: dict[str, str] = {}
        self._starting = threading.Lock()

    def serves(self, command: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Whether the command is a Snakemake, for whose interpreter nothing else is set."""
        if self._server is None:
            # The first test of a process may have another path than the tests after it.
            self._fixed = {**_of_interpreter(os.environ), "PYTHONPATH": str(_REPOSITORY)}
        is_snakemake = tuple(command[: len(_COMMAND)]) == _COMMAND
        return is_snakemake and _of_interpreter(environment) == self._fixed

    def start(
        self,
        command: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str],
        *,
        output: IO[bytes] | None = None,
        start_new_session: bool = False,
    ) -> SnakemakeRun:
        """Both streams go to `output`, or else to the run's `stdout`."""
        with self._starting:
            if self._server is None:
                self._start_server()
        request = {
            "arguments": list(command[len(_COMMAND) :]),
            "directory": os.path.abspath(cwd),
            "environment": dict(environment),
            "start_new_session": start_new_session,
        }
        reader, writer = os.pipe() if output is None else (None, os.dup(output.fileno()))
        status, noted = os.pipe()
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], [writer, noted])
        finally:
            os.close(writer)
            os.close(noted)
        return SnakemakeRun(tuple(command), status, reader)

    def close(self) -> None:
        if self._server is not None:
            self._socket.close()
            try:
                self._server.wait(_END_LIMIT)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()
            self._server = None

    def _start_server(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # It outlives the test, which must not take it for a process of its own.
        names = [name for name in os.environ if not name.startswith("KOCHI_")]
        environment = {name: os.environ[name] for name in names}
        with theirs:
            self._server = subprocess.Popen(
                # -P: this file's directory is on no run's path.
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                env={**environment, **self._fixed, _ROOM: " " * _ROOM_BYTES},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )


class SnakemakeRun:
    """A started one, with the methods of a subprocess.Popen with text=True."""

    def __init__(self, command: tuple[str, ...], status: int, output: int | None) -> None:
        self.args = command
        self.returncode: int | None = None
        self.stdout = None if output is None else os.fdopen(output, "r", errors="replace")
        self._status = os.fdopen(status, "rb", buffering=0)
        self._reading: threading.Thread | None = None
        self._said = ""
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

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Raises subprocess.TimeoutExpired, after which the rest can be asked for once more."""
        end = None if timeout is None else time.monotonic() + timeout
        if self._reading is None and self.stdout is not None:
            self._reading = threading.Thread(target=self._read, args=(self.stdout,), daemon=True)
            self._reading.start()
        if self._reading is not None:
            self._reading.join(timeout)
            if self._reading.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(None if end is None else max(0, end - time.monotonic()))
        return self._said, None

    def _read(self, stream: TextIO) -> None:
        with stream:
            self._said = stream.read()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _of_interpreter(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that an interpreter reads when it starts."""
    names = [name for name in environment if name.startswith(("PYTHON", "LC_", "LANG", "TZ"))]
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


def _become(request: Mapping[str, Any], output: int, own: Mapping[str, str]) -> None:
    """What a new process has, `own` being what Python sets in its environment."""
    environment = request["environment"]
    _show_environment(environment)
    os.environ.update({**own, **environment})
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.chdir(request["directory"])
    if request["start_new_session"]:
        os.setsid()
    sys.path.insert(0, request["directory"])
    sys.argv = ["snakemake", *request["arguments"]]
    # What depends on where, and with which variables, a module was imported.
    tempfile.tempdir = None
    sys.modules["snakemake.workflow"].Workflow._rundir = request["directory"]


def _show_environment(environment: Mapping[str, str]) -> None:
    """Write it where the kernel, and whoever asks it, finds that of a process."""
    numbers = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(numbers[47]), int(numbers[48])  # proc(5): env_start, env_end
    block = b"".join(os.fsencode(f"{name}={value}\0") for name, value in environment.items())
    assert len(block) <= end - start, "the environment of a run is too large"
    os.environ.clear()  # nothing points there any more
    ctypes.memmove(start, block.ljust(end - start, b"\0"), end - start)


def _serve(requests: socket.socket) -> tuple[dict[str, Any], int]:
    """Returns in the process of each run."""
    while True:
        message, (*descriptors,), _, _ = socket.recv_fds(requests, _MESSAGE, 2)
        if not message:
            os._exit(0)
        output, status = descriptors
        if not os.fork():  # the one that waits for the run
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if not (pid := os.fork()):
                os.close(status)
                requests.close()
                return json.loads(message), output
            os.close(output)
            os.write(status, f"{pid:{_NUMBER}}".encode())
            os.write(status, f"{os.waitpid(pid, 0)[1]}".encode())
            os._exit(0)
        os.close(output)
        os.close(status)


def _main() -> None:
    importlib.import_module("snakemake.cli")  # what is below it cannot be imported in any order
    own = {name: os.environ[name] for name in ("LC_CTYPE",) if name in os.environ}
    for name in (*_modules_of_a_run(), *_FURTHER):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    request, output = _serve(socket.socket(fileno=int(sys.argv[1])))
    _become(request, output, own)


if __name__ == "__main__":
    _main()
    runpy.run_module("snakemake", run_name="__main__", alter_sys=True)
