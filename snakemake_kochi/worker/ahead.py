"""Tickets claimed ahead: where jobs are short, one lock serves many of them."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Sequence

from snakemake_kochi.queue.queue import Claim
from snakemake_kochi.queue.ticket import Resources

# Seconds. What is claimed ahead is work for AHEAD seconds, if jobs took less than SHORT so far.
_SHORT = 0.1
_AHEAD = 0.15
_MOST_AHEAD = 32
_FEWEST_KNOWN = 4  # jobs that must have ended before anything is expected of the next
_KNOWN = 16
# Seconds after which tickets that cannot start here are requeued: other workers may be idle.
_PATIENCE = 1.0


class Ahead:
    """The tickets that a worker has claimed and not started, in their order, and how many it may
    claim, judged by how long its last jobs took."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._held: deque[Claim] = deque()
        self._durations: deque[float] = deque(maxlen=_KNOWN)
        self._began: dict[int, float] = {}
        self._moved = 0.0  # when one was last claimed or started, in monotonic seconds

    @property
    def first(self) -> Claim | None:
        return self._held[0] if self._held else None

    @property
    def jobs(self) -> tuple[int, ...]:
        return tuple(claim.ticket.job for claim in self._held)

    @property
    def deadline(self) -> float:
        """When they are to be requeued, in monotonic seconds, if none is started before."""
        return self._moved + _PATIENCE if self._held else math.inf

    @property
    def is_overdue(self) -> bool:
        return time.monotonic() >= self.deadline

    def allowance(self) -> int:
        """How many tickets may be claimed beyond those that can start at once."""
        if len(self._durations) < _FEWEST_KNOWN:
            return 0
        mean = sum(self._durations) / len(self._durations)
        if mean >= _SHORT:
            return 0
        return min(_MOST_AHEAD, int(_AHEAD / max(mean, 0.001) * self._cores))

    def may_hold(self, wanted: Resources, running: Iterable[Resources]) -> bool:
        """Whether a ticket may be claimed ahead, if there is an allowance. One that needs the
        worker for itself is better left to a worker that is free, and so is everything while such
        a job runs."""
        return not wanted.exclusive and not any(resources.exclusive for resources in running)

    def hold(self, claims: Sequence[Claim]) -> None:
        self._held.extend(claims)
        self._moved = time.monotonic()

    def hold_first(self, claims: Sequence[Claim]) -> None:
        """As `hold`, before all that are held."""
        self._held.extendleft(reversed(claims))
        self.keep()

    def keep(self) -> None:
        """They are about to be started: what they need is being made."""
        self._moved = time.monotonic()

    def take_first(self) -> Claim:
        self._moved = time.monotonic()
        return self._held.popleft()

    def take_cancelled(self, cancelled: Iterable[int]) -> list[Claim]:
        """Take out the tickets of these jobs."""
        gone = set(cancelled)
        taken = [claim for claim in self._held if claim.ticket.job in gone]
        self._held = deque(claim for claim in self._held if claim.ticket.job not in gone)
        return taken

    def take_all(self) -> list[Claim]:
        """Take out all of them. What was known of the jobs proved wrong, or is of no use."""
        taken = list(self._held)
        self._held.clear()
        self._durations.clear()
        return taken

    def job_began(self, job: int) -> None:
        self._began[job] = time.monotonic()

    def job_ended(self, job: int) -> None:
        began = self._began.pop(job, None)
        if began is not None:
            self._durations.append(time.monotonic() - began)
