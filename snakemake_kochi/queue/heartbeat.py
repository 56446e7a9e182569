"""Heartbeats: workers, controllers and launched runs write them to files, and others watch them.

The clocks of two hosts do not agree. So the only measure is for how long an observer, by its own
monotonic clock, saw a file stand still. On the node of a worker, the kernel knows whether the
worker is dead. On another node, only its heartbeat tells, so that its tickets may be requeued.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import answered, read_json, to_json, write_atomically, write_exclusively
from snakemake_kochi.own_environment import OwnEnvironment
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import this_node
from snakemake_kochi.queue.skipped import Postponed
from snakemake_kochi.queue.ticket import now
from snakemake_kochi.queue.workers import HEARTBEAT_INTERVAL, WorkerState, read_worker

_log = logging.getLogger(__name__)

VERSION = 2  # of presumed-dead.json

# In heartbeat intervals of the watched process, which is then presumed dead.
LOST_AFTER = 12
# In the same unit. A process that has not looked for so long first checks whether it was presumed
# dead.
LATE = 3
# A process that goes on after it was presumed dead must see that before its tickets or jobs are
# given to others.
SETTLING = 2
# The most intervals that count between two looks. An observer that slept, or whose filesystem hung,
# did not see what happened meanwhile.
_MOST_COUNTED = 3
# In heartbeat intervals of the worker, 5 seconds by default. The supervisor ends a worker before it
# is presumed dead, if the supervisor sees the same files as other processes.
SUPERVISOR_PATIENCE = 6
# Seconds between two looks at the workers of a queue without a ticket; each look reads a file per
# worker.
_ALL_INTERVAL = 5.0
_SECONDS_PER_WORKER = 1.0
# How many of the workers with jobs a worker watches.
_NEIGHBOURS = 8
# Heartbeat intervals after which a watched worker without a heartbeat counts as silent.
_SILENT_AFTER = 2
_LAST_PATIENCE = 10.0  # seconds for a write in progress
_VARIABLE = "KOCHI_HEARTBEAT"


def heartbeat_interval() -> float:
    """Seconds between two heartbeats; tests set a shorter interval. Raises KochiError."""
    text = os.environ.get(_VARIABLE, str(HEARTBEAT_INTERVAL))
    try:
        interval = float(text)
    except ValueError:
        interval = math.nan
    if not 0 < interval < math.inf:
        raise KochiError(
            f"{_VARIABLE} is '{text}': a number of seconds above 0 was expected",
            f"For the usual {HEARTBEAT_INTERVAL:g} s, type: unset {_VARIABLE}",
        )
    return interval


def time_awake_or_asleep() -> float:
    """The boot-time clock in seconds, which also runs while the host is suspended.

    Other clocks of a suspended host stand still, whereas those of other hosts go on.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class HeartbeatFile:
    """A JSON file that shows that the calling process is alive. Any thread may call its methods."""

    def __init__(self, path: Path, fields: Mapping[str, Any]) -> None:
        self.interval = heartbeat_interval()
        self._path = path
        self._fields = {**fields, "heartbeat": 0, "heartbeat_interval": self.interval}
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._environment = OwnEnvironment()

    def write(self, **changes: Any) -> None:
        """Write the file with some fields changed. Raises OSError; then none is changed."""
        with self._lock:
            fields = {**self._fields, **changes, "heartbeat": self._fields["heartbeat"] + 1}
            self._environment.note_use()
            write_atomically(self._path, to_json(fields))
            self._fields = fields

    def start(self, may_go_on: Callable[[], bool] = lambda: True) -> None:
        """Start the heartbeat, in a thread of its own so that no waiting thread delays it.

        It goes on until `stop`, or until `may_go_on` returns False.
        """
        self._thread = threading.Thread(
            target=self._beat, args=(may_go_on,), name="kochi-heartbeat", daemon=True
        )
        self._thread.start()

    @property
    def is_started(self) -> bool:
        return self._thread is not None

    def stop(self) -> None:
        """Stop the heartbeat. After this returns, only `write` writes the file."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(_LAST_PATIENCE)

    def _beat(self, may_go_on: Callable[[], bool]) -> None:
        while not self._ending.wait(self.interval) and may_go_on():
            try:
                self.write()
            except OSError:
                # This needs no room on the disk; observers count it as a sign of life, too.
                with contextlib.suppress(OSError):
                    os.utime(self._path)


def sign_of_life(path: Path, *fields: Hashable) -> Hashable:
    """The value that two looks compare: fields of a heartbeat file, and the time of the file.

    The time of the file is included because on a full disk nothing else can be written. Raises
    OSError.
    """
    return (*fields, answered(path.stat).st_mtime_ns)


@dataclass(frozen=True)
class _Sight:
    sign: Hashable
    ended: float  # when the last look ended
    still: float  # seconds


class Stillness:
    """Remembers the sign of life of each watched process.

    Two equal signs mean that the heartbeat stood still.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sights: dict[Hashable, _Sight] = {}

    def note(self, whose: Hashable, sign: Hashable, interval: float, began: float) -> float:
        """Note a sign of life; return for how many seconds at least it has been the same.

        `began` is when the look began, by the clock; `interval` is the number of seconds between
        two heartbeats.
        """
        last = self._sights.get(whose)
        still = 0.0
        if last is not None and last.sign == sign:
            still = last.still + max(0.0, min(began - last.ended, _MOST_COUNTED * interval))
        self._sights[whose] = _Sight(sign, self._clock(), still)
        return still


@dataclass(frozen=True)
class PresumedDead:
    """presumed-dead.json: a worker that a process on another node presumed dead; this is final.

    The process on the host `observer` saw no heartbeat for `stood_still` seconds, and presumed the
    worker dead at `time`.
    """

    worker: int
    observer: str
    stood_still: float
    time: str

    def to_dict(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self)}


def read_presumed_dead(machine: MachinePaths, worker: int) -> PresumedDead:
    """Read presumed-dead.json.

    Raises FileNotFoundError when the worker was not presumed dead, or DamagedFileError.
    """
    path = machine.worker(worker).presumed_dead
    data = read_json(path, VERSION)
    try:
        return PresumedDead(
            worker=int(data["worker"]),
            observer=str(data["observer"]),
            stood_still=float(data["stood_still"]),
            time=str(data["time"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(
            f"{path}: not the record of a worker presumed dead ({error!r})"
        ) from error


def presume_dead(machine: MachinePaths, state: WorkerState, still: float) -> None:
    """Presume a worker dead for good; its heartbeat stood still for `still` seconds."""
    presumed = PresumedDead(state.worker, this_node().host, round(still, 3), now())
    if write_exclusively(machine.worker(state.worker).presumed_dead, to_json(presumed.to_dict())):
        _log.warning(
            "worker %d on %s is presumed dead: its heartbeat stood still for %.0f seconds",
            state.worker,
            state.node.host,
            still,
        )


class Observer:
    """Remembers the heartbeats of workers, to find the dead ones.

    Each process that requeues the tickets of dead workers has one: an observer without a past sees
    only deaths that need no earlier look. `postponed` are the tickets of dead workers that could
    not be requeued.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        worker: int | None = None,
        kill_patience: float = 5.0,
    ) -> None:
        """Make an observer without a past.

        `worker` is the number of the observing worker; None if a controller observes.
        `kill_patience` is the number of seconds after which killed processes must be gone.
        """
        self.kill_patience = kill_patience
        self._clock = clock
        self._worker = worker
        self._stillness = Stillness(clock)
        self._all_due: dict[str, float] = {}
        self._silent: set[int] = set()
        self.postponed = Postponed(clock)

    def is_time_for_all(self, queue: str) -> bool:
        """Whether to look at all workers of a queue again, including those without a ticket."""
        return self._clock() >= self._all_due.get(queue, -math.inf)

    def looked_at_all(self, queue: str, count: int) -> None:
        """Note that `count` workers were looked at.

        Every worker looks at all others. With an interval that does not grow with their number, the
        number of looks would grow with its square.
        """
        interval = max(_ALL_INTERVAL, count * _SECONDS_PER_WORKER)
        self._all_due[queue] = self._clock() + interval

    def share_of(self, workers: Iterable[int]) -> list[int]:
        """The workers that this observer watches.

        A worker watches the next ones by number; the first follows the last. So several workers
        watch each one, and the number of looks grows with the number of workers, not with its
        square. A worker goes on watching silent workers, and watches others in addition, because
        many may have died together. A controller watches all.
        """
        others = sorted(workers)
        if self._worker is None or len(others) <= _NEIGHBOURS:
            return others
        silent = self._silent.intersection(others)
        heard = [worker for worker in others if worker not in silent]
        first = bisect.bisect_right(heard, self._worker)
        return sorted({*silent, *[*heard, *heard][first : first + _NEIGHBOURS]})

    def find_dead(self, machine: MachinePaths, workers: Iterable[int]) -> dict[int, WorkerState]:
        """The workers that are dead, so that they can no longer change a ticket.

        Workers on other nodes whose heartbeat stood still for LOST_AFTER intervals are also
        presumed dead here (`presumed-dead.json`). A worker registers before it claims. So if a
        worker has no readable file, the file was tampered with, and the worker is not included.
        """
        dead = {}
        for worker in workers:
            # A filesystem that answers with an error proves nothing.
            with contextlib.suppress(OSError, DamagedFileError):
                state, still = self.look(machine, worker)
                if self._is_dead(machine, state, still):
                    dead[worker] = state
        return dead

    def look(self, machine: MachinePaths, worker: int) -> tuple[WorkerState, float]:
        """A worker's state, and for how many seconds at least its heartbeat has stood still.

        Raises OSError or DamagedFileError when its file cannot be read.
        """
        began = self._clock()
        state = read_worker(machine, worker)
        sign: Hashable = "lost"
        if not state.presumed_dead:
            path = machine.worker(worker).state
            sign = sign_of_life(path, state.process, state.heartbeat)
        still = self._stillness.note(worker, sign, state.heartbeat_interval, began)
        if still >= _SILENT_AFTER * state.heartbeat_interval:
            self._silent.add(worker)
        else:
            self._silent.discard(worker)
        return state, still

    def _is_dead(self, machine: MachinePaths, state: WorkerState, still: float) -> bool:
        if state.state == "left" or state.has_died:
            return True
        if state.is_on_this_node:
            return False  # it may be stopped; then its supervisor will end it
        if state.presumed_dead:
            return still >= SETTLING * state.heartbeat_interval
        if still >= LOST_AFTER * state.heartbeat_interval:
            presume_dead(machine, state, still)
        return False
