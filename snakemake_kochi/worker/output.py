"""The output of a worker: its log, and the output of its jobs in its terminal."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import BinaryIO

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import answered
from snakemake_kochi.notices import Notices
from snakemake_kochi.packs.pack import PackedFile
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.worker.settings import RETRY

_log = logging.getLogger(__name__)

WIDTH = 80
_CHUNK = 2**16  # bytes
_MOST_AT_ONCE = 2**24  # bytes
# Seconds between two looks at a log, the factor by which they grow while the log does not, and
# the most seconds.
_INTERVAL = 0.1
_GROWTH = 1.5
_LONGEST_INTERVAL = 1.0
# Seconds in which the log of an ended job must become readable: other jobs wait for their turn.
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
    last: bytes = b"\n"  # the last byte shown
    unreadable_since: float | None = None


class Echo:
    """Shows each job's output as it grows, in the order of their starts, and never mixes two jobs.

    It follows the log of the first job that has not ended; the output of the others waits in their
    log files. A log or a terminal that fails ends no job: the worker logs the failure and tries
    again.
    """

    def __init__(
        self,
        jobs: bool,
        stream: RawIOBase | BinaryIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        packed_log: Callable[[int], PackedFile | None] = lambda job: None,
    ) -> None:
        """Open the output.

        With `jobs` false it shows only the worker's own lines. `stream`, by default stdout, is
        unbuffered: Echo keeps the bytes that `stream` does not accept. `packed_log` finds the log
        of a job in a pack.
        """
        self._stream = stream or _raw_stdout()
        self._jobs = jobs
        self._packed_log = packed_log
        self._queue: deque[_Shown] = deque()
        self._room = 0
        self._unwritten = b""
        self._clock = clock
        self._resume = 0.0  # when to write or read again, in seconds of the clock
        self._interval = _INTERVAL
        self._notices = Notices(_log)

    @property
    def deadline(self) -> float:
        """When `pump` will have something to do, in seconds of the clock."""
        if not self._queue and not self._unwritten:
            return math.inf
        interval = _INTERVAL if self._unwritten else self._interval
        return max(self._resume, self._clock() + interval)

    def say(self, *lines: str) -> None:
        self._write("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))

    def job_started(self, job: int, name: str, log: Path, offset: int) -> None:
        """Note a started job; `offset`: where this attempt's output begins in the log, in bytes."""
        if self._jobs:
            self._queue.append(_Shown(job, name, log, offset))

    def job_ended(self, job: int, ending: str) -> None:
        """Note an ended job; `ending`: how it ended, for people (empty for a success)."""
        for shown in self._queue:
            if shown.job == job:
                shown.ending = ending

    def pump(self, everything: bool = False) -> None:
        """Show the output since the last call.

        Unless `everything` is true, it shows a large output in parts: a job may write faster than a
        terminal shows the output, and the worker would then do nothing else.
        """
        if self._clock() < self._resume and not everything:
            return
        self._room = _MOST_AT_ONCE
        self._write(b"")
        while self._queue and not self._unwritten and (everything or self._room > 0):
            shown = self._queue[0]
            if not shown.begun:
                shown.begun = True
                self._interval = _INTERVAL
                self.say(f"Kochi job {shown.name} (ID={shown.job}) started.", "-" * WIDTH)
            # Take `ending` before reading the log, to miss nothing that the job wrote before its
            # end.
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
        """Show the rest of a log; return whether it copied everything."""
        self._interval = min(self._interval * _GROWTH, _LONGEST_INTERVAL)
        try:
            with answered(lambda: shown.log.open("rb")) as stream:
                stream.seek(shown.offset)
                while not self._unwritten and (chunk := stream.read(_CHUNK)):
                    self._interval = _INTERVAL
                    self._write(chunk)
                    shown.offset += len(chunk)
                    shown.last = chunk[-1:]
                    self._room -= len(chunk)
                    if self._room <= 0 and not everything:
                        return False
        except FileNotFoundError:
            return self._copy_packed(shown)
        except OSError as error:
            return self._is_given_up(shown, error)
        shown.unreadable_since = None
        self._notices.over(_unread(shown))
        return not self._unwritten

    def _copy_packed(self, shown: _Shown) -> bool:
        """As `_copy`, for a job that ended while the output of another one was shown."""
        try:
            if (packed := self._packed_log(shown.job)) is not None:
                # Large logs are in no pack.
                rest = packed.read()[shown.offset :]
                self._write(rest)
                shown.offset += len(rest)
                shown.last = rest[-1:] or shown.last
        except DamagedFileError as error:
            self.say(f"({error.message})")
        except OSError as error:
            return self._is_given_up(shown, error)
        return not self._unwritten

    def _is_given_up(self, shown: _Shown, error: OSError) -> bool:
        moment = self._clock()
        self._notices.fault(_unread(shown), error)
        self._resume = moment + RETRY
        if shown.ending is None:
            return False
        if shown.unreadable_since is None:
            shown.unreadable_since = moment
        if moment < shown.unreadable_since + _LOG_PATIENCE:
            return False
        self._notices.over(_unread(shown))
        self.say(f"(the rest of {shown.log} cannot be read: {error.strerror})")
        return True

    def _write(self, content: bytes) -> None:
        """Write the earlier bytes that could not be written, and `content`; keep the rest."""
        self._unwritten += content
        try:
            while self._unwritten:
                # `write` returns None for a slow terminal in non-blocking mode.
                written = self._stream.write(self._unwritten)
                self._unwritten = self._unwritten[written or 0 :]
                if not written:
                    self._resume = self._clock() + _INTERVAL
                    return
        except BrokenPipeError:
            # `kochi work | head`: the jobs must not fail because no process reads their output. The
            # descriptor itself is redirected because the stream writes its buffer at the exit.
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            self._unwritten = b""
        except OSError as error:
            # `kochi work > log` on a full disk: the jobs' own logs may be on another disk.
            self._resume = self._clock() + RETRY
            self._notices.fault(_UNWRITTEN, error)
        else:
            self._notices.over(_UNWRITTEN)


def _unread(shown: _Shown) -> str:
    return f"the log of job {shown.job} cannot be shown now"


def _raw_stdout() -> RawIOBase:
    # Not sys.stdout.buffer: after an error it does not tell how many bytes it has written.
    try:
        return open(sys.stdout.fileno(), "wb", buffering=0, closefd=False)
    except (AttributeError, OSError, ValueError):  # stdout is missing or closed
        return open(os.devnull, "wb", buffering=0)


class _LogFile(logging.FileHandler):
    """A log file that tolerates a full disk.

    On a full disk it prints one message on stderr instead of a traceback for each log message. It
    keeps the messages in memory, and writes them when there is room again.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace")
        self._is_failing = False

    def flush(self) -> None:
        super().flush()
        self._is_failing = False

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._is_failing:
            self._is_failing = True
            with contextlib.suppress(OSError, ValueError):
                print(f"kochi worker: its log cannot be written now: {error}", file=sys.stderr)

    def close(self) -> None:
        # Messages that are lost here do not justify another exit status of the worker.
        with contextlib.suppress(OSError):
            super().close()


@contextlib.contextmanager
def log_to_file(machine: MachinePaths, worker: int) -> Iterator[None]:
    """Write messages of the worker and of its queues to its log, and warnings to stderr, too.

    Raises OSError when the log cannot be created.
    """
    logger = logging.getLogger("snakemake_kochi")
    level = logger.level
    to_file = _LogFile(machine.worker(worker).log)
    to_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    to_terminal = logging.StreamHandler()
    to_terminal.setLevel(logging.WARNING)
    to_terminal.setFormatter(logging.Formatter("kochi worker: %(message)s"))
    logger.setLevel(logging.INFO)
    for handler in (to_file, to_terminal):
        logger.addHandler(handler)
    try:
        yield
    finally:
        for handler in (to_file, to_terminal):
            logger.removeHandler(handler)
            with contextlib.suppress(OSError):
                handler.close()
        logger.setLevel(level)
