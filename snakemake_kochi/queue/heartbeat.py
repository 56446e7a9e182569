"""Signs of life: a process gives them in a file, and others watch it, also from other hosts.

No two clocks agree. What counts is for how long an observer, by its own monotonic clock, saw a file
stand still.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import answered, to_json, write_atomically

HEARTBEAT_INTERVAL = 5.0  # seconds
# In heartbeat intervals of who is watched: then it is presumed dead.
LOST_AFTER = 12
# The same: one that has not looked for so long asks whether it was, before it goes on.
LATE = 3
# A process that goes on after that must have seen it before anything that it had is given away.
SETTLING = 2
# What is counted between two looks. An observer that slept, or whose filesystem hung, saw nothing.
_MOST_COUNTED = 3
_LAST_PATIENCE = 10.0  # seconds for a write that is under way
_VARIABLE = "KOCHI_HEARTBEAT"


def heartbeat_interval() -> float:
    """Seconds between two signs of life; tests have little time. Raises KochiError."""
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
    """Seconds. Other clocks stand still while the host is suspended, and those of other hosts do
    not."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class HeartbeatFile:
    """A JSON file of the calling process that says that it lives. Any thread may call."""

    def __init__(self, path: Path, fields: Mapping[str, Any]) -> None:
        self.interval = heartbeat_interval()
        self._path = path
        self._fields = {**fields, "heartbeat": 0, "heartbeat_interval": self.interval}
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def write(self, **changes: Any) -> None:
        """Write it with some fields changed. Raises OSError; then they are not."""
        with self._lock:
            fields = {**self._fields, **changes, "heartbeat": self._fields["heartbeat"] + 1}
            write_atomically(self._path, to_json(fields))
            self._fields = fields

    def start(self, may_go_on: Callable[[], bool] = lambda: True) -> None:
        """Give signs of life by a thread of its own, whatever the others wait for, until `stop`, or
        until it may not go on."""
        self._thread = threading.Thread(
            target=self._beat, args=(may_go_on,), name="kochi-heartbeat", daemon=True
        )
        self._thread.start()

    @property
    def is_started(self) -> bool:
        return self._thread is not None

    def stop(self) -> None:
        """When this returns nothing is written any more, but by `write`."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(_LAST_PATIENCE)

    def _beat(self, may_go_on: Callable[[], bool]) -> None:
        while not self._ending.wait(self.interval) and may_go_on():
            try:
                self.write()
            except OSError:
                # Needs no room on the disk; observers know it for a sign of life, too.
                with contextlib.suppress(OSError):
                    os.utime(self._path)


def sign_of_life(path: Path, *fields: Hashable) -> Hashable:
    """What another look is compared with: fields of a file with a heartbeat, and the time of the
    file, for on a full disk nothing else can be written. Raises OSError."""
    return (*fields, answered(path.stat).st_mtime_ns)


@dataclass(frozen=True)
class _Sight:
    sign: Hashable
    ended: float  # when the last look was over
    still: float  # seconds


class Stillness:
    """Remembers signs of life, by whom they are of: equal ones mean that it stood still."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sights: dict[Hashable, _Sight] = {}

    def note(self, whose: Hashable, sign: Hashable, interval: float, began: float) -> float:
        """Note the sign that a look gave which began at a time of the clock; return for how many
        seconds at least it has been the same. `interval`: seconds between two heartbeats."""
        last = self._sights.get(whose)
        still = 0.0
        if last is not None and last.sign == sign:
            still = last.still + max(0.0, min(began - last.ended, _MOST_COUNTED * interval))
        self._sights[whose] = _Sight(sign, self._clock(), still)
        return still
