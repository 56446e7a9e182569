"""Which files of a working directory are being made: its runs, and their jobs in queues.

This module only reads, and takes no lock. A ticket that moves while the queues are listed may be
missed; the next look finds it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import is_same_directory
from snakemake_kochi.heartbeat import LOST_AFTER
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.controllers import ControllerState, list_controllers, outputs_of
from snakemake_kochi.queue.entries import Entry, queue_names, running_entries, waiting_entries
from snakemake_kochi.queue.result import read_attempt
from snakemake_kochi.queue.ticket import read_ticket


@dataclass(frozen=True)
class LiveRun:
    """A run that goes on, as far as this host can see.

    `outputs`: the files that it was to make when it began, None for any.
    """

    controller: str
    host: str
    process: int
    started: str
    outputs: frozenset[str] | None

    def makes(self, file: str) -> bool:
        return self.outputs is None or file in self.outputs


@dataclass(frozen=True)
class LiveJob:
    """A job that waits, or runs since `started`."""

    job: int
    queue: str
    worker: int | None
    started: str | None


@dataclass(frozen=True)
class Making:
    """The runs of a directory, and their jobs by output, relative to the directory."""

    runs: Sequence[LiveRun]
    jobs: Mapping[str, LiveJob]


@dataclass
class MakingWatch:
    """Looks at one directory again and again; opens each ticket once."""

    machine: MachinePaths
    directory: str
    _outputs: dict[str, frozenset[str] | None] = field(default_factory=dict)  # by controller
    _tickets: dict[int, tuple[str, ...]] = field(default_factory=dict)  # outputs, by job
    _started: dict[tuple[int, int], str] = field(default_factory=dict)  # by job and attempt
    _same: dict[str, bool] = field(default_factory=dict)

    def look(self) -> Making:
        """Raises OSError when the files of the machine cannot be listed now."""
        controllers = [
            each
            for each in list_controllers(self.machine)
            if each.directory is not None and self._is_here(each.directory)
        ]
        queues: set[str] = set()
        for each in controllers:
            queues.update(queue_names(self.machine) if each.queues is None else each.queues)
        jobs: dict[str, LiveJob] = {}
        present: dict[int, tuple[str, ...]] = {}
        for name in sorted(queues):
            paths = self.machine.queue(name)
            # A ticket that is claimed in between is in the second listing.
            for entry in (*waiting_entries(paths), *running_entries(paths)):
                present[entry.job] = outputs = self._outputs_of(entry)
                if outputs:
                    jobs |= dict.fromkeys(outputs, self._live(entry, name))
        self._tickets = present
        live = (each for each in controllers if not each.is_dead and not self._is_silent(each))
        return Making([self._run(each) for each in live], jobs)

    def _is_here(self, directory: str) -> bool:
        if directory not in self._same:
            self._same[directory] = is_same_directory(directory, self.directory)
        return self._same[directory]

    def _run(self, state: ControllerState) -> LiveRun:
        if state.identity not in self._outputs:
            self._outputs[state.identity] = outputs_of(self.machine, state.identity)
        return LiveRun(
            controller=state.identity,
            host=state.node.host,
            process=state.process.pid,
            started=state.started,
            outputs=self._outputs[state.identity],
        )

    def _is_silent(self, state: ControllerState) -> bool:
        """Whether a run, perhaps on another host, has given no sign of life for too long."""
        if state.heartbeat is None:
            return False
        with contextlib.suppress(OSError):
            age = time.time() - self.machine.controller(state.identity).state.stat().st_mtime
            return age > 2 * LOST_AFTER * state.heartbeat_interval
        return False

    def _outputs_of(self, entry: Entry) -> tuple[str, ...]:
        """The outputs of a ticket, none if it is of another directory or cannot be read."""
        if entry.job not in self._tickets:
            outputs: tuple[str, ...] = ()
            with contextlib.suppress(OSError, DamagedFileError):
                ticket = read_ticket(entry.path)
                if self._is_here(ticket.directory):
                    outputs = ticket.outputs
            self._tickets[entry.job] = outputs
        return self._tickets[entry.job]

    def _live(self, entry: Entry, queue: str) -> LiveJob:
        started = None
        if entry.worker is not None:
            key = (entry.job, entry.attempt)
            if key not in self._started:
                with contextlib.suppress(OSError, DamagedFileError):
                    path = self.machine.job(entry.job).attempt(entry.attempt)
                    self._started[key] = read_attempt(path).started
            started = self._started.get(key)
        return LiveJob(entry.job, queue, entry.worker, started)
