"""The runner of phases: a copy of a process that has imported them executes the job.

A rule that does nothing but run a phase starts a Python, which takes ten times as long as the rest
of a short run. A copy of a process that has started already is the same process otherwise.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import select
import time
from collections.abc import Collection, Mapping

from snakemake_kochi.queue.ticket import Ticket
from snakemake_kochi.worker.runners.interface import Child, Runner, RunnerUnavailableError
from snakemake_kochi.worker.runners.spawner import Spawner, SpawnerFailedError

_log = logging.getLogger(__name__)

_MODULE = "snakemake_kochi.worker.runners.phase_process"
_PYTHON = "KOCHI_PYTHON"
# Variables that a Python, its libraries or its loader read when it starts, by the beginnings of
# their names. Jobs with different values have different spawners.
_READ_AT_START = (
    *("GCONV_PATH", "GLIBC_", "HOME", "LANG", "LC_", "LD_", "LOCPATH", "MALLOC_"),
    *("NLSPATH", "PYTHON", "TZ", "VIRTUAL_ENV"),
)
# Bash acts on them before it starts the Python, and no bash is started.
_OF_BASH = ("BASH_COMPAT", "BASH_ENV", "BASHOPTS", "POSIXLY_CORRECT", "SHELLOPTS")
# Most workers serve one run at a time.
_MOST_SPAWNERS = 2
# Seconds. A spawner that has not imported the phases by then is not used.
_START_PATIENCE = 60.0
# The share of the worker's memory that one may take, as of the zygotes.
_MEMORY_SHARE = 0.25


class PhaseRunner(Runner):
    """Runs phases of the rule library; see also `interface.Watched`."""

    name = "phase"

    def __init__(
        self, environment: Mapping[str, str], memory_mb: int, patience: float = 10.0
    ) -> None:
        """Begin without spawners.

        `environment`: the common environment of all jobs. `memory_mb`: the memory of the worker.
        `patience`: see `Spawner`.
        """
        self._environment = dict(environment)
        self._most_memory_mb = memory_mb * _MEMORY_SHARE
        self._patience = patience
        self._spawners: dict[str, Spawner] = {}
        self._unfit: dict[str, str] = {}
        self._epoll = select.epoll()
        # Asked about three times for each job.
        self._last: tuple[Ticket, dict[str, str], str] | None = None

    # ---- Runner

    def can_run(self, ticket: Ticket) -> bool:
        return _is_phase(ticket) and not self.why_not(ticket)

    def why_not(self, ticket: Ticket) -> str:
        if not _is_phase(ticket):
            return ""
        environment, key = self._kind_of(ticket)
        if not os.path.isabs(environment.get(_PYTHON, "")):
            return f"{_PYTHON} is not the path of a Python"
        for name in _OF_BASH:
            if name in environment:
                return f"{name} is set"
        paths = environment.get("PYTHONPATH", "")
        if paths and not all(map(os.path.isabs, paths.split(os.pathsep))):
            # A Python finds them from its directory, which is another one for each job.
            return "PYTHONPATH has a path that is not absolute"
        return self._unfit.get(key, "")

    def is_ready(self, ticket: Ticket) -> bool:
        environment, key = self._kind_of(ticket)
        self.attend()
        spawner = self._spawners.get(key)
        if spawner is None:
            while len(self._spawners) >= _MOST_SPAWNERS:
                self._drop(min(self._spawners, key=lambda each: self._spawners[each].used))
            command = (environment[_PYTHON], "-P", "-m")
            spawner = self._spawners[key] = Spawner(
                self._patience, program=_MODULE, interpreter=command, environment=environment
            )
        if key not in self._unfit and not spawner.is_running:
            self._start(key, spawner)
        return key in self._unfit or spawner.memory_mb is not None

    def start(
        self,
        ticket: Ticket,
        log: int,
        environment: Mapping[str, str],
        cpus: Collection[int] | None = None,
    ) -> Child:
        shell = ticket.shell
        assert shell is not None
        _, key = self._kind_of(ticket)
        spawner = self._spawners.get(key)
        if spawner is None or spawner.memory_mb is None:
            raise RunnerUnavailableError("no spawner of phases is ready")
        try:
            whole = {**environment, **shell.environment}
            return spawner.fork(self.name, ticket, shell, log, whole, cpus)
        except SpawnerFailedError as error:
            self._note_failure(key)
            raise RunnerUnavailableError(str(error)) from error
        except OSError as error:
            if error.errno == errno.ESTALE:
                spawner.close()
                raise RunnerUnavailableError("the installed package has changed") from error
            if error.errno == errno.ENOTSUP:
                raise RunnerUnavailableError("it reads a variable of this job alone") from error
            raise

    def close(self) -> None:
        for spawner in self._spawners.values():
            spawner.close()

    # ---- Watched

    def fileno(self) -> int:
        return self._epoll.fileno()

    @property
    def helpers(self) -> tuple[int, ...]:
        return tuple(pid for spawner in self._spawners.values() for pid in spawner.pids)

    def attend(self) -> None:
        for key, spawner in self._spawners.items():
            was_ready = spawner.memory_mb is not None
            spawner.attend()
            memory = spawner.memory_mb
            if spawner.is_running and memory is None:
                if time.monotonic() > spawner.used + _START_PATIENCE:
                    spawner.close()
                    self._give_up(key, f"it did not start within {_START_PATIENCE:.0f} seconds")
            elif memory is not None and not was_ready:
                _log.info("a spawner of phases is ready, %d MiB", memory)
                if memory > self._most_memory_mb:
                    spawner.close()
                    self._give_up(key, f"it takes {memory} MiB")
            self._note_failure(key)

    # ---- spawners

    def _kind_of(self, ticket: Ticket) -> tuple[dict[str, str], str]:
        """The environment that jobs like this one have in common, and its key; a worker adds to it
        what one job alone has."""
        if self._last is None or self._last[0] is not ticket:
            shell = ticket.shell
            assert shell is not None
            environment = {**self._environment, **ticket.environment, **shell.environment}
            # Without the path of a Python there is no spawner of that kind.
            key = _key(environment) if _PYTHON in environment else ""
            self._last = ticket, environment, key
        return self._last[1:]

    def _start(self, key: str, spawner: Spawner) -> None:
        try:
            spawner.start()
        except OSError as error:
            _log.warning("no spawner of phases can be started: %s", error)
            self._note_failure(key)
        else:
            self._epoll.register(spawner, select.EPOLLIN)

    def _drop(self, key: str) -> None:
        self._spawners.pop(key).close()

    def _note_failure(self, key: str) -> None:
        if not self._spawners[key].is_usable:
            self._give_up(key, "it failed several times in a row")

    def _give_up(self, key: str, why: str) -> None:
        if key not in self._unfit:
            self._unfit[key] = why
            _log.warning("no spawner of phases, the jobs go to the next runner: %s", why)


def _is_phase(ticket: Ticket) -> bool:
    shell = ticket.shell
    return shell is not None and bool(shell.phase) and shell.benchmark is None


def _key(environment: Mapping[str, str]) -> str:
    """Equal for two environments if one spawner can serve both."""
    names = sorted(name for name in environment if name.startswith(_READ_AT_START))
    words = [environment[_PYTHON], [[name, environment[name]] for name in names]]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()
