"""What a run tells a person of its queues: no worker, none that fits, a pause, a full disk."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.backoff import GrowingPause
from snakemake_kochi.errors import KochiError
from snakemake_kochi.executor.adopted import Key
from snakemake_kochi.files import has_room, is_same_directory
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.paused import PausedBatch, PausedBatches, list_paused
from snakemake_kochi.queue.views import obstacles_of, shared_workers, why_paused
from snakemake_kochi.tickets.moving import is_listed, listing
from snakemake_kochi.tickets.names import Name
from snakemake_kochi.tickets.ticket import Ticket

_ROOM_SECONDS = 10.0  # between two checks for free space, while there is some
_FULL_SECONDS = 1.0  # after a failed write
_PAUSED_SECONDS = 10.0  # between two looks for paused batches
_PAUSES = 5.0, 20.0, 2.0  # between two looks at the workers of queues
_MOST_NAMED = 3


class Telling:
    """Called by the thread of a run that waits; each thing is told once."""

    def __init__(
        self,
        machine: MachinePaths,
        directory: str,
        logger: LoggerExecutorInterface,
        to_start: Callable[[str], str],
    ) -> None:
        self._machine = machine
        self._layout = machine.layout
        self._directory = directory
        self._logger = logger
        self._to_start = to_start
        self._unserved: set[str] = set()  # of which it was told
        self._pause = GrowingPause(*_PAUSES)
        self._due = self._paused_due = 0.0
        self._room_due = time.monotonic() + _ROOM_SECONDS
        self.is_full = False  # KOCHI_ROOT, as far as is known
        self._pauses = PausedBatches(machine)
        self._paused: dict[str, PausedBatch] = {}

    # ---- free space

    def check_room(self) -> None:
        """Say once when KOCHI_ROOT is full: no worker there can do so."""
        if time.monotonic() >= self._room_due:
            self._room_due = time.monotonic() + (_FULL_SECONDS if self.is_full else _ROOM_SECONDS)
            with suppress(OSError):  # not known now
                self.note_room(has_room(self._machine.directory))

    def note_room(self, is_there: bool) -> None:
        """A write has worked, or has failed because the disk is full."""
        if self.is_full and is_there:
            self._logger.info("KOCHI_ROOT has free space again.")
        elif not (self.is_full or is_there):
            self._room_due = time.monotonic() + _FULL_SECONDS
            self._logger.error(
                f"KOCHI_ROOT is full, or your quota is exhausted: nothing can be written below "
                f"{self._machine.directory}. Until there is space, no result arrives and no job is "
                "submitted. Free some space; the run then continues by itself."
            )
        self.is_full = not is_there

    # ---- paused batches

    def check_paused(self) -> None:
        """Say when a batch of this directory is paused, and when it goes on."""
        if time.monotonic() < self._paused_due:
            return
        self._paused_due = time.monotonic() + _PAUSED_SECONDS
        if not self._pauses.has_changed():
            return
        found = {
            each.digest: each
            for each in list_paused(self._machine)
            if is_same_directory(each.directory, self._directory)
        }
        for digest in found.keys() - self._paused.keys():
            said = why_paused(found[digest])
            self._logger.warning(f"{said[0].upper()}{said[1:]}")
        for digest in self._paused.keys() - found.keys():
            each = self._paused[digest]
            self._logger.info(f"Batch {each.batch} of {each.experiment} goes on.")
        self._paused = found

    # ---- queues

    def look(
        self, queues: Mapping[str, Mapping[Key, Ticket]], are_ours: Callable[[str], bool]
    ) -> None:
        """Look at the queues with jobs that have not ended; `are_ours`: the run serves a queue.

        Raises OSError, and KochiError if a queue was deleted: its jobs cannot end.
        """
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self._pause.seconds
        self._pause.grow()
        for queue, tickets in queues.items():
            directory = self._layout.queue(queue).directory
            if not is_listed(directory):
                missing = directory if os.path.isdir(self._layout.queues) else self._layout.queues
                raise KochiError(
                    f"{missing} was deleted while jobs needed it: their results cannot arrive",
                    "Check whether a job removed it, and type the same command again.",
                )
            if queue in self._unserved or are_ours(queue):
                continue
            if notice := self._notice(queue, tickets):
                self._unserved.add(queue)
                self._logger.warning(notice)

    def _notice(self, queue: str, tickets: Mapping[Key, Ticket]) -> str:
        workers = shared_workers(self._machine, queue)
        if not workers:
            return f"No worker serves queue {queue} yet; start one with: {self._to_start(queue)}"
        running: set[Key] | None = None
        # The number of checks depends on the kinds of jobs, not on their number.
        for resources, (key, ticket) in {t.resources: (k, t) for k, t in tickets.items()}.items():
            obstacles = obstacles_of(workers, resources)
            if None in obstacles.values():
                continue
            if running is None:
                names = Name.parse_all(listing(self._layout.queue(queue).running))
                running = {name.key for name in names}
            if key in running:
                continue  # the time left is less than the time it requested
            rule = ticket.labels.get("rule", ticket.name)
            named = "; ".join(
                f"worker {each}: {why}" for each, why in [*obstacles.items()][:_MOST_NAMED]
            )
            job = f"{key[0]}.{key[1]}"
            return (
                f"No worker of queue {queue} can ever run kochi job {job} of rule {rule} ({named})."
                f" The job waits for a worker that can; see: kochi show job {job}"
            )
        return ""
