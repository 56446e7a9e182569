"""The state that a worker publishes, and whether others have presumed the worker dead.

The worker publishes often enough for people, and not more often.
"""

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
from snakemake_kochi.files import is_removed, to_json, write_atomically
from snakemake_kochi.notices import Notices
from snakemake_kochi.own_environment import OwnEnvironment
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.heartbeat import LATE, read_presumed_dead, time_awake_or_asleep
from snakemake_kochi.queue.ticket import now
from snakemake_kochi.queue.workers import WorkerState

_log = logging.getLogger(__name__)

_LEAST_BETWEEN = 0.5  # seconds; short jobs must not cause a write each
# The number of heartbeats from one write to the next, while the state does not change. The others
# only set the time of the file, which some filesystems show to other nodes late: three times as
# many heartbeats without a write would make the worker seem dead there.
_BEATS_PER_WRITE = 4
# In heartbeats: after how many without a job a worker begins to rest, and how many times farther
# apart its heartbeats are then. Its death would lose nothing.
_REST_AFTER = 6
_RESTING = 4
# In heartbeats: a loop that has not come round for so long hangs. Then the signs of life end, the
# supervisor ends the worker with its jobs, and other workers get them.
_HANGS_AFTER = 60
# A slow write is repeated less often: after so many times its duration.
_WRITES_APART = 20.0
_UNWRITTEN = "the worker's state cannot be written now"


class StateFile:
    """The file worker.json, which shows the worker's state to others.

    `update` changes fields on which others act, `touch` changes fields that may be written a little
    late.
    """

    def __init__(self, machine: MachinePaths, state: WorkerState) -> None:
        self.state = state
        self._machine = machine
        self._path = machine.worker(state.worker).state
        self._interval = state.heartbeat_interval  # of a worker with jobs
        self._idle_since: float | None = None  # in monotonic seconds
        self._written = time.monotonic()
        self._looked = time_awake_or_asleep()
        self._presumed_dead_by: str | None = None
        self._changed = False
        self._beats_until_write = 0
        self._cost = 0.0  # seconds that the last write took
        self._notices = Notices(_log)
        self._environment = OwnEnvironment()

    @property
    def deadline(self) -> float:
        """When `write_when_due` will write, in monotonic seconds."""
        heartbeat = self.state.heartbeat_interval
        least = max(_LEAST_BETWEEN, _WRITES_APART * self._cost)
        return self._written + (min(least, heartbeat) if self._changed else heartbeat)

    @property
    def presumed_dead_by(self) -> str | None:
        """The host that presumed the worker dead, if any.

        The tickets then no longer belong to the worker, and never will again. Check this before the
        worker claims or starts anything.
        """
        asleep = time_awake_or_asleep() - self._looked
        if asleep > LATE * self.state.heartbeat_interval:
            self._look_whether_presumed_dead(has_slept=True)
        return self._presumed_dead_by

    def touch(self, **changes: Any) -> None:
        """Change fields of the state; `write_when_due` writes them."""
        self.state = replace(self.state, **changes)
        self._changed = True

    def update(self, **changes: Any) -> bool:
        """Change fields of the state and write it now; return whether the write succeeded.

        After a failure `write_when_due` tries again, and others meanwhile act upon the previous
        state.
        """
        self.touch(**changes)
        self._write()
        return not self._changed

    @property
    def is_resting(self) -> bool:
        """Whether others wait longer for a sign of life, because the worker has nothing to lose."""
        return self.state.heartbeat_interval != self._interval

    def wake(self) -> bool:
        """Announce the usual heartbeats, before a claim; return whether the worker may claim."""
        if self.is_resting:
            self._idle_since = None
            self.update(heartbeat_interval=self._interval)
        return self.presumed_dead_by is None

    def note_idle(self, is_idle: bool) -> None:
        """Note whether the worker has no ticket at all; after a while, it rests."""
        if not is_idle:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = time.monotonic()

    @property
    def _may_rest(self) -> bool:
        idle = 0.0 if self._idle_since is None else time.monotonic() - self._idle_since
        return idle >= _REST_AFTER * self._interval

    def write_when_due(self) -> None:
        if time.monotonic() < self.deadline:
            return
        if self._may_rest and not self.is_resting:
            self.touch(heartbeat_interval=_RESTING * self._interval)
        if self._changed or not self._beats_until_write:
            self._write()
        else:
            self._beat()

    @contextlib.contextmanager
    def signs_of_life(self) -> Iterator[None]:
        """Also give signs of life while the worker waits for a lock.

        That others hold the lock for a while says nothing about this worker.
        """
        interval = self.state.heartbeat_interval
        previous = signal.signal(signal.SIGALRM, self._give_sign)
        signal.setitimer(signal.ITIMER_REAL, interval, interval)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, previous)

    def _give_sign(self, *_: object) -> None:
        late = (time.monotonic() - self.deadline) / self.state.heartbeat_interval
        if 0.5 < late < _HANGS_AFTER:
            self._set_time()

    def _beat(self) -> None:
        """Give a sign of life, and no more: the counter in the file grows with the next write."""
        self._written = time.monotonic()
        self._beats_until_write -= 1
        self.state = replace(self.state, heartbeat=self.state.heartbeat + 1)
        self._environment.note_use()
        self._set_time()
        self._look_whether_presumed_dead()
        self._cost = time.monotonic() - self._written

    def _write(self) -> None:
        self._written = time.monotonic()
        self._changed = False
        self._beats_until_write = _BEATS_PER_WRITE - 1
        self.state = replace(self.state, heartbeat=self.state.heartbeat + 1, updated=now())
        self._environment.note_use()
        try:
            write_atomically(self._path, to_json(self.state.to_dict()))
        except OSError as error:
            # A full disk must not end the jobs.
            self._changed = True
            self._notices.fault(_UNWRITTEN, error)
            self._set_time()
        else:
            self._notices.over(_UNWRITTEN)
        # Not with each change of a busy worker: a heartbeat is early enough.
        if time_awake_or_asleep() - self._looked >= 0.9 * self.state.heartbeat_interval:
            self._look_whether_presumed_dead()
        self._cost = time.monotonic() - self._written

    def _set_time(self) -> None:
        # This counts as a sign of life and needs no room on the disk.
        try:
            os.utime(self._path)
        except FileNotFoundError:
            self._changed = True  # somebody has removed it: it is written anew
        except OSError:
            pass

    def _is_forgotten(self) -> bool:
        """Whether `kochi clean` has deleted the files of the worker, which was silent for days."""
        with contextlib.suppress(OSError):
            return is_removed(self._path.parent)
        return False

    def _look_whether_presumed_dead(self, has_slept: bool = False) -> None:
        self._looked = time_awake_or_asleep()
        if self._presumed_dead_by is None:
            try:
                self._presumed_dead_by = read_presumed_dead(
                    self._machine, self.state.worker
                ).observer
            except DamagedFileError:
                self._presumed_dead_by = "another host"
            except OSError:
                if not has_slept or not self._is_forgotten():
                    return
                self._presumed_dead_by = "another host"
            _log.warning("presumed dead by %s: ending the jobs", self._presumed_dead_by)
