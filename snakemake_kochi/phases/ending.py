"""How a script ends: by itself, or because its time is over.

A phase ends its script itself, at the exact time and under any executor. The scheduler and the
worker, which have the `runtime` of the job, would end the phase, too.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from snakemake_kochi.parent_death import adopt_orphans
from snakemake_kochi.processes import ProcessIdentity, all_entries, child_pids, send_signal

# Seconds between SIGTERM, upon which a script may write what it has, and SIGKILL.
GRACE = 5.0
_PAUSE = 0.02
STATUS_OF_TIMEOUT = 124  # as of timeout(1): the signal was not sent by a person
# Processes that a script left to this one, by number.
_left: set[int] = set()


@dataclass(frozen=True)
class Usage:
    """What the processes of a script took, without those for which no process waited.

    `peak_memory_mb` is the memory of the largest single process, in MiB. The kernel counts at least
    the memory of the process that started the script.
    """

    user_seconds: float
    system_seconds: float
    peak_memory_mb: int
    major_faults: int  # page faults that read from a disk
    voluntary_switches: int
    involuntary_switches: int


@dataclass(frozen=True)
class Ended:
    """How a script ended. `status`: its exit status, 128 + n after signal n. `timeout`: the seconds
    after which it was ended, if it was. `usage` is None if its processes were those of another
    program. `unfinished`: which processes of its pipeline did not end, if so.
    `environment_seconds`: how long the environment was loaded before the script began,
    `pipeline_seconds`: how long the rest of its pipeline was waited for."""

    status: int
    usage: Usage | None
    timeout: float | None = None
    unfinished: str = ""
    environment_seconds: float = 0.0
    pipeline_seconds: float = 0.0

    @property
    def has_failed(self) -> bool:
        return self.status != 0 or self.timeout is not None or bool(self.unfinished)

    @property
    def how(self) -> str:
        """How a script ended that has failed, as the rest of a sentence about it."""
        if self.timeout is not None:
            return f"ran for longer than its timeout of {self.timeout:g} s"
        if self.unfinished:
            return f"left processes that do not end: {self.unfinished}"
        said = f"ended with exit status {self.status}"
        with suppress(ValueError):
            said += f", as after {signal.Signals(self.status - 128).name}"
        return said

    def reason(self, script: str) -> str:
        """Why a phase failed whose script (`the run script`) ended so, for a list of failures."""
        is_timeout = self.timeout is not None or self.unfinished
        return f"{'timeout: ' if is_timeout else ''}{script} {self.how}"


class TimeLimit:
    """Ends a script, a child of this process, after so many `seconds`; None: never."""

    def __init__(self, pid: int, seconds: float | None) -> None:
        self.is_over = False
        self._pid = pid
        self.ends_at = None if seconds is None else time.monotonic() + seconds
        self._found: dict[int, ProcessIdentity] = {}

    @property
    def seconds_left(self) -> float:
        """When to call `look` at the latest, in seconds from now."""
        if self.ends_at is None or self.is_over:
            return math.inf
        return max(0.0, self.ends_at - time.monotonic())

    def look(self) -> None:
        """End the script if its time is over; then call it again and again until it has ended."""
        if self.ends_at is None or time.monotonic() < self.ends_at:
            return
        # Again and again: a script may start processes while it ends.
        processes = self._processes()
        if not self.is_over:
            self.is_over = True
            send_signal(processes, signal.SIGTERM)
        elif time.monotonic() >= self.ends_at + GRACE:
            send_signal(processes, signal.SIGKILL)

    def finish(self) -> None:
        """If the time was over, wait for the end of all processes that the script has started.

        To be called before the script is waited for. A process that hangs in the kernel is left.
        """
        if not self.is_over or self.ends_at is None:
            return
        last = self.ends_at + 2 * GRACE
        while any(each.is_alive() for each in self._processes()) and time.monotonic() < last:
            self.look()
            time.sleep(_PAUSE)

    def _processes(self) -> list[ProcessIdentity]:
        """The script and its descendants, also those whose parents have ended since.

        The oldest is the first: else a script might wait for a child that was told to end before
        it, and go on as if the child had ended by itself.
        """
        known = {pid for pid, each in self._found.items() if each.is_alive()} | {self._pid}
        self._found = {each.pid: each for each in _with_descendants(known)}
        return sorted(self._found.values(), key=lambda each: (each.start, each.pid != self._pid))


def _with_descendants(pids: Iterable[int]) -> list[ProcessIdentity]:
    """The living ones of these processes, and of all that descend from them."""
    entries = [entry for entry in all_entries() if entry.state not in "ZX"]
    known = set(pids)
    while more := {e.pid for e in entries if e.parent in known} - known:
        known |= more
    return [ProcessIdentity(e.pid, e.start) for e in entries if e.pid in known]


def running_children() -> set[int]:
    """The children of this process without those that a script left to it."""
    return _children() - _left


def _children() -> set[int]:
    # One call where there is none, as after most scripts.
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return set()
    return set(child_pids())


class Remains:
    """What a script leaves behind, which becomes a child of this process. Make it before the
    script starts."""

    def __init__(self, files: Iterable[Path], logs: Iterable[Path]) -> None:
        """`files` are outputs of the script, `logs` those to which it prints."""
        adopt_orphans()
        self._files, self._logs = list(map(str, files)), list(map(str, logs))
        self._before = _children()

    def wait(self, is_success: bool, ends_at: float | None, follow: Callable[[], None]) -> str:
        """After a success, wait for what the script's pipeline still writes; `follow` meanwhile.

        Returns why not all of it was written, or "". All other processes stay, but for those that
        only hold what the script prints.
        """
        if not (left := self._reap()):
            return ""
        unfinished = self._wait_for(left, ends_at, follow) if is_success else ""
        _left.update(self._orphans)
        return unfinished

    @property
    def _orphans(self) -> set[int]:
        return _children() - self._before

    def _wait_for(
        self, left: list[ProcessIdentity], ends_at: float | None, follow: Callable[[], None]
    ) -> str:
        # Imported here: few scripts leave a process.
        from snakemake_kochi.own_pipeline import OwnPipeline

        since = min(each.start for each in left)
        pipeline = OwnPipeline(self._files, self._logs, since, ends_at, _say)
        ended: set[ProcessIdentity] = set()
        while left:
            everything = pipeline.look(left)
            if pipeline.failure:
                _end(everything, self._reap)
                return pipeline.failure
            # What reads from one that held the log may be one of the pipeline afterwards.
            held = set(pipeline.held) - ended
            if not pipeline.is_waiting and not held:
                break
            _end(held, self._reap)
            ended |= held
            time.sleep(max(0.0, pipeline.due - time.monotonic()))
            follow()
            left = self._reap()
        return ""

    def _reap(self) -> list[ProcessIdentity]:
        """The living processes that the script left; reaps the dead ones."""
        orphans = self._orphans
        for pid in orphans:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        return _with_descendants(orphans) if orphans else []


def _say(text: str) -> None:
    print(f"kochi: {text}", file=sys.stderr, flush=True)


def _end(processes: Iterable[ProcessIdentity], reap: Callable[[], object]) -> None:
    """End processes: SIGTERM, and SIGKILL after a second."""
    processes = list(processes)
    send_signal(processes, signal.SIGTERM)
    kill_at = time.monotonic() + 1.0
    last = kill_at + GRACE
    while any(each.is_alive() for each in processes) and time.monotonic() < last:
        time.sleep(_PAUSE)
        reap()
        if time.monotonic() >= kill_at:
            send_signal(processes, signal.SIGKILL)
