"""Whether the controller that a worker was started for is dead: then nothing more comes for it."""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Callable, Sequence

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.controllers import read_controller
from snakemake_kochi.queue.entries import waiting_entries
from snakemake_kochi.queue.heartbeat import LOST_AFTER, Stillness, sign_of_life
from snakemake_kochi.queue.other_controllers import SILENT_AFTER
from snakemake_kochi.queue.processes import this_node
from snakemake_kochi.queue.workers import WorkerState

_log = logging.getLogger(__name__)

_PATIENCE = 60.0  # seconds


class ControllerWatch:
    """For a worker in an allocation: it goes on when its controller is killed, and that is mostly
    on another node. Nothing here raises OSError: what is not known now is looked at again."""

    def __init__(
        self,
        machine: MachinePaths,
        worker: WorkerState,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._machine = machine
        self._identity = None if worker.allocation is None else worker.controller
        self._clock = clock
        self._stillness = Stillness(clock)
        self._queues: tuple[str, ...] = ()
        # Whether it left jobs behind, its process is gone, or it gave no sign of life for long. One
        # that wakes up after that gets other workers.
        self.is_dead = False
        # Whether it may be dead, which will be known soon.
        self.is_in_doubt = False

    def look(self) -> None:
        """To be called now and then; costs two small reads."""
        if self._identity is None:
            return
        path = self._machine.controller(self._identity).state
        began = self._clock()
        try:
            seen = read_controller(self._machine, self._identity)
            sign = sign_of_life(path, seen.process, seen.heartbeat)
        except FileNotFoundError:
            self.is_dead = self.is_in_doubt = False  # it ended in good order
            return
        except (OSError, DamagedFileError):
            return
        still = self._stillness.note(self._identity, sign, seen.heartbeat_interval, began)
        if seen.heartbeat is None or this_node().can_see(seen.node):
            still = 0.0  # here the kernel tells
        self._queues = seen.queues or ()
        self.is_dead = seen.is_dead or still >= LOST_AFTER * seen.heartbeat_interval
        self.is_in_doubt = not self.is_dead and still >= SILENT_AFTER * seen.heartbeat_interval

    def cancel_waiting(self, command: Sequence[str]) -> None:
        """If it is dead, cancel the allocations that were asked for and have not begun, unless jobs
        wait for them: each would have a node one day, and a worker that waits there in vain."""
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
                timeout=_PATIENCE,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            _log.warning("allocations that wait are not cancelled: %s", error)
        else:
            said = done.stderr.strip()
            _log.info("cancelled allocations that wait: status %d %s", done.returncode, said)
