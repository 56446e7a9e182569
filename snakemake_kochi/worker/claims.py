"""The tickets that a worker has claimed but not started, and the tickets that it skips.

Where jobs are short, a worker also claims tickets ahead: it then takes one lock for many tickets.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, repeat

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import answered
from snakemake_kochi.notices import Notices
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.claiming import Answer, Claim
from snakemake_kochi.queue.entries import (
    Entry,
    QueueRemovedError,
    find_entry,
)
from snakemake_kochi.queue.job_set import JobSet
from snakemake_kochi.queue.queue import Queue
from snakemake_kochi.queue.result import UncountedReason, new_nonce, read_attempt
from snakemake_kochi.queue.ticket import Kind, Resources, Ticket, read_ticket
from snakemake_kochi.queue.workers import Capacity
from snakemake_kochi.worker.orders import Walltime
from snakemake_kochi.worker.pace import Pace
from snakemake_kochi.worker.settings import RETRY

_log = logging.getLogger(__name__)

_UNKNOWN_INTERVAL = 5.0  # seconds
_MOST_SHOWN = 5


@dataclass(frozen=True)
class Claimed:
    """The claims of one call.

    `at_once`: the claims that can start now, in this order; `ahead`: those after them. `is_full`: a
    ticket must wait for room, whether the worker has claimed it ahead or not. `cost`: how many
    seconds the call took.
    """

    at_once: list[Claim]
    ahead: list[Claim]
    is_full: bool
    cost: float


class Claims:
    """The claims of one worker except those of its running jobs.

    It holds the claims that the worker has made ahead, in their order, and the claims that the
    worker must requeue.
    """

    def __init__(
        self,
        machine: MachinePaths,
        worker: int,
        capacity: Capacity,
        walltime: Walltime,
        queue_of: Callable[[Ticket], Queue],
        first: Sequence[Kind] = (),
        is_resting: Callable[[], bool] = lambda: False,
        wake: Callable[[], bool] = lambda: True,
    ) -> None:
        """The claims of a worker.

        `first` are the kinds of tickets for which it was requested. While it `is_resting`, its
        heartbeats are rare; `wake` ends that before a claim, and returns whether it may claim.
        """
        self._machine = machine
        self._worker = worker
        self._capacity = capacity
        self._walltime = walltime
        # Without `first`, short or small jobs would exhaust the time or memory of each worker that
        # was requested for a long or a large job.
        self._first = tuple(first)
        self._queue_of = queue_of
        self._is_resting = is_resting
        self._wake = wake
        # Whether another thread is claiming: these claims are not known yet.
        self.is_searching = False
        self._held: deque[Claim] = deque()
        self._moved = 0.0  # when a claim was last made or started, in monotonic seconds
        self._pace = Pace()
        self._last: Resources | None = None  # what the last claimed ticket needs
        self._left: list[tuple[Claim, UncountedReason, str]] = []  # still to requeue
        self._retry_at = math.inf
        self._unknown_due = 0.0
        self._skipped: dict[str, dict[str, JobSet]] = {}  # by obstacle and queue
        self._notices = Notices(_log)

    def claim_from(
        self, queue: Queue, running: Sequence[Resources], is_poll: bool = False
    ) -> Claimed:
        """Claim the tickets for which there is room beside the `running` jobs, and some ahead.

        The worker then holds those ahead. `is_poll`: see `Queue.claim`. Raises OSError or
        KochiError.
        """
        claimed = self.find(queue, running, is_poll)
        self._hold(claimed, claimed.ahead)
        return claimed

    def hold(self, claimed: Claimed) -> None:
        """Hold all claims of a call of `find`, behind the others."""
        self._hold(claimed, (*claimed.at_once, *claimed.ahead))

    def _hold(self, claimed: Claimed, held: Iterable[Claim]) -> None:
        claims = (*claimed.at_once, *claimed.ahead)
        if claims:
            self._pace.claimed(claimed.cost)
            self._last = claims[-1].ticket.resources
        self._forget_left(claims)
        if not self._held:
            self.keep()  # else those that are held already would be kept too long
        self._held.extend(held)

    def find(self, queue: Queue, running: Sequence[Resources], is_poll: bool = False) -> Claimed:
        """As `claim_from`, but nothing is held: another thread may call it if `is_searching`."""
        # No ticket starts before those that the worker holds.
        is_full = is_behind = bool(self._held)
        taken = list(running)
        at_once: set[int] = set()
        allowance = self.allowance()

        def accept(ticket: Ticket) -> Answer:
            nonlocal is_full
            left = self._walltime.seconds_for_jobs()
            if obstacle := self._capacity.obstacle(ticket.resources, left):
                self._skip(ticket, obstacle)
                return "skip"
            if not self._wake():
                return "stop"
            # No ticket starts before an earlier ticket that has to wait.
            if not is_full and self._capacity.fits(ticket.resources, taken):
                taken.append(ticket.resources)
                at_once.add(ticket.job)
                return "take"
            is_full = True
            # An idle worker should get a job that needs a worker for itself. While such a job runs
            # here, other workers should get all other jobs.
            is_exclusive = any(each.exclusive for each in (ticket.resources, *taken))
            return "take" if allowance > 0 and not is_exclusive else "stop"

        began = time.monotonic()
        room = 0 if is_behind else self._room_for_last(running)
        claims = queue.claim(
            self._worker,
            accept,
            # Each ticket needs a core: with more, the first one that has to wait would be read.
            limit=self._capacity.cores - sum(each.cores for each in running) + allowance,
            is_first=self._is_first if self._first else None,
            is_idle=not running and not self._held,
            unread=(0, 0) if self._is_resting() else (room, allowance),
            is_poll=is_poll,
        )
        ahead = [claim for claim in claims if claim.ticket.job not in at_once]
        first = [claim for claim in claims if claim.ticket.job in at_once]
        return Claimed(first, ahead, is_full, time.monotonic() - began)

    def _room_for_last(self, running: Sequence[Resources]) -> int:
        """How many tickets like the last one could start beside the `running` jobs."""
        taken = list(running)
        last = self._last
        while last is not None and self._capacity.fits(last, taken):
            taken.append(last)
        return len(taken) - len(running)

    def _is_first(self, ticket: Ticket) -> bool:
        return any(kind.has(ticket.resources) for kind in self._first)

    def allowance(self) -> int:
        """How many tickets the worker may claim in addition to those that can start at once."""
        return self._pace.allowance(self._capacity.cores)

    def job_ended(self, seconds: float) -> None:
        """Note how long a job took that has just ended."""
        self._pace.job_ended(seconds)

    @property
    def next_held(self) -> Claim | None:
        """The first claim that the worker holds ahead."""
        return self._held[0] if self._held else None

    @property
    def held(self) -> tuple[int, ...]:
        """The jobs that the worker holds ahead."""
        return tuple(claim.ticket.job for claim in self._held)

    @property
    def coming(self) -> list[Claim]:
        """The claims held ahead that start next: as many as could run at a time."""
        return list(islice(self._held, self._capacity.cores))

    @property
    def is_empty(self) -> bool:
        return not self._held and not self._left and not self.is_searching

    @property
    def are_slow(self) -> bool:
        """Whether claims take so long that the worker should not wait for them."""
        return self._pace.are_claims_slow

    @property
    def are_few(self) -> bool:
        """Whether the worker should claim more: where claims are slow, before none is left."""
        if not self._held:
            return True
        return self.are_slow and len(self._held) < self._capacity.cores and self.allowance() > 0

    @property
    def deadline(self) -> float:
        """When the worker requeues claims unless a held job starts before, in monotonic seconds."""
        retry_at = math.inf if self.is_searching else self._retry_at
        return min(self._moved + self._pace.patience if self._held else math.inf, retry_at)

    @property
    def is_overdue(self) -> bool:
        """Whether no held job has started for so long that the worker should requeue them."""
        return bool(self._held) and time.monotonic() >= self._moved + self._pace.patience

    def hold_first(self, claims: Sequence[Claim]) -> None:
        """Hold these claims before all others: the worker is preparing their start."""
        self._held.extendleft(reversed(claims))
        self.keep()

    def keep(self) -> None:
        """Restart the time limit of the held claims: they are about to start."""
        self._moved = time.monotonic()

    def take_next(self) -> Claim:
        """Remove the first held claim and return it, to start it."""
        self.keep()
        return self._held.popleft()

    def requeue_cancelled(self, cancelled: Collection[int]) -> None:
        """Requeue the held claims of these jobs, which ends cancelled jobs."""
        gone = [claim for claim in self._held if claim.ticket.job in cancelled]
        self._held = deque(claim for claim in self._held if claim.ticket.job not in cancelled)
        for claim in gone:
            self.requeue(claim)

    def requeue_held(self) -> None:
        """Requeue all held claims: the jobs are not as short as expected, or do not start."""
        held = list(self._held)
        self._held.clear()
        self._pace.forget_jobs()
        for claim in held:
            self.requeue(claim)

    def requeue(self, claim: Claim, reason: UncountedReason = "drained", detail: str = "") -> None:
        """Requeue a claim that was not started; a cancelled ticket ends there.

        `reason` and `detail` are those of `Queue.requeue`. If the requeue fails, on a full disk for
        example, the worker tries again later. It does not start the job after all: on that disk it
        would claim and requeue the job for ever.
        """
        what = f"job {claim.ticket.job} cannot be requeued yet"
        try:
            self._queue_of(claim.ticket).requeue(claim, reason, detail)
        except QueueRemovedError as error:
            _log.warning("job %d is not requeued: %s", claim.ticket.job, error.message)
        except (OSError, KochiError) as error:
            self._notices.fault(what, error)
            self._left.append((claim, reason, detail))
            self._retry_at = time.monotonic() + RETRY
        else:
            self._notices.over(what)

    def retry(self) -> None:
        """Try again to requeue the claims that could not be requeued, if that is due.

        Not while another thread claims: it may just have claimed them anew, see `_forget_left`.
        """
        if not self.is_searching and time.monotonic() >= self._retry_at:
            left, self._left, self._retry_at = self._left, [], math.inf
            for claim, reason, detail in left:
                self.requeue(claim, reason, detail)

    def _forget_left(self, claims: Iterable[Claim]) -> None:
        """Forget that tickets which are claimed anew were to be requeued: they had been, although
        the call failed. The new claim has the same name, and a further try would take its ticket
        away while the job runs."""
        anew = {claim.path for claim in claims}
        self._left = [each for each in self._left if each[0].path not in anew]

    def drop(self) -> None:
        """Forget all claims: other workers decide about these tickets."""
        self._held.clear()
        self._left, self._retry_at = [], math.inf

    def take_unknown_due(self) -> bool:
        """Whether it is time to look for unknown claims; true once in each interval.

        Not while another thread claims: nobody knows its claims yet.
        """
        now = time.monotonic()
        is_due = not self.is_searching and now >= self._unknown_due
        if is_due:
            self._unknown_due = now + _UNKNOWN_INTERVAL
        return is_due

    def requeue_unknown(self, queue: Queue, running: Collection[int]) -> None:
        """Requeue the worker's claims in this queue that the worker does not know.

        The `running` jobs are known. NFS may perform the rename that makes a claim, lose the
        answer, and report that the ticket does not exist. While the worker lives, no other worker
        would take such a ticket. Lists running/ of the queue; raises OSError.
        """
        known = {*running, *self.held, *(claim.ticket.job for claim, _, _ in self._left)}
        found = []
        for entry in queue.list_claims():
            if entry.worker == self._worker and entry.job not in known:
                try:
                    self._require_not_begun(entry)
                except DamagedFileError as error:
                    self._notices.fault(f"job {entry.job} stays in {entry.path}", error)
                    continue
                try:
                    ticket = read_ticket(entry.path).with_attempt(entry.attempt)
                except FileNotFoundError:
                    continue  # a listing does not show a single moment
                except DamagedFileError as error:
                    queue.set_aside(entry, error.message)
                    continue
                _log.warning("job %d was claimed without this worker's knowledge", entry.job)
                found.append(Claim(ticket, self._worker, new_nonce(), entry.path))
        for claim in found:
            self.requeue(claim)

    def _require_not_begun(self, entry: Entry) -> None:
        """Raise DamagedFileError if another worker began the job."""
        path = self._machine.job(entry.job).attempt(entry.attempt)
        try:
            # An empty file is that of an attempt that has not executed anything.
            if answered(path.stat).st_size == 0:
                return
            attempt = read_attempt(path)
        except FileNotFoundError:
            return
        if attempt.worker != self._worker:
            raise DamagedFileError(f"{path}: begun by worker {attempt.worker}")

    def _skip(self, ticket: Ticket, obstacle: str) -> None:
        # An obstacle remains, because the worker's capacity and time only decrease. Thousands of
        # tickets may share an obstacle, so only the first of them is logged.
        if obstacle not in self._skipped:
            _log.info("job %d (%s) is skipped: %s", ticket.job, ticket.name, obstacle)
        by_queue = self._skipped.setdefault(obstacle, {})
        by_queue.setdefault(ticket.queue, JobSet()).add(ticket.job)

    def describe_skipped(self) -> list[str]:
        """Lines for people about the skipped tickets that still wait.

        There is a line for each of the first tickets, and one for the rest. Each of the first
        tickets costs some directory listings.
        """
        with contextlib.suppress(OSError):
            return self._describe_skipped()
        return []

    def _describe_skipped(self) -> list[str]:
        lines: list[str] = []
        for job, queue, obstacle in self._skipped_in_order():
            entry = find_entry(self._machine.queue(queue), job)
            if entry is None or entry.worker is not None:
                continue  # another worker claimed it
            if len(lines) == _MOST_SHOWN:
                lines.append("and more; list them with: kochi show jobs")
                break
            with contextlib.suppress(FileNotFoundError, DamagedFileError):
                name = read_ticket(entry.path).name
                lines.append(f"Kochi job {name} (ID={job}) is left to other workers: {obstacle}.")
        return lines

    def _skipped_in_order(self) -> Iterator[tuple[int, str, str]]:
        sets: Iterable[Iterator[tuple[int, str, str]]] = (
            zip(jobs, repeat(queue), repeat(obstacle), strict=False)
            for obstacle, by_queue in self._skipped.items()
            for queue, jobs in by_queue.items()
        )
        return heapq.merge(*sets)
