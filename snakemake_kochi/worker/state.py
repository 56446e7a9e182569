"""The worker's own account of itself, written often enough for people and no more."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any

from snakemake_kochi.files import to_json, write_atomically
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.ticket import now
from snakemake_kochi.queue.workers import WorkerState

_log = logging.getLogger(__name__)

_HEARTBEAT = 5.0  # seconds between two writings when nothing changed
_LEAST_BETWEEN = 0.5  # seconds; short jobs must not make a write each


class StateFile:
    """worker.json: `update` for what others act upon, `touch` for what may be a little late."""

    def __init__(self, machine: MachinePaths, state: WorkerState) -> None:
        self.state = state
        self._path = machine.worker(state.worker).state
        self._written = time.monotonic()
        self._changed = False

    @property
    def deadline(self) -> float:
        """When `write_when_due` will write, in monotonic seconds."""
        return self._written + (_LEAST_BETWEEN if self._changed else _HEARTBEAT)

    def touch(self, **changes: Any) -> None:
        """Change fields of the state; written when it is due."""
        self.state = replace(self.state, **changes)
        self._changed = True

    def update(self, **changes: Any) -> None:
        """Change fields of the state; written now."""
        self.touch(**changes)
        self._write()

    def write_when_due(self) -> None:
        if time.monotonic() >= self.deadline:
            self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        self._changed = False
        self.state = replace(self.state, heartbeat=self.state.heartbeat + 1, updated=now())
        try:
            write_atomically(self._path, to_json(self.state.to_dict()))
        except OSError as error:
            # Nothing is decided by it on this host; a full disk must not end the jobs.
            _log.warning("the worker's state cannot be written: %s", error)
