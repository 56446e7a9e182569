"""What a worker obeys: orders, and the life of its parent and of its controller.

A person or a run writes files that tell the worker to leave or to cancel a job. The controller
gives signs of life. When the filesystem returns an error, the answer is unknown, and the worker
looks again later: a guess would end all its jobs, or leave the worker behind for ever.
"""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import is_removed, is_there, list_names
from snakemake_kochi.heartbeat import LOST_AFTER, Stillness, sign_of_life
from snakemake_kochi.next.worker.walltime import TIME_IS_OVER, Walltime
from snakemake_kochi.notices import Notices
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import ProcessIdentity, this_node
from snakemake_kochi.queue.controllers import SILENT_AFTER, read_controller
from snakemake_kochi.queue.entries import waiting_entries
from snakemake_kochi.queue.wakeup import Release, read_release
from snakemake_kochi.queue.workers import WorkerState
from snakemake_kochi.worker.own_directory import OwnDirectory

_log = logging.getLogger(__name__)

RELEASED = "released by kochi release"
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
