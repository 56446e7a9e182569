"""Whether a node is fit to run jobs. A node that fails every job would soon empty its queues."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import NO_ROOM, TRANSIENT, is_there, write_atomically
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.result import Result, UncountedReason
from snakemake_kochi.queue.wakeup import subscribers
from snakemake_kochi.queue.workers import read_worker

_log = logging.getLogger(__name__)

MOST_FAILED_STARTS = 3
# A worker is set aside after so many failures in a row if another worker has successes meanwhile.
MOST_FAILURES = 10
# From this failure on the worker watches the other workers. Most jobs fail for reasons of their
# own, and their streaks end earlier.
_FIRST_WATCHED = 5
_CHECK_INTERVAL = 1.0  # seconds
_PATIENCE = 10.0  # seconds for a shell that does nothing
# Seconds during which an error of TRANSIENT counts as transient and ends no other job of the
# worker.
_PASSES_WITHIN = 30.0
_FSTAB = Path("/etc/fstab")
# These errors say nothing about the node: the job or its user may have removed or closed a
# directory.
_NOT_OF_THE_NODE = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG}
)


# For each worker: the name of its node, and the numbers of a queue's jobs that succeeded and failed
# there.
_Others = Mapping[int, tuple[str, int, int]]


@dataclass
class _Streak:
    """Failures in a row of jobs of one queue.

    `others`: the counts of other workers before the last of these failures (None: not known yet).
    """

    failures: int = 0
    others: _Others | None = None


@dataclass(frozen=True)
class _Fault:
    """A fault of a node.

    `what` completes "this node cannot", for people. `errno`: that of the fault, if any.
    """

    what: str
    errno: int | None = None


@dataclass
class _Doubt:
    """A fault that may be transient.

    It has the directory of the job that met the fault, and when the fault was first and last seen,
    in monotonic seconds.
    """

    directory: str
    since: float
    looked: float


class Health:
    """Judges the failures of one worker's jobs.

    `cause`: why the worker must be set aside, for people; None as long as it may go on.
    """

    def __init__(
        self,
        machine: MachinePaths,
        worker: int,
        environment: Mapping[str, str],
        patience: float = _PATIENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without failures.

        `environment`: that of the jobs. `patience`: seconds that a shell may take to do nothing.
        """
        self.cause: str | None = None
        self._patience = patience
        self._clock = clock
        self._machine = machine
        self._worker = worker
        self._environment = dict(environment)
        wanted = environment.get("TMPDIR") or "/tmp"
        # If the directory never existed, it hinders no job: tools use another one.
        self._temporary = Path(wanted if os.path.isdir(wanted) else "/tmp")
        self._checked = 0.0
        self._failed_starts = 0
        self._failing_since = 0.0
        self._doubt: _Doubt | None = None
        self._streaks: dict[str, _Streak] = {}
        self._compared = 0.0

    def fault_behind(self, result: Result, directory: str) -> str | None:
        """The node's fault, for people, if a job with this result may have failed because of it.

        The job's failure then does not count, for `reason`. The worker must be set aside or, if the
        fault may be transient, it `is_in_doubt`.
        """
        if result.reason not in ("failed", "signal"):
            return None
        return self._fault(directory)

    def start_failed(self, error: OSError | KochiError, directory: str) -> str | None:
        """As `fault_behind`, for a job that could not be started.

        A full disk is full on all nodes, and is no fault of this one.
        """
        number = error.errno if isinstance(error, OSError) else None
        if number in NO_ROOM:
            return None
        if self._failed_starts == 0:
            self._failing_since = self._clock()
        self._failed_starts += 1
        fault = self._fault(directory)
        is_lasting = not self._may_pass(number, self._failing_since)
        if fault is None and self._failed_starts >= MOST_FAILED_STARTS and is_lasting:
            self._set_aside(f"{self._failed_starts} starts failed in a row: {error}")
        return fault

    def started(self) -> None:
        self._failed_starts = 0

    @property
    def reason(self) -> UncountedReason:
        """The reason for requeuing a job that failed because of a fault of the node."""
        # The third node that fails ends a ticket, and a ticket could soon meet a transient fault
        # three times.
        return "drained" if self.cause is None else "node failed"

    def is_in_doubt(self) -> bool:
        """Whether the node has a fault that may be transient: no job should start now.

        Checks again at intervals.
        """
        doubt = self._doubt
        if doubt is not None and self._clock() >= doubt.looked + _CHECK_INTERVAL:
            self._fault(doubt.directory)
        return self._doubt is not None

    def note(self, result: Result, queue: str) -> None:
        """Note the published result of a job of this queue."""
        if result.ok:
            self._streaks.clear()  # the node can run some jobs
        elif result.reason in ("failed", "signal", "out of memory"):
            streak = self._streaks.setdefault(queue, _Streak())
            streak.failures += 1
            # After an error of the filesystem nothing is known about the others: the next failure
            # asks again.
            with contextlib.suppress(OSError):
                if streak.others is None:
                    if streak.failures >= _FIRST_WATCHED:
                        streak.others = self._live_others(queue)
                elif streak.failures >= MOST_FAILURES and self._is_time_to_compare():
                    self._compare(streak, streak.others, self._live_others(queue))

    def _is_time_to_compare(self) -> bool:
        due = self._clock() >= self._compared + _CHECK_INTERVAL
        if due:
            self._compared = self._clock()
        return due

    def _live_others(self, queue: str) -> _Others:
        """The counts of the other live workers.

        Raises OSError when not all are known now: an omitted worker would count as new next time,
        with all its successes since it started.
        """
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
        if self._clock() < self._checked + _CHECK_INTERVAL:
            return None
        for check in (self._execute, lambda: _enter(directory), self._write, self._write_temporary):
            if (fault := check()) is not None:
                return self._judged(fault, directory)
        self._doubt = None
        self._checked = self._clock()
        return None

    def _judged(self, fault: _Fault, directory: str) -> str:
        cause = f"this node cannot {fault.what}"
        now = self._clock()
        if self._doubt is None:
            self._doubt = _Doubt(directory, now, now)
            if fault.errno in TRANSIENT:
                _log.warning("%s; no job starts until it can", cause)
        self._doubt.looked = now
        if not self._may_pass(fault.errno, self._doubt.since):
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
            status = process.wait(self._patience)
        except subprocess.TimeoutExpired:
            # Not `subprocess.run`, which would wait for the end of the process: if a filesystem
            # hangs, not even SIGKILL ends the process, and the worker could not report that it
            # leaves.
            process.kill()
            return _Fault(f"execute /bin/sh: it takes longer than {self._patience:g} seconds")
        return None if status == 0 else _Fault(f"execute /bin/sh: status {status}")

    def _write(self) -> _Fault | None:
        probe = self._machine.worker(self._worker).probe
        try:
            write_atomically(probe, b"written to test whether this node can write\n")
            probe.unlink()
        except OSError as error:
            # A full disk is full on all nodes, and results wait until the disk has room again.
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

    def _may_pass(self, number: int | None, since: float) -> bool:
        """Whether an error may be transient; `since`: when first seen, in monotonic seconds."""
        return number in TRANSIENT and self._clock() < since + _PASSES_WITHIN


def _enter(directory: str) -> _Fault | None:
    try:
        os.stat(os.path.join(directory, "."))
    except OSError as error:
        if error.errno not in _NOT_OF_THE_NODE:
            return _Fault(f"enter {directory}: {error.strerror}", error.errno)
        if error.errno == errno.ENOENT and (empty := unmounted_above(Path(directory))):
            return _Fault(f"enter {directory}: {empty} is empty, as if nothing was mounted there")
    return None


def unmounted_above(directory: Path, user: int | None = None, fstab: Path = _FSTAB) -> Path | None:
    """The nearest existing directory above a missing one, if a mount is certainly missing there.

    `user`: the user of the job that misses the directory, by default the process's own.

    An empty directory proves nothing: most missing directories were removed, together with their
    siblings, and a job that fails for this reason must not set its node aside. It proves a missing
    mount only if the user could not have removed anything there, or if fstab(5) lists it as a mount
    point.
    """
    with contextlib.suppress(OSError):
        nearest = next(parent for parent in directory.parents if is_there(parent)).resolve()
        if nearest in _mount_points(fstab) and not nearest.is_mount():
            return nearest
        is_bare = nearest == Path("/") or not any(nearest.iterdir())
        if is_bare and _is_out_of_reach(nearest, os.geteuid() if user is None else user):
            return nearest
    return None


def _is_out_of_reach(directory: Path, user: int) -> bool:
    """Whether only root may remove entries of the directory, and the user is not root."""
    found = directory.stat()
    is_shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return found.st_uid == 0 != user and not is_shared


def _mount_points(fstab: Path) -> set[Path]:
    try:
        lines = fstab.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return set()
    rows = [line.split() for line in lines if not line.lstrip().startswith("#")]
    return {Path(_unescaped(row[1])) for row in rows if len(row) > 1 and row[1].startswith("/")}


def _unescaped(text: str) -> str:
    # fstab(5) has escapes for these characters only.
    return text.replace("\\040", " ").replace("\\011", "\t")
