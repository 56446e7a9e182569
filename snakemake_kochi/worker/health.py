"""Whether a node is fit to run jobs: one that fails everything would empty a queue in no time."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import write_atomically
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.result import Result
from snakemake_kochi.queue.workers import read_worker, subscribers
from snakemake_kochi.worker.mounts import unmounted_above

_log = logging.getLogger(__name__)

MOST_FAILED_STARTS = 3
# That many failures in a row, while another worker has successes.
MOST_FAILURES = 10
# From this one on the others are watched; most failures are the job's own, and end earlier.
_FIRST_WATCHED = 5
_CHECK_INTERVAL = 1.0  # seconds
_PATIENCE = 10.0  # seconds for a shell that does nothing
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# These tell nothing of the node: the job, or its user, may have removed or closed a directory.
_NOT_OF_THE_NODE = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG}
)


# By worker: the node's name, and how many jobs of a queue succeeded and failed there.
_Others = Mapping[int, tuple[str, int, int]]


@dataclass
class _Streak:
    """Failures in a row of jobs of one queue, and how other workers fared before the last ones."""

    failures: int = 0
    others: _Others = field(default_factory=dict)


class Health:
    """Judges the failures of one worker's jobs.

    `cause`: why the worker has to be set aside, for people; None as long as it may go on.
    """

    def __init__(self, machine: MachinePaths, worker: int, environment: Mapping[str, str]) -> None:
        self.cause: str | None = None
        self._machine = machine
        self._worker = worker
        self._environment = dict(environment)
        wanted = Path(environment.get("TMPDIR") or "/tmp")
        # One that never was there hinders no job: tools then take another.
        self._temporary = wanted if wanted.is_dir() else Path("/tmp")
        self._checked = 0.0
        self._failed_starts = 0
        self._streaks: dict[str, _Streak] = {}
        self._compared = 0.0

    def fault_behind(self, result: Result, directory: str) -> str | None:
        """What the node cannot do, if a job with this result may have failed for that; then the
        worker is to be set aside."""
        if result.reason not in ("failed", "signal"):
            return None
        return self._fault(directory)

    def start_failed(self, error: OSError, directory: str) -> str | None:
        """A job could not be started; as `fault_behind`. A full disk of all nodes is not this
        one's fault."""
        if error.errno in _FULL:
            return None
        self._failed_starts += 1
        fault = self._fault(directory)
        if fault is None and self._failed_starts >= MOST_FAILED_STARTS:
            self._set_aside(f"{self._failed_starts} starts failed in a row: {error}")
        return fault

    def started(self) -> None:
        self._failed_starts = 0

    def note(self, result: Result, queue: str) -> None:
        """A result of a job of that queue was published."""
        if result.ok:
            self._streaks.clear()  # whatever else fails, this node can do something
        elif result.reason in ("failed", "signal", "out of memory"):
            streak = self._streaks.setdefault(queue, _Streak())
            streak.failures += 1
            if streak.failures == _FIRST_WATCHED:
                streak.others = self._live_others(queue)
            elif streak.failures >= MOST_FAILURES and self._is_time_to_compare():
                self._compare(streak, self._live_others(queue))

    def _is_time_to_compare(self) -> bool:
        due = time.monotonic() >= self._compared + _CHECK_INTERVAL
        if due:
            self._compared = time.monotonic()
        return due

    def _live_others(self, queue: str) -> _Others:
        found = {}
        with contextlib.suppress(OSError):
            for number in subscribers(self._machine.queue(queue)):
                with contextlib.suppress(OSError, DamagedFileError):
                    state = read_worker(self._machine, number)
                    if number != self._worker and state.is_live:
                        found[number] = (state.node.host, *state.by_queue.get(queue, (0, 0)))
        return found

    def _compare(self, streak: _Streak, others: _Others) -> None:
        for number, (host, good, bad) in others.items():
            _, good_before, bad_before = streak.others.get(number, (host, 0, 0))
            succeeded = good - good_before
            if succeeded > bad - bad_before:
                self._set_aside(
                    f"{streak.failures} jobs in a row failed here, while worker {number} on "
                    f"{host} succeeded with {succeeded}"
                )
                return

    def _fault(self, directory: str) -> str | None:
        if self.cause is not None:
            return self.cause
        if time.monotonic() < self._checked + _CHECK_INTERVAL:
            return None
        for check in (self._execute, lambda: _enter(directory), self._write, self._write_temporary):
            if (fault := check()) is not None:
                self._set_aside(f"this node cannot {fault}")
                return self.cause
        self._checked = time.monotonic()
        return None

    def _set_aside(self, cause: str) -> None:
        self.cause = cause
        _log.warning("set aside: %s", cause)

    def _execute(self) -> str | None:
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", "true"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=self._environment,
            )
        except OSError as error:
            return f"start processes: {error.strerror}"
        try:
            status = process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            # Not `subprocess.run`, which would wait for its end: where a filesystem hangs, even
            # SIGKILL does not end a process, and the worker has to say that it goes.
            process.kill()
            return f"execute /bin/sh: it takes longer than {_PATIENCE:g} seconds"
        return None if status == 0 else f"execute /bin/sh: status {status}"

    def _write(self) -> str | None:
        probe = self._machine.worker(self._worker).probe
        try:
            write_atomically(probe, b"written to see whether it can be\n")
            probe.unlink()
        except OSError as error:
            # Full, it is so for all nodes; and results wait until there is room again.
            return None if error.errno in _FULL else f"write {probe}: {error.strerror}"
        return None

    def _write_temporary(self) -> str | None:
        try:
            with tempfile.TemporaryFile(dir=self._temporary) as stream:
                stream.write(bytes(4096))
        except OSError as error:
            return f"write into {self._temporary}: {error.strerror}"
        return None


def _enter(directory: str) -> str | None:
    try:
        os.stat(os.path.join(directory, "."))
    except OSError as error:
        if error.errno not in _NOT_OF_THE_NODE:
            return f"enter {directory}: {error.strerror}"
        if error.errno == errno.ENOENT and (place := unmounted_above(Path(directory))):
            return f"enter {directory}: {place} is empty, as if nothing was mounted there"
    return None
