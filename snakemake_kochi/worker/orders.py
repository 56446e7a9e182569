"""What a worker obeys: orders, its time limit, and the life of its parent and of its controller.

A person or a run writes files that tell the worker to leave or to cancel a job. The controller
gives signs of life. When the filesystem returns an error, the answer is unknown, and the worker
looks again later: a guess would end all its jobs, or leave the worker behind for ever.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from snakemake_kochi.errors import DamagedFileError, WorkerError
from snakemake_kochi.files import is_removed, is_there, list_names
from snakemake_kochi.heartbeat import LOST_AFTER, Stillness, sign_of_life
from snakemake_kochi.notices import Notices
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import ProcessIdentity, this_node
from snakemake_kochi.quantities import format_duration
from snakemake_kochi.queue.controllers import SILENT_AFTER, read_controller
from snakemake_kochi.queue.entries import waiting_entries
from snakemake_kochi.queue.wakeup import Release, read_release
from snakemake_kochi.queue.workers import FRESH, ROUNDING, WorkerState
from snakemake_kochi.schedulers.environment import own_allocation
from snakemake_kochi.worker.own_directory import OwnDirectory
from snakemake_kochi.worker.settings import START_AND_END

_log = logging.getLogger(__name__)

TIME_IS_OVER = "its walltime is over"
# Seconds. See --signal in sbatch(1): "the signal may be sent up to 60 seconds earlier".
_EARLIEST_WARNING = 60.0
RELEASED = "released by kochi release"
# A scheduler sends this signal to tell a worker that its time is nearly over.
END_SIGNAL = signal.SIGUSR1
# Seconds between the end of the jobs and the worker's own end, to requeue the tickets.
_RESERVE = 5.0
# Seconds before its end at which a scheduler may signal a worker: Slurm signals up to a minute too
# early.
_ABOUT_OVER = 120.0
_MOST_OF_IT = 0.5
# Seconds for the command that cancels allocations.
_CANCEL_PATIENCE = 60.0
# Seconds between two looks whether the run that started the worker is over.
_RUN_INTERVAL = 5.0


@dataclass(frozen=True)
class Surroundings:
    """What a worker finds where it was started.

    `environment`: that of its jobs. `parent`: the worker ends when this process ends. `walltime`:
    how long the worker may live.
    """

    environment: Mapping[str, str]
    parent: ProcessIdentity | None
    walltime: Walltime


class Orders:
    """The orders for one worker; no method raises OSError.

    `reason`: why the worker must stop, for people; None if only a signal told it to stop.
    `requests`: how often it was told to stop. `is_finishing`: whether it must leave when its jobs
    have ended.
    """

    def __init__(
        self, machine: MachinePaths, worker: int, own: OwnDirectory, surroundings: Surroundings
    ) -> None:
        self.reason: str | None = None
        self.requests = 0
        self.is_finishing = False
        self._machine = machine
        self._worker = worker
        self._own = own
        self._parent = surroundings.parent
        self._walltime = surroundings.walltime
        self._notices = Notices(_log)

    @property
    def is_stopping(self) -> bool:
        return self.requests > 0 or self.reason is not None or self.is_finishing

    def stop(self, reason: str) -> None:
        """Tell the worker to stop for this reason, unless it already has one."""
        self.reason = self.reason or reason

    def is_told_to_stop(self, signals: int) -> bool:
        """Whether there is a new request to stop.

        `signals` is the number of stop signals so far. The end of the worker's parent, the end of
        its time and a reason given to `stop` are requests, too.
        """
        if self._parent is not None and not self._parent.is_alive():
            self.reason = f"process {self._parent.pid}, which started this worker, is gone"
        elif self._walltime.is_over:
            self.stop(TIME_IS_OVER)
        before, self.requests = self.requests, signals + (self.reason is not None)
        return self.requests != before

    def is_told_to_finish(self) -> bool:
        """Whether a person wanted the worker, at its last look, to leave when its jobs have ended.

        If the person wants it to leave at once, this method calls `stop`.
        """
        how = self._release()
        if how == "now":
            self.stop(f"{RELEASED}, at once")
        elif how == "finish" and not self.is_stopping:
            self.is_finishing = True
            return True
        return False

    def _release(self) -> Release | None:
        """How a person wants the worker to leave; None without such an order, or if unknown."""
        what = "orders to leave cannot be read now"
        try:
            is_told = self._own.has(self._machine.worker(self._worker).release)
            how = read_release(self._machine, self._worker) if is_told else None
        except (OSError, DamagedFileError) as error:
            self._notices.fault(what, error)
            return None
        self._notices.over(what)
        return how

    def cancelled(self, jobs: Iterable[int]) -> set[int]:
        """The jobs among these that are known to be cancelled."""
        what = "orders to cancel jobs cannot be read now"
        found = set()
        try:
            for job in jobs:
                paths = self._machine.job(job)
                # Listed: once a client of NFS has not found a name, it says so for up to a minute.
                if paths.cancel.name in list_names(paths.directory):
                    found.add(job)
        except OSError as error:
            # Do not ask about the other jobs: each question may take seconds.
            self._notices.fault(what, error)
            return found
        self._notices.over(what)
        return found


class Walltime:
    """The time limit of a worker, if any; mostly that of a scheduler.

    It is measured by a clock that cannot be set and that also runs while the node sleeps, like the
    scheduler's clock.
    """

    def __init__(self, seconds: float | None, grace: float, spent: float | None = None) -> None:
        """Begin to measure.

        `seconds`: the limit from now, or None. `grace`: seconds that the jobs get to end. `spent`:
        seconds since the worker's allocation began, if it runs in one.
        """
        self.until = None
        self._over = None if seconds is None else _clock() + seconds
        self._end = None if self._over is None else self._over - grace - _RESERVE
        self._fresh_until = _clock() + FRESH
        self._whole = None if seconds is None or spent is None else seconds + spent + ROUNDING
        if seconds is not None:
            moment = datetime.now(UTC) + timedelta(seconds=seconds)
            self.until = moment.isoformat(timespec="seconds")

    def seconds_left(self) -> float | None:
        """Seconds until jobs must be told to end; negative after that, None without a limit."""
        return None if self._end is None else self._end - _clock()

    def seconds_for_jobs(self) -> float | None:
        """How long a job may take that begins now, in the form of `queue.seconds_for_jobs`."""
        return self._whole if self.is_fresh else self.seconds_left()

    @property
    def is_fresh(self) -> bool:
        """Whether a job may begin that takes all the time of the worker's allocation."""
        return self._whole is not None and _clock() < self._fresh_until

    def job_ended(self) -> None:
        """Note that the worker has run a job and is no longer fresh."""
        self._fresh_until = 0.0

    @property
    def is_over(self) -> bool:
        left = self.seconds_left()
        return left is not None and left <= 0

    @property
    def ends_jobs_soon(self) -> bool:
        """Whether this clock tells the jobs to end in the time by which Slurm may be early.

        If the time seems to be longer, somebody has shortened it in the scheduler.
        """
        left = self.seconds_left()
        return left is not None and left <= _EARLIEST_WARNING

    def was_used_by(self, seconds: float, worked: float) -> bool:
        """Whether a job used most of the time of a worker whose time is about over.

        `seconds`: how long the job has run; `worked`: how long the worker has. A requeued job is
        the first that the next worker starts, so it would run out of time there, too.
        """
        is_about_over = self._over is not None and self._over - _clock() <= _ABOUT_OVER
        return is_about_over and seconds >= _MOST_OF_IT * worked

    def is_shorter_than_allocation_for(self, limit: float) -> bool:
        """Whether an allocation for a job with this limit would be longer than the worker's own.

        `limit` is in seconds.
        """
        return self._whole is not None and limit + START_AND_END > self._whole


def _clock() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def find_walltime(
    option: float | None,
    environment: Mapping[str, str],
    grace: float,
    began: str | None = None,
    requested: float | None = None,
) -> Walltime:
    """The earlier of a person's limit (seconds from now) and the scheduler's limit.

    `began`: when the worker's allocation began, if it runs in one. `requested`: the seconds for
    which the allocation was requested. Raises WorkerError if the option leaves no time for jobs.
    """
    if option is not None and option <= grace + _RESERVE:
        least = format_duration(grace + _RESERVE)
        raise WorkerError(
            f"a walltime of {format_duration(option)} leaves no time for jobs: a worker needs "
            f"{least} to end them",
            "Use a longer walltime, for example: --walltime 2h",
        )
    spent = None if began is None else time.time() - datetime.fromisoformat(began).timestamp()
    left = None if requested is None or spent is None else requested - spent
    own = own_allocation(environment)
    limits = [option, None if own is None else own.seconds_left(left)]
    earliest = min((limit for limit in limits if limit is not None), default=None)
    return Walltime(earliest, grace, spent)


def find_beginning(environment: Mapping[str, str]) -> str:
    """When the allocation of this process began, as ISO 8601 in UTC with microseconds.

    The scheduler reports it. Otherwise it is the start of this process, which has replaced the
    allocation's script.
    """
    own = own_allocation(environment)
    began = None if own is None else own.began
    if began is None:
        process = ProcessIdentity.of(os.getpid())
        assert process is not None
        age = _clock() - process.start / os.sysconf("SC_CLK_TCK")
        began = time.time() - age
    return datetime.fromtimestamp(began, UTC).isoformat(timespec="microseconds")


class ControllerWatch:
    """Watches the controller of a worker, if any; no method raises OSError.

    In an allocation a worker goes on when its controller is killed, because the controller usually
    runs on another node. `is_dead`: the controller left jobs behind, its process is gone, or it
    gave no sign of life for long. If it wakes up after that, it gets other workers. `is_in_doubt`:
    the controller may be dead; a later look will decide it.
    """

    def __init__(
        self,
        machine: MachinePaths,
        worker: WorkerState,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_dead = False
        self.is_in_doubt = False
        self._machine = machine
        self._identity = None if worker.allocation is None else worker.controller
        self._directory = self._find_directory(worker)
        self._clock = clock
        self._stillness = Stillness(clock)
        self._queues: tuple[str, ...] = ()
        self._run_due = 0.0
        self._notices = Notices(_log)

    def _find_directory(self, worker: WorkerState) -> Path | None:
        """The controller's directory, if it exists.

        In an allocation the directory counts as existing: the allocation may begin after the end of
        its run.
        """
        if worker.controller is None:
            return None
        directory = self._machine.controller(worker.controller).directory
        try:
            return directory if worker.allocation is not None or is_there(directory) else None
        except OSError:
            return directory

    def is_run_over(self, is_notified: bool = True) -> bool:
        """Whether the run that started the worker is certainly over.

        The worker checks this itself: possibly no other process can end a worker on another node.
        Without a notification it does so every few seconds only.
        """
        moment = self._clock()
        if self._directory is None or (moment < self._run_due and not is_notified):
            return False
        self._run_due = moment + _RUN_INTERVAL
        what = "the state of the run that started this worker cannot be read now"
        try:
            is_over = is_removed(self._directory)
        except OSError as error:
            self._notices.fault(what, error)
            return False
        self._notices.over(what)
        return is_over

    def look(self) -> None:
        """Update `is_dead` and `is_in_doubt`; call it regularly. Costs two small reads."""
        if self._identity is None:
            return
        path = self._machine.controller(self._identity).state
        began = self._clock()
        try:
            seen = read_controller(self._machine, self._identity)
            sign = sign_of_life(path, seen.process, seen.heartbeat)
        except FileNotFoundError:
            self.is_dead = self.is_in_doubt = False  # the controller ended normally
            return
        except (OSError, DamagedFileError):
            return
        still = self._stillness.note(self._identity, sign, seen.heartbeat_interval, began)
        if seen.heartbeat is None or this_node().can_see(seen.node):
            still = 0.0  # the kernel of this node tells whether it is alive
        self._queues = seen.queues or ()
        self.is_dead = seen.is_dead or still >= LOST_AFTER * seen.heartbeat_interval
        self.is_in_doubt = not self.is_dead and still >= SILENT_AFTER * seen.heartbeat_interval

    def cancel_waiting(self, command: Sequence[str]) -> None:
        """Cancel the requested allocations of a dead controller that have not begun.

        Runs `command`, but not while jobs wait for these allocations. Without it, each allocation
        would occupy a node later without any job.
        """
        if not command or not self.is_dead:
            return
        queues = map(self._machine.queue, self._queues)
        try:
            if any(True for queue in queues for _ in waiting_entries(queue)):
                return
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_CANCEL_PATIENCE,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            _log.warning("waiting allocations are not cancelled: %s", error)
        else:
            said = done.stderr.strip()
            _log.info("cancelled waiting allocations: status %d %s", done.returncode, said)
