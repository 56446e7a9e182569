"""The worker's own account of itself, written often enough for people and no more; and whether
somebody else has presumed it dead meanwhile."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import to_json, write_atomically
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.heartbeat import LATE, time_awake_or_asleep
from snakemake_kochi.queue.postponed import Complaints
from snakemake_kochi.queue.ticket import now
from snakemake_kochi.queue.workers import WorkerState, read_presumed_dead

_log = logging.getLogger(__name__)

_LEAST_BETWEEN = 0.5  # seconds; short jobs must not make a write each
_UNWRITTEN = "the worker's state cannot be written now"


class StateFile:
    """worker.json: `update` for what others act upon, `touch` for what may be a little late."""

    def __init__(self, machine: MachinePaths, state: WorkerState) -> None:
        self.state = state
        self._machine = machine
        self._path = machine.worker(state.worker).state
        self._written = time.monotonic()
        self._looked = time_awake_or_asleep()
        self._lost_to: str | None = None
        self._changed = False
        self._complaints = Complaints()

    @property
    def deadline(self) -> float:
        """When `write_when_due` will write, in monotonic seconds."""
        heartbeat = self.state.heartbeat_interval
        return self._written + (min(_LEAST_BETWEEN, heartbeat) if self._changed else heartbeat)

    @property
    def lost_to(self) -> str | None:
        """The host on which the worker was presumed dead: then its tickets are not its own any
        more, for good. None when it was not; to be asked before it claims or starts anything."""
        asleep = time_awake_or_asleep() - self._looked
        if asleep > LATE * self.state.heartbeat_interval:
            self._look_for_loss()
        return self._lost_to

    def touch(self, **changes: Any) -> None:
        """Change fields of the state; written when it is due."""
        self.state = replace(self.state, **changes)
        self._changed = True

    def update(self, **changes: Any) -> bool:
        """Change fields of the state; written now. Returns whether it was: if not, it is tried
        again with `write_when_due`, and others act upon what was there before."""
        self.touch(**changes)
        self._write()
        return not self._changed

    def write_when_due(self) -> None:
        if time.monotonic() >= self.deadline:
            self._write()

    @contextlib.contextmanager
    def signs_of_life(self) -> Iterator[None]:
        """Give a sign of life also while the worker waits for a lock: how long others hold it says
        nothing about this worker."""
        interval = self.state.heartbeat_interval
        previous = signal.signal(signal.SIGALRM, self._give_sign)
        signal.setitimer(signal.ITIMER_REAL, interval, interval)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, previous)

    def _give_sign(self, *_: object) -> None:
        if time.monotonic() > self.deadline + 0.5 * self.state.heartbeat_interval:
            self._set_time()

    def _write(self) -> None:
        self._written = time.monotonic()
        self._changed = False
        self.state = replace(self.state, heartbeat=self.state.heartbeat + 1, updated=now())
        try:
            write_atomically(self._path, to_json(self.state.to_dict()))
        except OSError as error:
            # A full disk must not end the jobs.
            self._changed = True
            self._complaints.about(_UNWRITTEN, error)
            self._set_time()
        else:
            self._complaints.over(_UNWRITTEN)
        self._look_for_loss()

    def _set_time(self) -> None:
        # Observers know this for a sign of life, and it needs no room on the disk.
        with contextlib.suppress(OSError):
            os.utime(self._path)

    def _look_for_loss(self) -> None:
        self._looked = time_awake_or_asleep()
        if self._lost_to is None:
            try:
                self._lost_to = read_presumed_dead(self._machine, self.state.worker).observer
            except DamagedFileError:
                self._lost_to = "another host"
            except OSError:
                return
            _log.warning("presumed dead by %s: ending the jobs", self._lost_to)
