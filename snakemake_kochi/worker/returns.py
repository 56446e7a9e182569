"""Claims that a worker requeues without having started them."""

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
    """Requeues claims, and keeps those that cannot be requeued yet, on a full disk say. None of
    them is started after all: on that disk the worker would start and requeue them for ever."""

    def __init__(self, queue_of: Callable[[Ticket], Queue]) -> None:
        self._queue_of = queue_of
        self._left: list[_Return] = []
        self._due = math.inf
        self._complaints = Complaints()

    @property
    def jobs(self) -> list[int]:
        """Those that are still to be requeued."""
        return [claim.ticket.job for claim, _, _ in self._left]

    @property
    def deadline(self) -> float:
        """When `retry` has something to do, in monotonic seconds."""
        return self._due

    def requeue(self, claim: Claim, reason: UncountedReason = "drained", detail: str = "") -> None:
        """Requeue a claim that was not started; a cancelled ticket ends there. `reason` and
        `detail` as of `Queue.requeue`."""
        what = f"job {claim.ticket.job} cannot be requeued yet"
        try:
            self._queue_of(claim.ticket).requeue(claim, reason, detail)
        except QueueRemovedError as error:
            _log.warning("job %d is not requeued: %s", claim.ticket.job, error.message)
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
                self.requeue(claim, reason, detail)

    def drop(self) -> None:
        """Forget them: they are for others to decide about."""
        self._left, self._due = [], math.inf
