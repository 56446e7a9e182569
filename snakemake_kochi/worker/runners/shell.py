"""Plain shell commands of Snakemake's, without a Snakemake: prepared here, and executed."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Collection, Mapping
from typing import Any

from snakemake_kochi.queue.ticket import ShellJob, Ticket
from snakemake_kochi.worker.runners.benchmarking import load_benchmarks, run_measured
from snakemake_kochi.worker.runners.child import Child, fork_child
from snakemake_kochi.worker.runners.interface import RunnerUnavailableError
from snakemake_kochi.worker.runners.job_process import enter, execute, say
from snakemake_kochi.worker.runners.preparation import (
    TEMPORARY_SOURCES,
    UnpreparedError,
    find_temporary_directory,
    prepare,
)
from snakemake_kochi.worker.runners.spawner import Spawner, SpawnerFailedError

_UNPREPARED = 1  # as of a Snakemake that refuses a job


class ShellRunner:
    """See `interface.Runner`."""

    name = "shell"

    def __init__(self) -> None:
        self._spawner = Spawner()
        self._temporary: dict[tuple[str | None, ...], str] = {}

    @property
    def helpers(self) -> tuple[int, ...]:
        return self._spawner.pids

    def close(self) -> None:
        self._spawner.close()

    def can_run(self, ticket: Ticket) -> bool:
        return ticket.shell is not None

    def why_not(self, ticket: Ticket) -> str:
        return ""

    def is_ready(self, ticket: Ticket) -> bool:
        return True

    def start(
        self,
        ticket: Ticket,
        log: int,
        environment: Mapping[str, str],
        cpus: Collection[int] | None = None,
    ) -> Child:
        """As `Runner.start`; a job that cannot begin, for want of an input say, has a sentence in
        the log and an exit status of 1."""
        shell = ticket.shell
        assert shell is not None
        environment = {**environment, **shell.environment}
        _require_here(shell, environment)
        if shell.benchmark is None and self._spawner.is_usable:
            # Else it is forked off the worker itself, which takes longer.
            with contextlib.suppress(SpawnerFailedError):
                return self._spawn(ticket, shell, log, environment, cpus)
        benchmarks = None if shell.benchmark is None else load_benchmarks()
        return fork_child(
            self.name,
            ticket,
            log,
            cpus,
            lambda: _run_shell(ticket, shell, dict(environment), benchmarks),
        )

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
        """Looked for once: that takes longer than the rest of the preparation. None where each
        job has to look: it depends on the job's directory, or may not be there yet."""
        key = tuple(environment.get(name) for name in TEMPORARY_SOURCES)
        given = [path for path in key if path]
        if not all(os.path.isabs(path) and os.access(path, os.W_OK) for path in given):
            return None
        if key not in self._temporary:
            with contextlib.suppress(OSError):  # then the job says so
                self._temporary[key] = find_temporary_directory(environment)
        return self._temporary.get(key)


def _require_here(shell: ShellJob, environment: Mapping[str, str]) -> None:
    """Raises RunnerUnavailableError for what a Snakemake on this node would do in another way."""
    program = shell.executable
    if not (os.access(program, os.X_OK) if "/" in program else _find(program, environment)):
        raise RunnerUnavailableError(f"no {program} on this node")
    if shell.temporary_directory and shell.temporary_directory in shell.script:
        for name in TEMPORARY_SOURCES:
            path = environment.get(name, "")
            # Whether it stands in quotes in the command, or is to, is not known here.
            if path and shlex.quote(path) != path:
                raise RunnerUnavailableError(f"{name} is {path!r}, which takes quotes")


def _find(program: str, environment: Mapping[str, str]) -> str | None:
    return shutil.which(program, path=environment.get("PATH"))


def _run_shell(
    ticket: Ticket, shell: ShellJob, environment: dict[str, str], benchmarks: Any
) -> int:
    """Becomes the command, if it is not measured; returns an exit status."""
    if status := enter(ticket, environment):
        return status
    try:
        script = prepare(ticket, shell, environment)
    except (UnpreparedError, OSError) as error:
        say(ticket, str(error))
        return _UNPREPARED
    arguments = [shell.executable, "-c", script]
    if shell.benchmark is None:
        return execute(ticket, shell.executable, arguments, environment)
    try:
        return run_measured(benchmarks, ticket, shell.benchmark, arguments, environment)
    except OSError as error:
        say(ticket, f"the benchmark cannot be written: {error}")
        return _UNPREPARED
