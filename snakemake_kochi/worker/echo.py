"""What a worker shows in its terminal: each job's output as it grows, never two jobs mixed."""

from __future__ import annotations

import math
import os
import sys
import time
from collections import deque
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import BinaryIO

from snakemake_kochi.files import answered
from snakemake_kochi.queue.postponed import Complaints
from snakemake_kochi.worker.troubles import RETRY

WIDTH = 80
_CHUNK = 2**16  # bytes
_MOST_AT_ONCE = 2**24  # bytes
_INTERVAL = 0.1  # seconds between two looks into a growing log
# Seconds in which the log of a job that is over has to be readable: others wait for their turn.
_LOG_PATIENCE = 30.0
_UNWRITTEN = "the jobs' output cannot be shown now"


@dataclass
class _Shown:
    job: int
    name: str
    log: Path
    offset: int
    ending: str | None = None
    begun: bool = False
    last: bytes = b"\n"  # that was shown
    unreadable_since: float | None = None


class Echo:
    """Follows the logs of jobs in the order of their start.

    The first that is not over is shown live; others wait in their log files for their turn. What
    cannot be read or written ends no job: it is said in the worker's log, and tried again.
    """

    def __init__(self, jobs: bool, stream: RawIOBase | BinaryIO | None = None) -> None:
        """With `jobs` false only the worker's own lines are shown. `stream`, by default stdout, is
        unbuffered: what it did not take is kept here."""
        self._stream = stream or _raw_stdout()
        self._jobs = jobs
        self._queue: deque[_Shown] = deque()
        self._room = 0
        self._unwritten = b""
        self._resume = 0.0  # when to try again what could not be written or read
        self._complaints = Complaints()

    @property
    def deadline(self) -> float:
        """When `pump` will have something to do, in monotonic seconds."""
        if not self._queue and not self._unwritten:
            return math.inf
        return max(self._resume, time.monotonic() + _INTERVAL)

    def say(self, *lines: str) -> None:
        self._write("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))

    def job_started(self, job: int, name: str, log: Path, offset: int) -> None:
        """`offset`: where in the log this attempt's output begins, in bytes."""
        if self._jobs:
            self._queue.append(_Shown(job, name, log, offset))

    def job_ended(self, job: int, ending: str) -> None:
        """`ending`: how it ended, for people; empty when it succeeded."""
        for shown in self._queue:
            if shown.job == job:
                shown.ending = ending

    def pump(self, everything: bool = False) -> None:
        """Show what has been written since the last time.

        Unless `everything` is asked for, what a job wrote in one go is shown in parts: it may
        write faster than a terminal shows it, and then the worker would do nothing else.
        """
        if time.monotonic() < self._resume and not everything:
            return
        self._room = _MOST_AT_ONCE
        self._write(b"")
        while self._queue and not self._unwritten and (everything or self._room > 0):
            shown = self._queue[0]
            if not shown.begun:
                shown.begun = True
                self.say(f"Kochi job {shown.name} (ID={shown.job}) started.", "-" * WIDTH)
            # Asked before the log is read: what is written before the end is then not missed.
            ending = shown.ending
            is_all = self._copy(shown, everything)
            if ending is None or not is_all:
                return
            if shown.last != b"\n":
                self.say("")
            self.say("-" * WIDTH)
            if ending:
                self.say(f"Kochi job {shown.name} (ID={shown.job}): {ending}.")
            self._queue.popleft()

    def _copy(self, shown: _Shown, everything: bool) -> bool:
        """Returns whether that was all there is."""
        try:
            with answered(lambda: shown.log.open("rb")) as stream:
                stream.seek(shown.offset)
                while not self._unwritten and (chunk := stream.read(_CHUNK)):
                    self._write(chunk)
                    shown.offset += len(chunk)
                    shown.last = chunk[-1:]
                    self._room -= len(chunk)
                    if self._room <= 0 and not everything:
                        return False
        except FileNotFoundError:
            return not self._unwritten
        except OSError as error:
            return self._is_given_up(shown, error)
        shown.unreadable_since = None
        self._complaints.over(_unread(shown))
        return not self._unwritten

    def _is_given_up(self, shown: _Shown, error: OSError) -> bool:
        moment = time.monotonic()
        self._complaints.about(_unread(shown), error)
        self._resume = moment + RETRY
        if shown.ending is None:
            return False
        if shown.unreadable_since is None:
            shown.unreadable_since = moment
        if moment < shown.unreadable_since + _LOG_PATIENCE:
            return False
        self._complaints.over(_unread(shown))
        self.say(f"(the rest of {shown.log} cannot be read: {error.strerror})")
        return True

    def _write(self, content: bytes) -> None:
        """Write what could not be written before, and this; what is left is kept."""
        self._unwritten += content
        try:
            while self._unwritten:
                # None: a terminal that is set not to wait, and shows things slowly.
                written = self._stream.write(self._unwritten)
                self._unwritten = self._unwritten[written or 0 :]
                if not written:
                    self._resume = time.monotonic() + _INTERVAL
                    return
        except BrokenPipeError:
            # `kochi work | head`: who reads no more does not want the jobs to fail. The descriptor
            # itself is turned away: what the stream still holds is written again at the exit.
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            self._unwritten = b""
        except OSError as error:
            # `kochi work > log` on a full disk: the jobs' own logs may be elsewhere.
            self._resume = time.monotonic() + RETRY
            self._complaints.about(_UNWRITTEN, error)
        else:
            self._complaints.over(_UNWRITTEN)


def _unread(shown: _Shown) -> str:
    return f"the log of job {shown.job} cannot be shown now"


def _raw_stdout() -> RawIOBase:
    # Not sys.stdout.buffer: how much of what that holds was written before an error is not known.
    try:
        return open(sys.stdout.fileno(), "wb", buffering=0, closefd=False)
    except (AttributeError, OSError, ValueError):  # there is none, or it is closed
        return open(os.devnull, "wb", buffering=0)
