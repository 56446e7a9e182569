"""The worker's side of a spawner: a process that forks the main processes of jobs for the worker.

`spawner_process.py` has the messages between the two, and the spawner of shell jobs itself. That of
phases is in `phase_process.py`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import snakemake_kochi
from snakemake_kochi.next.worker.shell_job import TEMPORARY_SOURCES, find_temporary_directory
from snakemake_kochi.queue.ticket import ShellJob, Ticket
from snakemake_kochi.worker.runners import spawner_process
from snakemake_kochi.worker.runners.interface import Child

_log = logging.getLogger(__name__)

# Linux limits a message of a socket to some 200 KiB.
_MOST_BYTES = 128 * 1024
_END_PATIENCE = 1.0  # seconds until a killed spawner is left to itself
# Of itself, a spawner of shell jobs needs nothing: neither packages nor what is set for the user.
_BARE = (sys.executable, "-I", "-S")


class SpawnerFailedError(Exception):
    """The spawner did not answer, or the request is too large for it.

    No process of the job can begin, because its gate is never opened.
    """


class Spawner:
    """Starts the spawner process when it is needed, and again when it has died.

    After some failures in a row it is not used any more. `used`: when it was used last, in
    monotonic seconds. `memory_mb`: what a spawner that greets the worker takes, in MiB; None
    before.
    """

    def __init__(
        self,
        patience: float = 10.0,
        most_failures: int = 3,
        program: str = spawner_process.__file__,
        interpreter: Sequence[str] = _BARE,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start nothing yet.

        `patience`: seconds that an answer may take; it takes a millisecond, and the start of the
        process thirty. `most_failures`: the number of failures in a row after which the spawner is
        not used any more. `program`: what the `interpreter` executes, in this `environment`, by
        default that of the worker.
        """
        self._patience = patience
        self._most_failures = most_failures
        self._command = (*interpreter, program)
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._failures = 0
        self._requests = 0
        self._temporary: dict[tuple[str | None, ...], str] = {}
        self.used = time.monotonic()
        self.memory_mb: int | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        return () if self._process is None else (self._process.pid,)

    @property
    def is_usable(self) -> bool:
        return self._failures < self._most_failures

    @property
    def is_running(self) -> bool:
        """Whether the process was started, and nobody has noticed its end yet."""
        return self._link is not None

    def fileno(self) -> int:
        """The descriptor of a running spawner's socket."""
        assert self._link is not None
        return self._link.fileno()

    def start(self) -> None:
        """Start the process if it does not run, without waiting for it. Raises OSError."""
        if self._link is None:
            try:
                self._link = self._start()
            except OSError:
                self._failures += 1
                raise
            self.used = time.monotonic()

    def attend(self) -> None:
        """Handle the greeting and the end of a running spawner; never waits.

        A spawner that ends before it has greeted the worker has failed.
        """
        while self._link is not None and select.select([self._link], [], [], 0)[0]:
            try:
                found = self._link.recv(64)
            except OSError:
                found = b""
            if found:
                self.memory_mb = int(found.split()[1])
            else:
                self._failures += self.memory_mb is None
                self.close()

    def fork(
        self,
        runner: str,
        ticket: Ticket,
        shell: ShellJob,
        log: int,
        environment: Mapping[str, str],
        cpus: Collection[int] | None,
    ) -> Child:
        """Have the spawner fork the main process of a job; see `Runner.start`.

        `environment` is all of the job's. Raises OSError when no process can be made, and
        SpawnerFailedError.
        """
        names = ("job", "name", "directory", "outputs", "logs")
        request = {
            "job": {name: getattr(ticket, name) for name in names},
            "shell": shell.to_dict(),
            "environment": environment,
            "temporary": self._temporary_directory(environment),
            "cpus": None if cpus is None else list(cpus),
        }
        held, gate = os.pipe()
        try:
            return Child(runner, self._spawn(request, log, held), gate)
        except BaseException:
            os.close(gate)
            raise
        finally:
            os.close(held)

    def _temporary_directory(self, environment: Mapping[str, str]) -> str | None:
        """The temporary directory of a job with this environment, if all such jobs have the same.

        It is determined once, because that takes longer than the rest of the preparation. None
        where each job must determine it: the directory depends on the job's directory, or may not
        exist yet.
        """
        key = tuple(environment.get(name) for name in TEMPORARY_SOURCES)
        given = [path for path in key if path]
        if not all(os.path.isabs(path) and os.access(path, os.W_OK) for path in given):
            return None
        if key not in self._temporary:
            with contextlib.suppress(OSError):  # then the job reports it
                self._temporary[key] = find_temporary_directory(environment)
        return self._temporary.get(key)

    def _spawn(self, request: Mapping[str, Any], log: int, held: int) -> int:
        """Have the spawner fork a process; return the number of that process.

        The process is a child of the worker and the leader of a session. It executes the request
        once it reads its release from `held`. Raises OSError when no process can be made, and
        SpawnerFailedError.
        """
        self._requests += 1
        self.used = time.monotonic()
        data = json.dumps({**request, "number": self._requests}).encode()
        if len(data) > _MOST_BYTES:
            raise SpawnerFailedError(f"the request has {len(data)} bytes")
        try:
            if self._link is None:
                self._link = self._start()
            answer = self._ask(self._link, data, (log, held))
        except (OSError, SpawnerFailedError) as error:
            self._failures += 1
            _log.warning("the spawner %s does not work: %s", self._command[-1], error)
            self.close()
            raise SpawnerFailedError(str(error)) from error
        self._failures = 0
        if answer < 0:
            raise OSError(-answer, os.strerror(-answer))
        return answer

    def _ask(self, link: socket.socket, data: bytes, descriptors: Sequence[int]) -> int:
        socket.send_fds(link, [data], descriptors)
        # A request that was interrupted by a kill can leave behind an answer that was never read.
        request = 0
        while request != self._requests:
            if not (found := link.recv(64)):
                raise SpawnerFailedError("it has died")
            request, answer = map(int, found.split())
        if answer == 0:
            raise SpawnerFailedError("the process that it had forked was killed")
        if answer > 0:
            # Raises ChildProcessError if the process is not a child of the worker.
            os.waitid(os.P_PID, answer, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return answer

    def _start(self) -> socket.socket:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(self._patience)
        # The directory of this package, and those of the worker for modules of other packages.
        packages = [str(Path(snakemake_kochi.__file__).parents[1])]
        packages += [path for path in sys.path if os.path.isabs(path)]
        try:
            with its:
                self._process = subprocess.Popen(
                    [*self._command, str(its.fileno()), str(os.getpid()), *packages],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    cwd="/",
                    env=self._environment,
                    pass_fds=[its.fileno()],
                    start_new_session=True,
                )
        except BaseException:
            ours.close()
            raise
        return ours

    def close(self) -> None:
        """End the spawner process; the next request starts it again."""
        self.memory_mb = None
        if self._link is not None:
            self._link.close()
            self._link = None
        if self._process is not None:
            self._process.kill()
            # Without a limit, the worker would hang with a process whose filesystem hangs.
            with contextlib.suppress(ChildProcessError, subprocess.TimeoutExpired):
                self._process.wait(_END_PATIENCE)
            self._process = None
