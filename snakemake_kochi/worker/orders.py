"""What others want of a worker: files in which a person or a run tells it to leave or to cancel a
job, and the signs of life of its controller.

An answer that is not known now, because the filesystem returns an error, waits for the next look: a
guess would end all jobs of the worker, or leave it behind for ever.
"""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import is_there
from snakemake_kochi.notices import Notices
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import this_node
from snakemake_kochi.queue.controllers import is_certainly_gone, read_controller
from snakemake_kochi.queue.entries import waiting_entries
from snakemake_kochi.queue.heartbeat import LOST_AFTER, Stillness, sign_of_life
from snakemake_kochi.queue.other_controllers import SILENT_AFTER
from snakemake_kochi.queue.serving import Release, read_release
from snakemake_kochi.queue.workers import WorkerState
from snakemake_kochi.worker.settings import Surroundings

_log = logging.getLogger(__name__)

TIME_IS_OVER = "its walltime is over"
RELEASED = "released by kochi release"
_CANCEL_PATIENCE = 60.0  # seconds


class Orders:
    """The orders for one worker; nothing here raises OSError.

    `reason`: why it is to stop, for people, unless only a signal told it so; `requests`: how often
    it was told to stop; `is_finishing`: whether it is to leave when its jobs have ended.
    """

    def __init__(self, machine: MachinePaths, worker: int, surroundings: Surroundings) -> None:
        self.reason: str | None = None
        self.requests = 0
        self.is_finishing = False
        self._machine = machine
        self._worker = worker
        self._parent = surroundings.parent
        self._walltime = surroundings.walltime
        self._notices = Notices(_log)

    @property
    def is_stopping(self) -> bool:
        return self.requests > 0 or self.reason is not None or self.is_finishing

    def stop(self, reason: str) -> None:
        """The worker is to stop for this reason, if it has none yet."""
        self.reason = self.reason or reason

    def is_told_to_stop(self, signals: int) -> bool:
        """Whether there is a new request to stop, by one of so many signals in all, by the end of
        its parent, or for a reason that was given to `stop`."""
        if self._parent is not None and not self._parent.is_alive():
            self.reason = f"process {self._parent.pid}, which started this worker, is gone"
        elif self._walltime.is_over:
            self.stop(TIME_IS_OVER)
        before, self.requests = self.requests, signals + (self.reason is not None)
        return self.requests != before

    def is_told_to_finish(self) -> bool:
        """Whether a person now wants the worker to leave when its jobs have ended. If at once, it
        is to stop."""
        how = self._release()
        if how == "now":
            self.stop(f"{RELEASED}, at once")
        elif how == "finish" and not self.is_stopping:
            self.is_finishing = True
            return True
        return False

    def _release(self) -> Release | None:
        """How a person wants the worker to leave; None without such an order, or if unknown."""
        what = "whether the worker is to leave is not known now"
        try:
            how = read_release(self._machine, self._worker)
        except (OSError, DamagedFileError) as error:
            self._notices.fault(what, error)
            return None
        self._notices.over(what)
        return how

    def cancelled(self, jobs: Iterable[int]) -> set[int]:
        """Which of the jobs are known to be cancelled."""
        what = "whether jobs are to be cancelled is not known now"
        found = set()
        try:
            for job in jobs:
                if is_there(self._machine.job(job).cancel):
                    found.add(job)
        except OSError as error:
            # It does not ask about the others: each of these questions may take seconds.
            self._notices.fault(what, error)
            return found
        self._notices.over(what)
        return found


class ControllerWatch:
    """Watches the controller of a worker, if it has one; nothing here raises OSError.

    In an allocation a worker goes on when its controller is killed, which mostly runs on another
    node. `is_dead`: the controller left jobs behind, its process is gone, or it gave no sign of
    life for long; if it wakes up after that, it gets other workers. `is_in_doubt`: it may be dead,
    and that will be known soon.
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
        self._notices = Notices(_log)

    def _find_directory(self, worker: WorkerState) -> Path | None:
        """The controller's directory, if it exists. In an allocation it counts as if it existed:
        that may begin after the end of its run."""
        if worker.controller is None:
            return None
        directory = self._machine.controller(worker.controller).directory
        try:
            return directory if worker.allocation is not None or is_there(directory) else None
        except OSError:
            return directory

    def is_run_over(self) -> bool:
        """Whether the run that started the worker is certainly over. Nobody else may be able to end
        a worker on another node."""
        if self._directory is None:
            return False
        what = "whether the run that started this worker is over is not known now"
        try:
            is_over = is_certainly_gone(self._directory)
        except OSError as error:
            self._notices.fault(what, error)
            return False
        self._notices.over(what)
        return is_over

    def look(self) -> None:
        """Update `is_dead` and `is_in_doubt`; costs two small reads. Call it now and then."""
        if self._identity is None:
            return
        path = self._machine.controller(self._identity).state
        began = self._clock()
        try:
            seen = read_controller(self._machine, self._identity)
            sign = sign_of_life(path, seen.process, seen.heartbeat)
        except FileNotFoundError:
            self.is_dead = self.is_in_doubt = False  # it ended in an orderly way
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
        """If the controller is dead, run a command that cancels its requested allocations that have
        not begun, unless jobs wait for them: each would get a node one day, for nothing."""
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
            _log.warning("allocations that wait are not cancelled: %s", error)
        else:
            said = done.stderr.strip()
            _log.info("cancelled allocations that wait: status %d %s", done.returncode, said)
