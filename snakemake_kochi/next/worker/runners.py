"""The ways to execute a ticket, the cheapest first: shell, command."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from snakemake_kochi.next.worker.forks import Exit, Forks
from snakemake_kochi.processes import ProcessIdentity
from snakemake_kochi.queue.ticket import ShellJob, Ticket
from snakemake_kochi.tickets.names import Name
from snakemake_kochi.worker.runners.shell_job import TEMPORARY_SOURCES, find_temporary_directory


class UnfitError(Exception):
    """A runner cannot execute this ticket; the text says why, for people."""


class Runners:
    """Starts the processes of jobs; any thread may call."""

    def __init__(self, forks: Forks) -> None:
        self._forks = forks
        self._temporary: dict[tuple[str | None, ...], str] = {}

    def start(
        self,
        name: Name,
        ticket: Ticket,
        log: int,
        environment: dict[str, str],
        pinned: Collection[int] | None,
        ended: Callable[[Exit], None],
    ) -> tuple[ProcessIdentity, str, str]:
        """The main process, the runner, and why it is not a cheaper one. Raises OSError."""
        skipped: list[str] = []
        for runner, request_of in (("shell", self._shell), ("command", self._command)):
            try:
                request = request_of(ticket, {**environment, "KOCHI_RUNNER": runner})
            except UnfitError as error:
                if str(error):
                    skipped.append(f"no {runner}: {error}")
                continue
            request |= {"job": _described(name, ticket), "cpus": pinned and sorted(pinned)}
            return self._forks.start(request, log, ended), runner, "; ".join(skipped)
        raise AssertionError

    def _command(self, ticket: Ticket, environment: dict[str, str]) -> dict[str, Any]:
        return {"command": list(ticket.command), "shell": None, "environment": environment}

    def _shell(self, ticket: Ticket, environment: dict[str, str]) -> dict[str, Any]:
        if ticket.shell is None:
            raise UnfitError
        if ticket.shell.benchmark is not None:
            raise UnfitError("it has a benchmark")
        environment |= ticket.shell.environment
        _require_here(ticket.shell, environment)
        return {
            "shell": ticket.shell.to_dict(),
            "environment": environment,
            "temporary": self._temporary_directory(environment),
        }

    def _temporary_directory(self, environment: Mapping[str, str]) -> str | None:
        """The temporary directory of a job with this environment, if all such jobs have the same.

        Found once, because that takes longer than the rest of the preparation. None where each job
        must find it: it depends on the job's directory, or may not exist yet.
        """
        key = tuple(environment.get(name) for name in TEMPORARY_SOURCES)
        if not all(os.path.isabs(path) and os.access(path, os.W_OK) for path in key if path):
            return None
        if key not in self._temporary:
            with suppress(OSError):  # then the job reports it
                self._temporary[key] = find_temporary_directory(environment)
        return self._temporary.get(key)


def _described(name: Name, ticket: Ticket) -> dict[str, Any]:
    return {
        "job": f"{name.run}.{name.job}",
        "name": ticket.name,
        "directory": ticket.directory,
        "outputs": ticket.outputs,
        "logs": ticket.logs,
    }


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
