"""Plain shell commands of Snakemake jobs: prepared and executed without a Snakemake.

A small process, the spawner, forks the processes of the jobs. The worker itself forks only jobs
with a benchmark.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import snakemake_kochi
from snakemake_kochi.queue.ticket import Benchmark, ShellJob, Ticket
from snakemake_kochi.worker.runners import job_process
from snakemake_kochi.worker.runners.command import fork_child
from snakemake_kochi.worker.runners.interface import Child, Runner, RunnerUnavailableError
from snakemake_kochi.worker.runners.job_process import (
    CANNOT_EXECUTE,
    NOT_FOUND,
    TEMPORARY_SOURCES,
    UNPREPARED,
    execute_shell_job,
    find_temporary_directory,
    say,
)
from snakemake_kochi.worker.runners.snakemake_internals import UnfitError, load_benchmarks

_log = logging.getLogger(__name__)

# Linux limits a message of a socket to some 200 KiB.
_MOST_BYTES = 128 * 1024


class ShellRunner(Runner):
    """Runs shell commands of Snakemake jobs."""

    name = "shell"

    def __init__(self, spawner: Spawner | None = None) -> None:
        self._spawner = spawner or Spawner()
        self._temporary: dict[tuple[str | None, ...], str] = {}

    @property
    def helpers(self) -> tuple[int, ...]:
        return self._spawner.pids

    def close(self) -> None:
        self._spawner.close()

    def can_run(self, ticket: Ticket) -> bool:
        return ticket.shell is not None

    def start(
        self,
        ticket: Ticket,
        log: int,
        environment: Mapping[str, str],
        cpus: Collection[int] | None = None,
    ) -> Child:
        """As `Runner.start`.

        A job that cannot begin, for want of an input for example, writes a sentence to the log and
        has an exit status of 1.
        """
        shell = ticket.shell
        assert shell is not None
        environment = {**environment, **shell.environment}
        _require_here(shell, environment)
        if shell.benchmark is None and self._spawner.is_usable:
            # Go on: the worker itself forks the process, which takes longer.
            with contextlib.suppress(SpawnerFailedError):
                return self._spawn(ticket, shell, log, environment, cpus)
        measure = None
        if shell.benchmark is not None:
            try:
                # The worker imports it once: that takes 0.04 s of CPU and 4 MB. In the forked
                # process it would take as long for each job, just before a measurement.
                module = load_benchmarks()
            except UnfitError as error:
                raise RunnerUnavailableError(error.message) from error
            measure = partial(_measure, module, ticket, shell.benchmark, environment)
        work = partial(execute_shell_job, ticket, shell, environment, measure=measure)
        return fork_child(self.name, ticket, log, cpus, work)

    def _spawn(
        self,
        ticket: Ticket,
        shell: ShellJob,
        log: int,
        environment: Mapping[str, str],
        cpus: Collection[int] | None,
    ) -> Child:
        names = ("job", "name", "directory", "outputs")
        request = {
            "job": {name: getattr(ticket, name) for name in names},
            "shell": shell.to_dict(),
            "environment": environment,
            "temporary": self._temporary_directory(environment),
            "cpus": None if cpus is None else list(cpus),
        }
        held, gate = os.pipe()
        try:
            return Child(self.name, self._spawner.spawn(request, log, held), gate)
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


def _require_here(shell: ShellJob, environment: Mapping[str, str]) -> None:
    """Raises RunnerUnavailableError where a Snakemake on this node would act differently."""
    program = shell.executable
    if "/" in program:
        is_there = os.access(program, os.X_OK)
    else:
        is_there = shutil.which(program, path=environment.get("PATH")) is not None
    if not is_there:
        raise RunnerUnavailableError(f"no {program} on this node")
    if shell.temporary_directory and shell.temporary_directory in shell.script:
        for name in TEMPORARY_SOURCES:
            path = environment.get(name, "")
            # It is unknown whether the path is quoted in the command, or must be.
            if path and shlex.quote(path) != path:
                raise RunnerUnavailableError(f"{name} is {path!r}, which needs quotes")


# ---- benchmarks


def _measure(
    module: Any,
    ticket: Ticket,
    benchmark: Benchmark,
    environment: Mapping[str, str],
    arguments: list[str],
) -> int:
    """Execute a command under Snakemake's own benchmark, and write the benchmark file.

    Executes the command as often as the rule requires, and writes the file only if every execution
    succeeds. Returns an exit status. The process that the worker forked stays as a supervisor, and
    starts the command as its child in the same session: signals that end one process also reach the
    other.
    """
    # The worker's own log is closed here.
    logging.getLogger().handlers[:] = [logging.StreamHandler()]
    records = []
    for _ in range(benchmark.repeats):
        record = module.BenchmarkRecord()
        try:
            process = subprocess.Popen(arguments, env=environment)
        except OSError as error:
            say(ticket, f"the command {arguments[0]!r} cannot be executed: {error.strerror}")
            return NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_EXECUTE
        with module.benchmarked(process.pid, record):
            status = process.wait()
        if status:
            return status if status > 0 else 128 - status
        records.append(record)
    try:
        module.write_benchmark_records(records, benchmark.file, False)
    except OSError as error:
        say(ticket, f"the benchmark cannot be written: {error}")
        return UNPREPARED
    return 0


# ---- the worker's side of the spawner


class SpawnerFailedError(Exception):
    """The spawner did not answer, or the request is too large for it.

    No process of the job can begin, because its gate is never opened.
    """


class Spawner:
    """Starts the spawner process when it is needed, and again when it has died.

    After some failures in a row it is not used any more.
    """

    def __init__(
        self,
        patience: float = 10.0,
        most_failures: int = 3,
        program: str = job_process.__file__,
    ) -> None:
        """Start nothing yet.

        `patience`: seconds that an answer may take; it takes a millisecond, and the start of the
        process thirty. `most_failures`: the number of failures in a row after which the spawner is
        not used any more. `program`: the file that the process executes.
        """
        self._patience = patience
        self._most_failures = most_failures
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._failures = 0
        self._requests = 0

    @property
    def pids(self) -> tuple[int, ...]:
        return () if self._process is None else (self._process.pid,)

    @property
    def is_usable(self) -> bool:
        return self._failures < self._most_failures

    def spawn(self, request: Mapping[str, Any], log: int, held: int) -> int:
        """Have the spawner fork a process; return the number of that process.

        The process is a child of the worker and the leader of a session. It executes the request
        once it reads its release from `held`. Raises OSError when no process can be made, and
        SpawnerFailedError.
        """
        self._requests += 1
        data = json.dumps({**request, "number": self._requests}).encode()
        if len(data) > _MOST_BYTES:
            raise SpawnerFailedError(f"the request has {len(data)} bytes")
        try:
            if self._link is None:
                self._link = self._start()
            answer = self._ask(self._link, data, (log, held))
        except (OSError, SpawnerFailedError) as error:
            self._failures += 1
            _log.warning("the spawner of shell jobs does not work: %s", error)
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
        # The directory of this package, and those of the worker for modules that are imported late.
        packages = [str(Path(snakemake_kochi.__file__).parents[1])]
        packages += [path for path in sys.path if os.path.isabs(path)]
        command = [sys.executable, "-I", "-S", self._program]
        with its:
            self._process = subprocess.Popen(
                [*command, str(its.fileno()), str(os.getpid()), *packages],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd="/",
                pass_fds=[its.fileno()],
                start_new_session=True,
            )
        return ours

    def close(self) -> None:
        """End the spawner process; the next request starts it again."""
        if self._link is not None:
            self._link.close()
            self._link = None
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(ChildProcessError):
                self._process.wait()
            self._process = None
