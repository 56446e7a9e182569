"""Looking after the queues of a run: tickets of dead workers, and whether anybody serves them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection

from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.errors import KochiError
from snakemake_kochi.executor.unserved import Unserved
from snakemake_kochi.files import has_room, is_there
from snakemake_kochi.locks.settings import find_lock_settings
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import Observer, Ticket, recover

# Seconds between two tries whether there is room: at first, and while there is none.
_TRY = 10.0
_TRY_AGAIN = 1.0


class QueueWatch:
    """A queue that cannot be looked into, for a full disk or a file server that is away, does not
    end the run: its jobs may be running. It is told, and once until it can be looked into again."""

    def __init__(
        self, machine: MachinePaths, controller: str, logger: LoggerExecutorInterface
    ) -> None:
        self._machine = machine
        self._controller = controller
        self._logger = logger
        self._observer = Observer()  # of workers on other nodes
        self._unserved = Unserved(machine, controller, logger)
        self._troubled: set[str] = set()
        self._is_full = False
        self._next_try = time.monotonic() + _TRY

    def look_for_room(self) -> bool:
        """Whether there is room in KOCHI_ROOT, as far as is known: a full one is told, once. No
        worker there can do so, and it is one for all, whichever node it is on."""
        if time.monotonic() >= self._next_try:
            with contextlib.suppress(OSError):  # not known now
                self._note_room(has_room(self._machine.directory))
            self._next_try = time.monotonic() + (_TRY_AGAIN if self._is_full else _TRY)
        return not self._is_full

    def found_room(self) -> None:
        """Something could be written."""
        self._note_room(True)

    def no_room(self) -> None:
        """Something could not be written for lack of room."""
        self._note_room(False)
        self._next_try = time.monotonic() + _TRY_AGAIN

    def _note_room(self, is_there: bool) -> None:
        if self._is_full and is_there:
            self._logger.info("There is room in KOCHI_ROOT again.")
        elif not self._is_full and not is_there:
            self._logger.error(
                f"KOCHI_ROOT is full, or your quota is used up: nothing can be written below "
                f"{self._machine.directory}. No result comes in, and no job is handed over, until "
                "there is room. Make some, and the run goes on by itself."
            )
        self._is_full = not is_there

    def look(self, queue: str, tickets: Collection[Ticket], has_own_workers: bool) -> None:
        """`tickets` are those of the queue that have not ended. Raises KochiError when what they
        need in order to end was deleted."""
        self._refuse_deleted(queue)
        try:
            recover(self._machine, queue, self._observer)
            self._unserved.look(queue, tickets, has_own_workers)
        except (OSError, KochiError) as error:
            self._tell(queue, error)
        else:
            self._troubled.discard(queue)

    def _refuse_deleted(self, queue: str) -> None:
        """No result can be published any more, and neither can be made anew: who has a lock of a
        file that was deleted excludes nobody."""
        try:
            parts = (
                self._machine.queue(queue).directory,
                find_lock_settings(self._machine).paths.directory,
            )
            # Else the filesystem is away, and may come back.
            missing = is_there(self._machine.controller(self._controller).state) and [
                part for part in parts if not is_there(part)
            ]
        except (OSError, KochiError):
            return  # not known now
        if missing:
            raise KochiError(
                f"{missing[0]} was deleted while jobs needed it: how they end cannot be known",
                "Look whether a job has removed it, and type the same again.",
            )

    def recover(self, queue: str) -> None:
        """Put back what a worker left that had to be killed."""
        try:
            recover(self._machine, queue, self._observer)
        except (OSError, KochiError) as error:
            self._tell(queue, error)

    def _tell(self, queue: str, error: Exception) -> None:
        if queue not in self._troubled:
            self._troubled.add(queue)
            self._logger.warning(f"Queue {queue} cannot be looked after at the moment: {error}")
