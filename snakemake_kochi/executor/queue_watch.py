"""Looks after the queues of a run: tickets of dead workers, a full disk, and unserved queues."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection

from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.backoff import GrowingPause
from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import has_room, is_same_directory, is_there
from snakemake_kochi.locks.settings import find_lock_settings
from snakemake_kochi.notices import Notices
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import (
    Observer,
    Ticket,
    WorkerState,
    recover,
    seconds_for_jobs,
    shared_workers,
)
from snakemake_kochi.queue.explain import ToStart, why_paused
from snakemake_kochi.queue.paused import PausedBatch, PausedBatches, list_paused

_SPACE_SECONDS = 10.0  # between two checks for free space, while there is some
# Between two looks at one queue for what only a person changes: its directories and who serves it.
# The pause grows by the factor, from the first number of seconds to the second.
_SURROUNDINGS_SECONDS = (5.0, 20.0)
_SURROUNDINGS_FACTOR = 2.0
# Between two looks for paused batches, of which the run only says that they are.
_PAUSED_SECONDS = 10.0
# Seconds after a failed write in which nothing checks. A check writes less than a hand-over needs:
# on an almost full disk, the notices of both would alternate.
_FULL_SECONDS = 1.0


class QueueWatch:
    """Looks after the queues of a run.

    A queue that cannot be read, because of a full disk or an unavailable file server, does not end
    the run: its jobs may be running. A notice reports it until the queue can be read again.
    """

    def __init__(
        self,
        machine: MachinePaths,
        controller: str,
        logger: LoggerExecutorInterface,
        to_start: ToStart,
    ) -> None:
        self._machine = machine
        self._to_start = to_start
        self._controller = controller
        self._logger = logger
        self._notices = Notices(logger)
        self._observer = Observer()  # of workers on other nodes
        self._unserved: set[str] = set()  # unserved queues of which a notice was given
        # By queue: when they are due, and how long they are not due after that.
        self._surroundings: dict[str, tuple[float, GrowingPause]] = {}
        self._is_full = False
        self._next_try = time.monotonic() + _SPACE_SECONDS
        self._pauses = PausedBatches(machine)
        self._paused: dict[str, PausedBatch] = {}  # of which a notice was given
        self._paused_due = 0.0

    # ---- paused batches

    def check_paused(self, directory: str) -> None:
        """Say when a batch of this directory is paused, and when it goes on."""
        if time.monotonic() < self._paused_due:
            return
        self._paused_due = time.monotonic() + _PAUSED_SECONDS
        if not self._pauses.has_changed():
            return
        found = {
            each.digest: each
            for each in list_paused(self._machine)
            if is_same_directory(each.directory, directory)
        }
        for digest in found.keys() - self._paused.keys():
            said = why_paused(found[digest])
            self._logger.warning(f"{said[0].upper()}{said[1:]}")
        for digest in self._paused.keys() - found.keys():
            each = self._paused[digest]
            self._logger.info(f"Batch {each.batch} of {each.experiment} goes on.")
        self._paused = found

    # ---- free space

    def check_free_space(self) -> None:
        """Say once when KOCHI_ROOT is full, as far as this is known.

        No worker there can do so, and all nodes share KOCHI_ROOT.
        """
        if time.monotonic() >= self._next_try:
            with contextlib.suppress(OSError):  # not known now
                self._note_space(has_room(self._machine.directory))
            if not self._is_full:
                self._next_try = time.monotonic() + _SPACE_SECONDS

    def note_free_space(self) -> None:
        """Note that a write succeeded."""
        self._note_space(True)

    def note_full_disk(self) -> None:
        """Note that a write failed because the disk is full."""
        self._note_space(False)
        self._next_try = time.monotonic() + _FULL_SECONDS

    def _note_space(self, is_there: bool) -> None:
        if self._is_full and is_there:
            self._logger.info("KOCHI_ROOT has free space again.")
        elif not self._is_full and not is_there:
            self._logger.error(
                f"KOCHI_ROOT is full, or your quota is exhausted: nothing can be written below "
                f"{self._machine.directory}. Until there is space, no result arrives and no job is "
                "submitted. Free some space; the run then continues by itself."
            )
        self._is_full = not is_there

    # ---- a queue

    def look(self, queue: str, tickets: Collection[Ticket], has_own_workers: bool) -> None:
        """Look at a queue and its workers.

        `tickets` are those of the queue that have not ended. A run that `has_own_workers` serves
        the queues that no other worker serves. Raises KochiError if files were deleted without
        which the tickets cannot end.
        """
        due, pause = self._surroundings.get(queue) or (
            0.0,
            GrowingPause(*_SURROUNDINGS_SECONDS, _SURROUNDINGS_FACTOR),
        )
        is_due = time.monotonic() >= due
        if is_due:
            self._refuse_deleted(queue)
        try:
            recover(self._machine, queue, self._observer)
            if is_due:
                self._look_for_workers(queue, tickets, has_own_workers)
                self._surroundings[queue] = time.monotonic() + pause.seconds, pause
                pause.grow()
        except (OSError, KochiError) as error:
            self._tell(queue, error)
        else:
            self._notices.forget(queue)

    def has_only_near_workers(self, queues: Collection[str]) -> bool:
        """Whether all workers of these queues are on this node, whose notifications arrive."""
        return self._observer.sees_only_this_node(queues)

    def recover(self, queue: str) -> None:
        """Requeue the tickets of a worker that had to be killed."""
        try:
            recover(self._machine, queue, self._observer)
        except (OSError, KochiError) as error:
            self._tell(queue, error)

    def _tell(self, queue: str, error: Exception) -> None:
        self._notices.warning(
            f"Queue {queue} cannot be read now, and is tried again: {error}", key=queue
        )

    def _refuse_deleted(self, queue: str) -> None:
        """Raise KochiError if the queue's directories were deleted.

        No result can be published any more. Neither directory can be made anew: a lock on a deleted
        file excludes no process.
        """
        try:
            parts = (
                self._machine.queue(queue).directory,
                find_lock_settings(self._machine).paths.directory,
            )
            # Otherwise the filesystem is unavailable, and may come back.
            missing = is_there(self._machine.controller(self._controller).state) and [
                part for part in parts if not is_there(part)
            ]
        except (OSError, KochiError):
            return  # not known now
        if missing:
            raise KochiError(
                f"{missing[0]} was deleted while jobs needed it: their results cannot arrive",
                "Check whether a job removed it, and type the same command again.",
            )

    def _look_for_workers(
        self, queue: str, tickets: Collection[Ticket], has_own_workers: bool
    ) -> None:
        """Say once for each queue that no worker serves it.

        The run goes on, because a worker may come. Raises OSError if this is not known now.
        """
        if queue in self._unserved:
            return
        serving = self._observer.kept(self._machine.queue(queue)).subscribers()
        workers = shared_workers(self._machine, queue, self._controller, serving=serving)
        if has_own_workers and all(worker.controller is not None for worker in workers):
            return  # the run starts other workers for the tickets that these cannot run
        if workers:
            notice = self._obstacle(queue, tickets, workers)
        else:
            notice = f"No worker serves queue {queue} yet; start one with: {self._to_start(queue)}"
        if notice:
            self._unserved.add(queue)
            self._logger.warning(notice)

    def _obstacle(
        self, queue: str, tickets: Collection[Ticket], workers: Collection[WorkerState]
    ) -> str:
        """The reason why a ticket fits none of the workers; "" if all fit."""
        # The number of checks depends on the kinds of jobs, not on their number.
        for resources, ticket in {ticket.resources: ticket for ticket in tickets}.items():
            obstacles = [
                (worker.worker, worker.capacity.obstacle(resources, seconds_for_jobs(worker)))
                for worker in workers
            ]
            if any(obstacle is None for _, obstacle in obstacles):
                continue
            paths = self._machine.job(ticket.job)
            if is_there(paths.attempt(1)) or is_there(paths.ended(1)):
                continue  # it runs already; the time left is less than the time it requested
            rule = ticket.labels.get("rule", ticket.name)
            named = "; ".join(f"worker {number}: {why}" for number, why in obstacles[:3])
            return (
                f"No worker of queue {queue} can ever run kochi job {ticket.job} of rule {rule} "
                f"({named}). The job waits for a worker that can; see: kochi show job {ticket.job}"
            )
        return ""
