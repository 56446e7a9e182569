"""What is published of jobs that are over: a result, or that their tickets wait again."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import is_there
from snakemake_kochi.queue.explain import ROUNDING, seconds_left, seconds_since
from snakemake_kochi.queue.lock import QueueRemovedError
from snakemake_kochi.queue.postponed import Complaints
from snakemake_kochi.queue.queue import Queue
from snakemake_kochi.queue.result import Result, UncountedReason
from snakemake_kochi.queue.ticket import Ticket
from snakemake_kochi.worker.node.health import Health
from snakemake_kochi.worker.slot import Slot
from snakemake_kochi.worker.state import StateFile
from snakemake_kochi.worker.troubles import RETRY
from snakemake_kochi.worker.walltime import START_AND_END

_log = logging.getLogger(__name__)

# Seconds before a worker's end in which a scheduler tells it so: Slurm up to a minute too early.
_ABOUT_OVER = 120.0
_MOST_OF_IT = 0.5


class Ends:
    """Publishes the ends of one worker's jobs, counts them, and lets its health be judged."""

    def __init__(
        self, state: StateFile, health: Health, queue_of: Callable[[Ticket], Queue]
    ) -> None:
        self._state = state
        self._health = health
        self._queue_of = queue_of
        self._complaints = Complaints()
        # Whether the jobs are ended for that, and not because somebody wants the node back.
        self.is_at_time_limit = False

    def publish(self, over: Iterable[Slot]) -> list[tuple[Slot, str]]:
        """Publish the results of jobs that are over, under one lock for each queue, or requeue
        their tickets; return those that are done, each with how it ended, for people (empty for a
        success). The others are to be handed in again at their deadline.
        """
        done: list[tuple[Slot, str]] = []
        results: dict[str, list[tuple[Slot, Result]]] = {}
        for slot in over:
            if slot.stop == "requeue" and self._was_the_most(slot):
                slot.time_out(f"its worker had less time for it than its {slot.limit} seconds")
            if slot.stop == "requeue":
                reason: UncountedReason = "out of time" if self._had_its_time(slot) else "drained"
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
            except (OSError, KochiError) as error:  # not even the lock
                outcomes = [error] * len(ended)
            for (slot, result), outcome in zip(ended, outcomes, strict=True):
                done += self._finished(slot, result, outcome)
        return done

    def _had_its_time(self, slot: Slot) -> bool:
        """Whether the worker's walltime is about over, and the job had the most of it: a requeued
        job is the first that the next worker begins, and the same would happen there."""
        state = self._state.state
        left, lasted = seconds_left(state), seconds_since(slot.started)
        worked = seconds_since(state.started)
        if left is None or lasted is None or worked is None or left > _ABOUT_OVER:
            return False
        return lasted >= _MOST_OF_IT * worked

    def _was_the_most(self, slot: Slot) -> bool:
        """Whether it had all of an allocation than which there is no longer one: else that would
        have been longer than the job may take. Another attempt would come no further."""
        if not self.is_at_time_limit or slot.limit is None or not self._had_its_time(slot):
            return False
        state = self._state.state
        left, lasted = seconds_left(state), seconds_since(state.allocation_began)
        if left is None or lasted is None:
            return False
        # What a job of that limit is given else lasts that long, and its end is noted in seconds.
        return slot.limit + START_AND_END > left + lasted + ROUNDING

    def _requeue(self, slot: Slot, reason: UncountedReason, detail: str) -> list[tuple[Slot, str]]:
        queue = self._queue_of(slot.claim.ticket)
        try:
            if self._state.lost_to is None:  # else it is for others to decide about the ticket
                queue.requeue(slot.claim, reason, detail)
        except (OSError, KochiError) as error:
            return self._later(slot, error)
        self._complaints.over(_about(slot))
        return [(slot, "requeued")]

    def _finished(
        self, slot: Slot, result: Result, outcome: bool | OSError | KochiError
    ) -> list[tuple[Slot, str]]:
        """`outcome`: as of Queue.finish_all."""
        if isinstance(outcome, (OSError, KochiError)):
            return self._later(slot, outcome)
        self._complaints.over(_about(slot))
        self._count(slot.claim.ticket.queue, result)
        self._health.note(result, slot.claim.ticket.queue)
        late = "" if outcome else " (too late: it had been presumed dead)"
        ticket = slot.claim.ticket
        _log.info("job %d (%s) %s%s", ticket.job, ticket.name, result.describe(), late)
        return [(slot, "" if result.ok else result.describe())]

    def _later(self, slot: Slot, error: OSError | KochiError) -> list[tuple[Slot, str]]:
        if isinstance(error, QueueRemovedError) and self._machine_is_there(slot):
            job = slot.claim.ticket.job
            _log.warning("the end of job %d cannot be written: %s", job, error.message)
            return [(slot, "its queue was removed")]
        # A full disk. The result is not given up: it may be that of a long run.
        self._complaints.about(_about(slot), error)
        slot.deadline = time.monotonic() + RETRY
        return []

    def _machine_is_there(self, slot: Slot) -> bool:
        # Else its filesystem is away, and the queue may come back with it.
        with contextlib.suppress(OSError):
            return is_there(self._queue_of(slot.claim.ticket).machine.queues)
        return False

    def _count(self, queue: str, result: Result) -> None:
        if result.reason == "cancelled":
            return  # that tells nothing of the node
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
