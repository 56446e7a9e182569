"""What a worker shows in its terminal: each job's output as it grows, never two jobs mixed."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

WIDTH = 80
_CHUNK = 2**16  # bytes
_MOST_AT_ONCE = 2**24  # bytes


@dataclass
class _Shown:
    job: int
    name: str
    log: Path
    offset: int
    ending: str | None = None
    begun: bool = False
    last: bytes = b"\n"  # that was shown


class Echo:
    """Follows the logs of jobs in the order of their start.

    The first that is not over is shown live; others wait in their log files for their turn.
    """

    def __init__(self, jobs: bool, stream: BinaryIO | None = None) -> None:
        """With `jobs` false only the worker's own lines are shown."""
        self._stream = stream or sys.stdout.buffer
        self._jobs = jobs
        self._queue: deque[_Shown] = deque()
        self._room = 0

    @property
    def is_following(self) -> bool:
        """Whether an output may be growing, so that looking again soon is worth while."""
        return bool(self._queue)

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
        self._room = _MOST_AT_ONCE
        while self._queue and (everything or self._room > 0):
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
        with contextlib.suppress(FileNotFoundError), shown.log.open("rb") as stream:
            stream.seek(shown.offset)
            while chunk := stream.read(_CHUNK):
                self._write(chunk)
                shown.offset += len(chunk)
                shown.last = chunk[-1:]
                self._room -= len(chunk)
                if self._room <= 0 and not everything:
                    return False
        return True

    def _write(self, content: bytes) -> None:
        try:
            self._stream.write(content)
            self._stream.flush()
        except BrokenPipeError:
            # `kochi work | head`: who reads no more does not want the jobs to fail. The descriptor
            # itself is turned away: what the stream still holds is written again at the exit.
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
