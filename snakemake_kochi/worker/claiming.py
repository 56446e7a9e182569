"""What a worker claims of a queue, and what of it can start at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from snakemake_kochi.queue.capacity import Capacity
from snakemake_kochi.queue.queue import Answer, Claim, Queue
from snakemake_kochi.queue.ticket import Kind, Resources, Ticket
from snakemake_kochi.worker.ahead import Ahead
from snakemake_kochi.worker.passed import Passed
from snakemake_kochi.worker.walltime import Walltime


@dataclass(frozen=True)
class Claims:
    """`at_once` can start, in this order; `later` was claimed ahead, and waits for room.

    `is_full`: there was a ticket that had to wait.
    """

    at_once: list[Claim]
    later: list[Claim]
    is_full: bool


@dataclass(frozen=True)
class Claimer:
    """Claims for one worker what has room there, and as much ahead as is good; before others what
    is of a kind that is `first`. Else short jobs before it would use up the time, or the memory, of
    each worker that was asked for a long one, or a large one."""

    worker: int
    capacity: Capacity
    walltime: Walltime
    passed: Passed
    ahead: Ahead
    first: tuple[Kind, ...] = ()

    def _is_first(self, ticket: Ticket) -> bool:
        return any(kind.has(ticket.resources) for kind in self.first)

    def claim_from(self, queue: Queue, running: Sequence[Resources]) -> Claims:
        """`running`: what the jobs of the worker have."""
        is_full = False
        taken = list(running)
        at_once: set[int] = set()
        allowance = self.ahead.allowance()

        def accept(ticket: Ticket) -> Answer:
            nonlocal is_full
            left = self.walltime.seconds_for_jobs()
            if obstacle := self.capacity.obstacle(ticket.resources, left):
                self.passed.add(ticket, obstacle)
                return "pass"
            # After a first one that has to wait none starts before it.
            if not is_full and self.capacity.fits(ticket.resources, taken):
                taken.append(ticket.resources)
                at_once.add(ticket.job)
                return "take"
            is_full = True
            may_hold = allowance > 0 and self.ahead.may_hold(ticket.resources, taken)
            return "take" if may_hold else "stop"

        claims = queue.claim(
            self.worker,
            accept,
            limit=self.capacity.cores + allowance,
            is_first=self._is_first if self.first else None,
        )
        return Claims(
            [claim for claim in claims if claim.ticket.job in at_once],
            [claim for claim in claims if claim.ticket.job not in at_once],
            is_full,
        )
