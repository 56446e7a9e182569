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
from dataclasses import dataclass
from pathlib import Path

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import IN_TROUBLE, NO_ROOM, write_atomically
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.result import Result, UncountedReason
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
# Seconds in which IN_TROUBLE is no reason to end the other jobs of the worker.
_PASSES_WITHIN = 30.0
# These tell nothing of the node: the job, or its user, may have removed or closed a directory.
_NOT_OF_THE_NODE = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG}
)


# By worker: the node's name, and how many jobs of a queue succeeded and failed there.
_Others = Mapping[int, tuple[str, int, int]]


@dataclass
class _Streak:
    """Failures in a row of jobs of one queue, and how other workers fared before the last ones
    (None: not known yet)."""

    failures: int = 0
    others: _Others | None = None


@dataclass(frozen=True)
class _Fault:
    """What a node cannot do, for people, and the errno that said so, if any."""

    what: str
    errno: int | None = None


@dataclass
class _Doubt:
    """A fault that may pass: of which directory, since when, and when it was last looked for."""

    directory: str
    since: float
    looked: float


class Health:
    """Judges the failures of one worker's jobs.

    `cause`: why the worker has to be set aside, for people; None as long as it may go on.
    """

    def __init__(self, machine: MachinePaths, worker: int, environment: Mapping[str, str]) -> None:
        self.cause: str | None = None
        self._machine = machine
        self._worker = worker
        self._environment = dict(environment)
        wanted = environment.get("TMPDIR") or "/tmp"
        # One that never was there hinders no job: tools then take another.
        self._temporary = Path(wanted if os.path.isdir(wanted) else "/tmp")
        self._checked = 0.0
        self._failed_starts = 0
        self._failing_since = 0.0
        self._doubt: _Doubt | None = None
        self._streaks: dict[str, _Streak] = {}
        self._compared = 0.0

    def fault_behind(self, result: Result, directory: str) -> str | None:
        """What the node cannot do, if a job with this result may have failed for that. Then the
        worker is to be set aside, or, where that may pass, `is_in_doubt`; the job's failure counts
        for nothing, for `reason`."""
        if result.reason not in ("failed", "signal"):
            return None
        return self._fault(directory)

    def start_failed(self, error: OSError | KochiError, directory: str) -> str | None:
        """A job could not be started; as `fault_behind`. A full disk of all nodes is not this
        one's fault."""
        number = error.errno if isinstance(error, OSError) else None
        if number in NO_ROOM:
            return None
        if self._failed_starts == 0:
            self._failing_since = time.monotonic()
        self._failed_starts += 1
        fault = self._fault(directory)
        is_to_be_believed = not _may_pass(number, self._failing_since)
        if fault is None and self._failed_starts >= MOST_FAILED_STARTS and is_to_be_believed:
            self._set_aside(f"{self._failed_starts} starts failed in a row: {error}")
        return fault

    def started(self) -> None:
        self._failed_starts = 0

    @property
    def reason(self) -> UncountedReason:
        """Why a job that failed for a fault of the node goes back to its queue."""
        # The third node that failed ends a ticket. What may pass would soon have been met thrice.
        return "drained" if self.cause is None else "node failed"

    def is_in_doubt(self) -> bool:
        """Whether the node had a fault that may pass, and has it still: nothing should be started
        now. Looks again for that once in a while."""
        doubt = self._doubt
        if doubt is not None and time.monotonic() >= doubt.looked + _CHECK_INTERVAL:
            self._fault(doubt.directory)
        return self._doubt is not None

    def note(self, result: Result, queue: str) -> None:
        """A result of a job of that queue was published."""
        if result.ok:
            self._streaks.clear()  # whatever else fails, this node can do something
        elif result.reason in ("failed", "signal", "out of memory"):
            streak = self._streaks.setdefault(queue, _Streak())
            streak.failures += 1
            # An error of the filesystem tells nothing of the others: the next failure asks again.
            with contextlib.suppress(OSError):
                if streak.others is None:
                    if streak.failures >= _FIRST_WATCHED:
                        streak.others = self._live_others(queue)
                elif streak.failures >= MOST_FAILURES and self._is_time_to_compare():
                    self._compare(streak, streak.others, self._live_others(queue))

    def _is_time_to_compare(self) -> bool:
        due = time.monotonic() >= self._compared + _CHECK_INTERVAL
        if due:
            self._compared = time.monotonic()
        return due

    def _live_others(self, queue: str) -> _Others:
        """Raises OSError where they are not all known now: one that was left out would count as one
        that is new, with all that ever succeeded there."""
        found = {}
        for number in subscribers(self._machine.queue(queue)):
            with contextlib.suppress(FileNotFoundError, DamagedFileError):
                state = read_worker(self._machine, number)
                if number != self._worker and state.is_live:
                    found[number] = (state.node.host, *state.by_queue.get(queue, (0, 0)))
        return found

    def _compare(self, streak: _Streak, before: _Others, others: _Others) -> None:
        for number, (host, good, bad) in others.items():
            _, good_before, bad_before = before.get(number, (host, 0, 0))
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
                return self._judged(fault, directory)
        self._doubt = None
        self._checked = time.monotonic()
        return None

    def _judged(self, fault: _Fault, directory: str) -> str:
        cause = f"this node cannot {fault.what}"
        moment = time.monotonic()
        if self._doubt is None:
            self._doubt = _Doubt(directory, moment, moment)
            if fault.errno in IN_TROUBLE:
                _log.warning("%s; nothing is started until it can", cause)
        self._doubt.looked = moment
        if not _may_pass(fault.errno, self._doubt.since):
            self._set_aside(cause)
        return cause

    def _set_aside(self, cause: str) -> None:
        self.cause = cause
        _log.warning("set aside: %s", cause)

    def _execute(self) -> _Fault | None:
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
            return _Fault(f"start processes: {error.strerror}", error.errno)
        try:
            status = process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            # Not `subprocess.run`, which would wait for its end: where a filesystem hangs, even
            # SIGKILL does not end a process, and the worker has to say that it goes.
            process.kill()
            return _Fault(f"execute /bin/sh: it takes longer than {_PATIENCE:g} seconds")
        return None if status == 0 else _Fault(f"execute /bin/sh: status {status}")

    def _write(self) -> _Fault | None:
        probe = self._machine.worker(self._worker).probe
        try:
            write_atomically(probe, b"written to see whether it can be\n")
            probe.unlink()
        except OSError as error:
            # Full, it is so for all nodes; and results wait until there is room again.
            is_full = error.errno in NO_ROOM
            return None if is_full else _Fault(f"write {probe}: {error.strerror}", error.errno)
        return None

    def _write_temporary(self) -> _Fault | None:
        try:
            with tempfile.TemporaryFile(dir=self._temporary) as stream:
                stream.write(bytes(4096))
        except OSError as error:
            return _Fault(f"write into {self._temporary}: {error.strerror}", error.errno)
        return None


def _may_pass(number: int | None, since: float) -> bool:
    """Whether an error that is met since then, in monotonic seconds, may be over in a moment."""
    return number in IN_TROUBLE and time.monotonic() < since + _PASSES_WITHIN


def _enter(directory: str) -> _Fault | None:
    try:
        os.stat(os.path.join(directory, "."))
    except OSError as error:
        if error.errno not in _NOT_OF_THE_NODE:
            return _Fault(f"enter {directory}: {error.strerror}", error.errno)
        if error.errno == errno.ENOENT and (place := unmounted_above(Path(directory))):
            return _Fault(f"enter {directory}: {place} is empty, as if nothing was mounted there")
    return None
