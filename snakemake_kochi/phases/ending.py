"""How a script ends: by itself, or because its time is over.

A phase ends its script itself, at the exact time and under any executor. The scheduler and the
worker, which have the `runtime` of the job, would end the phase, too.
"""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from dataclasses import dataclass

from snakemake_kochi.processes import ProcessIdentity, all_entries, send_signal

# Seconds between SIGTERM, upon which a script may write what it has, and SIGKILL.
GRACE = 5.0
_PAUSE = 0.02


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
    program."""

    status: int
    usage: Usage | None
    timeout: float | None = None

    @property
    def has_failed(self) -> bool:
        return self.status != 0 or self.timeout is not None

    @property
    def how(self) -> str:
        """How a script ended that has failed, as the rest of a sentence about it."""
        if self.timeout is not None:
            return f"ran for longer than its timeout of {self.timeout:g} s"
        said = f"ended with exit status {self.status}"
        with suppress(ValueError):
            said += f", as after {signal.Signals(self.status - 128).name}"
        return said

    def reason(self, script: str) -> str:
        """Why a phase failed whose script (`the run script`) ended so, for a list of failures."""
        return f"{'' if self.timeout is None else 'timeout: '}{script} {self.how}"


class TimeLimit:
    """Ends a script, a child of this process, after so many `seconds`; None: never."""

    def __init__(self, pid: int, seconds: float | None) -> None:
        self.is_over = False
        self._pid = pid
        self._ends_at = None if seconds is None else time.monotonic() + seconds
        self._found: dict[int, ProcessIdentity] = {}

    def look(self) -> None:
        """End the script if its time is over; to be called again and again until it has ended."""
        if self._ends_at is None or time.monotonic() < self._ends_at:
            return
        # Again and again: a script may start processes while it ends.
        processes = self._processes()
        if not self.is_over:
            self.is_over = True
            send_signal(processes, signal.SIGTERM)
        elif time.monotonic() >= self._ends_at + GRACE:
            send_signal(processes, signal.SIGKILL)

    def finish(self) -> None:
        """If the time was over, wait for the end of all processes that the script has started.

        To be called before the script is waited for. A process that hangs in the kernel is left.
        """
        if not self.is_over or self._ends_at is None:
            return
        last = self._ends_at + 2 * GRACE
        while any(each.is_alive() for each in self._processes()) and time.monotonic() < last:
            self.look()
            time.sleep(_PAUSE)

    def _processes(self) -> list[ProcessIdentity]:
        """The script and its descendants, also those whose parents have ended since.

        The oldest is the first: else a script might wait for a child that was told to end before
        it, and go on as if the child had ended by itself.
        """
        entries = [entry for entry in all_entries() if entry.state not in "ZX"]
        known = {pid for pid, each in self._found.items() if each.is_alive()} | {self._pid}
        while more := {e.pid for e in entries if e.parent in known} - known:
            known |= more
        starts = {entry.pid: entry.start for entry in entries}
        self._found = {pid: ProcessIdentity(pid, starts[pid]) for pid in known if pid in starts}
        return sorted(self._found.values(), key=lambda each: (each.start, each.pid != self._pid))
