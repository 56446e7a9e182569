"""Claims that a worker gives back without having started them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from snakemake_kochi.errors import KochiError
from snakemake_kochi.queue.lock import QueueRemovedError
from snakemake_kochi.queue.postponed import Complaints
from snakemake_kochi.queue.queue import Claim, Queue
from snakemake_kochi.queue.result import UncountedReason
from snakemake_kochi.queue.ticket import Ticket
from snakemake_kochi.worker.troubles import RETRY

_log = logging.getLogger(__name__)

_Return = tuple[Claim, UncountedReason, str]


class Returns:
    """Puts claims back, and keeps those that cannot be put back yet, on a full disk say. None of
    them is started after all: on that disk the worker would start and return them for ever."""

    def __init__(self, queue_of: Callable[[Ticket], Queue]) -> None:
        self._queue_of = queue_of
        self._left: list[_Return] = []
        self._due = math.inf
        self._complaints = Complaints()

    @property
    def jobs(self) -> list[int]:
        """Those that are still to be put back."""
        return [claim.ticket.job for claim, _, _ in self._left]

    @property
    def deadline(self) -> float:
        """When `retry` has something to do, in monotonic seconds."""
        return self._due

    def give_back(
        self, claim: Claim, reason: UncountedReason = "drained", detail: str = ""
    ) -> None:
        """Put a claim back that was not started; a cancelled ticket ends there. `reason` and
        `detail` as of `Queue.put_back`."""
        what = f"job {claim.ticket.job} cannot be put back yet"
        try:
            self._queue_of(claim.ticket).put_back(claim, reason, detail)
        except QueueRemovedError as error:
            _log.warning("job %d is not put back: %s", claim.ticket.job, error.message)
        except (OSError, KochiError) as error:
            self._complaints.about(what, error)
            self._left.append((claim, reason, detail))
            self._due = time.monotonic() + RETRY
        else:
            self._complaints.over(what)

    def retry(self) -> None:
        """Try again what is due."""
        if time.monotonic() >= self._due:
            left, self._left, self._due = self._left, [], math.inf
            for claim, reason, detail in left:
                self.give_back(claim, reason, detail)

    def drop(self) -> None:
        """Forget them: they are for others to decide about."""
        self._left, self._due = [], math.inf
