"""The ends of jobs: a worker publishes a result, or requeues the ticket."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import is_there
from snakemake_kochi.notices import Notices
from snakemake_kochi.queue.entries import QueueRemovedError
from snakemake_kochi.queue.queue import Queue
from snakemake_kochi.queue.result import Result, UncountedReason
from snakemake_kochi.queue.ticket import Ticket
from snakemake_kochi.worker.node.health import Health
from snakemake_kochi.worker.settings import RETRY
from snakemake_kochi.worker.slot import Slot
from snakemake_kochi.worker.state import StateFile
from snakemake_kochi.worker.walltime import Walltime

_log = logging.getLogger(__name__)


class Ends:
    """Publishes the ends of one worker's jobs, counts them, and passes them to its `Health`.

    `is_at_time_limit`: the worker ends its jobs because its own time is over, and not because a
    person wants the node.
    """

    def __init__(
        self,
        state: StateFile,
        health: Health,
        walltime: Walltime,
        queue_of: Callable[[Ticket], Queue],
    ) -> None:
        self.is_at_time_limit = False
        self._state = state
        self._health = health
        self._walltime = walltime
        self._queue_of = queue_of
        self._began = time.monotonic()
        self._notices = Notices(_log)

    def publish(self, over: Iterable[Slot]) -> list[tuple[Slot, str]]:
        """Publish the results of jobs that are over, or requeue their tickets.

        Takes one lock for each queue. Returns the jobs whose end is published, each with a text for
        people about how it ended (empty for a success). After a failure the caller passes the job
        again after RETRY seconds.
        """
        done: list[tuple[Slot, str]] = []
        results: dict[str, list[tuple[Slot, Result]]] = {}
        for slot in over:
            had_its_time = slot.stop == "requeue" and self._had_its_time(slot)
            if had_its_time and self._had_longest_allocation(slot):
                slot.time_out(f"its worker had less time for it than its {slot.limit} seconds")
            if slot.stop == "requeue":
                reason: UncountedReason = "out of time" if had_its_time else "drained"
                done += self._requeue(slot, reason, self._state.state.reason)
                continue
            result = slot.result(self._state.state.node.host)
            fault = self._health.fault_behind(result, slot.claim.ticket.directory)
            if fault is not None:
                done += self._requeue(slot, self._health.reason, fault)
                continue
            results.setdefault(slot.claim.ticket.queue, []).append((slot, result))
        for ended in results.values():
            queue = self._queue_of(ended[0][0].claim.ticket)
            outcomes: Sequence[bool | OSError | KochiError]
            try:
                outcomes = queue.finish_all([(slot.claim, result) for slot, result in ended])
            except (OSError, KochiError) as error:  # for example from the lock
                outcomes = [error] * len(ended)
            for (slot, result), outcome in zip(ended, outcomes, strict=True):
                done += self._finished(slot, result, outcome)
        return done

    def _had_its_time(self, slot: Slot) -> bool:
        return self._walltime.was_used_by(slot.seconds, time.monotonic() - self._began)

    def _had_longest_allocation(self, slot: Slot) -> bool:
        """Whether the job already had the longest allocation that it can get.

        If a longer allocation were possible, the job would have got one that is longer than its
        limit. Another attempt would not get further.
        """
        if not self.is_at_time_limit or slot.limit is None:
            return False
        return self._walltime.is_shorter_than_allocation_for(slot.limit)

    def _requeue(self, slot: Slot, reason: UncountedReason, detail: str) -> list[tuple[Slot, str]]:
        queue = self._queue_of(slot.claim.ticket)
        try:
            if self._state.presumed_dead_by is None:  # else others decide about it
                queue.requeue(slot.claim, reason, detail)
        except (OSError, KochiError) as error:
            return self._later(slot, error)
        self._notices.over(_about(slot))
        return [(slot, "requeued")]

    def _finished(
        self, slot: Slot, result: Result, outcome: bool | OSError | KochiError
    ) -> list[tuple[Slot, str]]:
        """Note a published result; `outcome` is that of `Queue.finish_all`."""
        if isinstance(outcome, (OSError, KochiError)):
            return self._later(slot, outcome)
        self._notices.over(_about(slot))
        ticket = slot.claim.ticket
        self._count(ticket.queue, result)
        self._health.note(result, ticket.queue)
        late = "" if outcome else " (too late: it had been presumed dead)"
        _log.info("job %d (%s) %s%s", ticket.job, ticket.name, result.describe(), late)
        return [(slot, "" if result.ok else result.describe())]

    def _later(self, slot: Slot, error: OSError | KochiError) -> list[tuple[Slot, str]]:
        if isinstance(error, QueueRemovedError) and self._machine_is_there(slot):
            job = slot.claim.ticket.job
            _log.warning("the end of job %d cannot be written: %s", job, error.message)
            return [(slot, "its queue was removed")]
        # On a full disk, for example. The worker keeps the result, which may be that of a long run.
        self._notices.fault(_about(slot), error)
        slot.publish_again_in(RETRY)
        return []

    def _machine_is_there(self, slot: Slot) -> bool:
        # If the machine's directory is missing, its filesystem is not mounted, and the queue may
        # come back with it.
        with contextlib.suppress(OSError):
            return is_there(self._queue_of(slot.claim.ticket).machine.queues)
        return False

    def _count(self, queue: str, result: Result) -> None:
        if result.reason == "cancelled":
            return  # a cancelled job says nothing about the node
        state = self._state.state
        succeeded, failed = state.by_queue.get(queue, (0, 0))
        counts = (succeeded + 1, failed) if result.ok else (succeeded, failed + 1)
        self._state.touch(
            succeeded=state.succeeded + result.ok,
            failed=state.failed + (not result.ok),
            by_queue={**state.by_queue, queue: counts},
        )


def _about(slot: Slot) -> str:
    return f"the end of job {slot.claim.ticket.job} cannot be written yet"
