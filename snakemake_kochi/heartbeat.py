"""Heartbeats: a process writes them to a file, and others watch it.

The clocks of two hosts do not agree. So the only measure is for how long an observer, by its own
monotonic clock, saw a file stand still.
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
from snakemake_kochi.own_environment import OwnEnvironment

# Seconds between two heartbeats.
HEARTBEAT_INTERVAL = 5.0
# The number of heartbeats from one write of a file to the next. The others only set the time
# of the file, which some filesystems show to other nodes late.
_BEATS_PER_WRITE = 2
# In heartbeat intervals of the watched process, which is then presumed dead.
LOST_AFTER = 12
# The most intervals that count between two looks. An observer that slept, or whose filesystem hung,
# did not see what happened meanwhile.
_MOST_COUNTED = 3
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

    def stop(self) -> None:
        """Stop the heartbeat. After this returns, only `write` writes the file."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(_LAST_PATIENCE)

    def _beat(self, may_go_on: Callable[[], bool]) -> None:
        beats = 0
        while not self._ending.wait(self.interval) and may_go_on():
            beats += 1
            try:
                if beats % _BEATS_PER_WRITE == 0:
                    self.write()
                else:
                    self._set_time()
            except OSError:
                # This needs no room on the disk.
                with contextlib.suppress(OSError):
                    os.utime(self._path)

    def _set_time(self) -> None:
        """Give a sign of life that costs the file server less than a write. Raises OSError."""
        try:
            os.utime(self._path)
        except FileNotFoundError:
            self.write()  # somebody has removed it


def sign_of_life(path: Path, *fields: Hashable) -> Hashable:
    """The value that two looks compare: fields of a heartbeat file, and the time of the file.

    The time of the file is included because many heartbeats change nothing else. Raises OSError.
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
