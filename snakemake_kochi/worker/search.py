"""How a worker looks for tickets: in all its queues, one after the other.

Where claims are slow and jobs run, another thread claims. The worker's loop would see the ends of
jobs late while it waits for the lock, and start no other jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from snakemake_kochi.files.together import Background, outcome_of
from snakemake_kochi.queue.claiming import Claim
from snakemake_kochi.queue.queue import Queue
from snakemake_kochi.queue.ticket import Resources
from snakemake_kochi.tickets.capacity import Capacity
from snakemake_kochi.worker.claims import Claimed, Claims, Room
from snakemake_kochi.worker.queues import ServedQueues

Answer = TypeVar("Answer")

# What a claim from each queue has returned or raised, with the name of the queue.
_Outcomes = list[tuple[str, Claimed | Exception]]


class Search:
    """Claims tickets for one worker, from its queues in their order."""

    def __init__(self, queues: ServedQueues, claims: Claims, capacity: Capacity) -> None:
        self.background: Background[None, _Outcomes] = Background()
        self._queues = queues
        self._claims = claims
        self._capacity = capacity

    @property
    def may_begin(self) -> bool:
        """Whether the worker may claim: it has few tickets, and is not claiming already."""
        return not self._claims.is_searching and self._claims.are_few

    def now(
        self,
        running: Callable[[], Sequence[Resources]],
        start: Callable[[list[Claim]], None],
        is_poll: bool,
    ) -> bool:
        """Claim and start what fits beside the `running` jobs; return whether there was something.

        `is_poll`: see `Queue.claim`.
        """
        found = False
        for queue in self._queues.queues:
            if _is_full(self._claims.room(running()), self._capacity):
                break
            if self._queues.is_pausing(queue):
                continue
            claim = partial(self._claims.claim_from, queue, running(), is_poll)
            if (claimed := self._queues.tried(queue.name, claim)) is None:
                continue
            found |= bool(claimed.at_once)
            start(claimed.at_once)
            # Otherwise small tickets of the next queue would take the room before it is large
            # enough.
            if claimed.is_full or self._claims.next_held is not None:
                break
        return found

    def begin(self, running: Sequence[Resources]) -> bool:
        """Claim beside other work, if that helps; return whether this began. See `take`."""
        if not running or not self._claims.are_slow:
            return False
        queues = [each for each in self._queues.queues if not self._queues.is_pausing(each)]
        self._claims.is_searching = True
        self.background.begin(None, partial(self._find, queues, self._claims.room(running)))
        return True

    def _find(self, queues: list[Queue], room: Room) -> _Outcomes:
        """As `now`, in another thread; nothing starts, and no queue counts as faulty yet."""
        outcomes: _Outcomes = []
        for queue in queues:
            if _is_full(room, self._capacity):
                break
            outcome = outcome_of(partial(self._claims.find, queue, room))
            outcomes.append((queue.name, outcome))
            if isinstance(outcome, Exception):
                continue
            if outcome.is_full or outcome.ahead:
                break
            started = (claim.ticket.resources for claim in outcome.at_once)
            room = replace(room, running=(*room.running, *started))
        return outcomes

    def take(self) -> bool | None:
        """Hold what was claimed beside other work; return whether there was something.

        None if such a claim has not ended since the last call.
        """
        ended = self.background.take()
        if not ended:
            return None
        self._claims.is_searching = False
        found = False
        for _, outcomes in ended:
            for name, outcome in _returned(outcomes):
                claimed = self._queues.tried(name, partial(_returned, outcome))
                if claimed is not None:
                    self._claims.hold(claimed)
                    found |= bool(claimed.at_once or claimed.ahead)
        return found


def _is_full(room: Room, capacity: Capacity) -> bool:
    return not room.ahead and (bool(room.held) or capacity.is_full(room.running))


def _returned(outcome: Answer | Exception) -> Answer:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
