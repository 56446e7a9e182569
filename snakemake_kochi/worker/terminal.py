"""A worker in this terminal, `kochi work`: what its jobs print is shown as it grows.

In the order of their starts, and never that of two jobs mixed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from snakemake_kochi.backoff import GrowingPause
from snakemake_kochi.errors import KochiError
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import ProcessIdentity
from snakemake_kochi.queue.by_hand import worker_of_process
from snakemake_kochi.queue.views import find_job
from snakemake_kochi.tickets import history
from snakemake_kochi.tickets.names import Name
from snakemake_kochi.worker import start_command
from snakemake_kochi.worker.settings import WorkerSettings, save_settings, settings_of

_PAUSE = 0.1  # seconds
_LONGEST_PAUSE, _GROWTH = 1.0, 1.5  # while the jobs print nothing
_WIDTH = 80
_CHUNK = 2**20  # bytes
# What the worker's log says of a job.
_LINE = re.compile(
    r"INFO: job (?P<job>[\w.@=-]+) (?:\((?P<name>.*)\)(?:(?P<started> started)$|: (?P<state>\w+)$"
    r"| is left to others: (?P<why>.*))|goes back)"
)


def work(settings: WorkerSettings) -> int:
    """Run a worker and show what its jobs print; its exit status.

    Ctrl-C and SIGTERM have it give its jobs back and leave.
    """
    layout = settings.paths.layout
    parent = settings.parent and ProcessIdentity.of(settings.parent)
    own = save_settings(replace(settings, parent=os.getpid()))
    # In a session of its own, or Ctrl-C would reach it twice.
    process = subprocess.Popen(start_command(own), stdin=subprocess.DEVNULL, start_new_session=True)

    def pass_on(number: int, frame: Any) -> None:
        process.send_signal(number)

    for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(stop, pass_on)
    while (worker := worker_of_process(layout, process.pid)) is None and process.poll() is None:
        time.sleep(_PAUSE)
    own.unlink(missing_ok=True)  # which no other worker reads
    if worker is not None:
        echo = Echo(settings.paths, worker)
        pause = GrowingPause(_PAUSE, _LONGEST_PAUSE, _GROWTH)
        is_shown = True
        while process.poll() is None:
            found, is_shown = _show(echo) if is_shown else (False, False)
            if found:
                pause.reset()
            else:
                pause.grow()
            if parent and not parent.is_alive():
                process.terminate()
                parent = None
            with suppress(subprocess.TimeoutExpired):
                process.wait(pause.seconds)
        if is_shown:
            _show(echo)
    status = process.wait()
    return status if status >= 0 else 128 - status


def _show(echo: Echo) -> tuple[bool, bool]:
    """Whether anything was new, and whether it can be shown: if not, the jobs go on."""
    try:
        return echo.show(), True
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # nobody reads it any more
            print(f"kochi: what jobs print is not shown any more: {error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in its buffer goes there
        return False, False


@dataclass
class _Shown:
    name: Name
    called: str
    at: int = 0  # bytes of its log
    last: bytes = b"\n"
    state: str | None = None  # how it ended; "" for back in its queue
    has_begun: bool = False


class Echo:
    """Follows the log of the first job that has not ended; the worker's own log tells of jobs."""

    def __init__(self, machine: MachinePaths, worker: int) -> None:
        self._machine, self._layout = machine, machine.layout
        self._log = Path(self._layout.worker(str(worker)).log)
        self._welcome = (
            f"Kochi worker {worker} started on machine {machine.name}.\n{'=' * _WIDTH}\n"
        )
        self._read = 0
        self._jobs: deque[_Shown] = deque()

    def show(self) -> bool:
        """Show what is new; whether anything is. Raises OSError if nobody reads it."""
        print(self._welcome, end="")
        self._welcome = ""
        found = self._hear()
        while self._jobs:
            shown = self._jobs[0]
            if not shown.has_begun:
                shown.has_begun = True
                print(f"Kochi job {shown.called} (ID={self._job_of(shown.name)}) started.")
                print("-" * _WIDTH)
            before = shown.at
            is_whole = self._copy(shown)
            found |= shown.at > before
            if shown.state is None or not is_whole:
                break
            if shown.last != b"\n":
                print()
            print("-" * _WIDTH)
            if shown.state != "success":
                print(
                    f"Kochi job {shown.called} (ID={self._job_of(shown.name)}): {self._end(shown)}."
                )
            self._jobs.popleft()
        sys.stdout.flush()
        return found

    def _hear(self) -> bool:
        before = self._read
        with suppress(OSError), self._log.open("rb") as stream:
            stream.seek(self._read)
            for line in stream.read().splitlines(keepends=True):
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                match = _LINE.search(line.decode("utf-8", "replace").rstrip())
                if match and (name := Name.parse(match["job"])) is not None:
                    self._note(name, match)
        return self._read > before

    def _note(self, name: Name, match: re.Match[str]) -> None:
        if match["started"]:
            self._jobs.append(_Shown(name, match["name"]))
        elif why := match["why"]:
            job = self._job_of(name)
            print(f"Kochi job {match['name']} (ID={job}) is left to other workers: {why}.")
        else:
            for each in self._jobs:
                if each.name == name:
                    each.state = match["state"] or ""

    def _copy(self, shown: _Shown) -> bool:
        """Show what its log has more; False if that cannot be read now."""
        sys.stdout.flush()
        while chunk := self._next(shown):
            self._write(shown, chunk)
        return chunk is not None

    def _next(self, shown: _Shown) -> bytes | None:
        paths = self._layout.run(shown.name.run)
        try:
            with suppress(FileNotFoundError), open(paths.log(shown.name), "rb") as stream:
                stream.seek(shown.at)
                return stream.read(_CHUNK)
            if shown.state is None:
                return b""
            return (history.log_of(paths, shown.name) or b"")[shown.at :]  # it was folded meanwhile
        except OSError:
            return None

    def _write(self, shown: _Shown, data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        shown.at += len(data)
        shown.last = data[-1:] or shown.last

    def _job_of(self, name: Name) -> history.JobId:
        is_by_hand = False
        with suppress(OSError):
            is_by_hand = history.was_by_hand(self._layout, name.run)
        return history.View(name, "", {}, is_by_hand=is_by_hand).job

    def _end(self, shown: _Shown) -> str:
        if not shown.state:
            return "back in its queue"
        with suppress(OSError, KochiError):
            view = find_job(self._machine, self._job_of(shown.name))
            if view.result is not None and view.attempt == shown.name.attempt:
                return view.result.describe()
        return shown.state


if __name__ == "__main__":
    try:
        sys.exit(work(settings_of(sys.argv[1:])))
    except KochiError as error:
        sys.exit(f"kochi worker: {error.sentences}")
