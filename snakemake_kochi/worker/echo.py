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


@dataclass
class _Shown:
    job: int
    name: str
    log: Path
    offset: int
    ending: str | None = None
    begun: bool = False


class Echo:
    """Follows the logs of jobs in the order of their start.

    The first that is not over is shown live; others wait in their log files for their turn.
    """

    def __init__(self, jobs: bool, stream: BinaryIO | None = None) -> None:
        """With `jobs` false only the worker's own lines are shown."""
        self._stream = stream or sys.stdout.buffer
        self._jobs = jobs
        self._queue: deque[_Shown] = deque()

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

    def pump(self) -> None:
        """Show what has been written since the last time."""
        while self._queue:
            shown = self._queue[0]
            if not shown.begun:
                shown.begun = True
                self.say(f"Kochi job {shown.name} (ID={shown.job}) started.", "-" * WIDTH)
            # Asked before the log is read: what is written before the end is then not missed.
            ending = shown.ending
            last = self._copy(shown)
            if ending is None:
                return
            if last not in (b"", b"\n"):
                self.say("")
            self.say("-" * WIDTH)
            if ending:
                self.say(f"Kochi job {shown.name} (ID={shown.job}): {ending}.")
            self._queue.popleft()

    def _copy(self, shown: _Shown) -> bytes:
        """Returns the last byte shown, or nothing when nothing was new."""
        last = b""
        with contextlib.suppress(FileNotFoundError), shown.log.open("rb") as stream:
            stream.seek(shown.offset)
            while chunk := stream.read(1 << 16):
                self._write(chunk)
                shown.offset += len(chunk)
                last = chunk[-1:]
        return last

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
