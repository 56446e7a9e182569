"""The tickets that a worker has claimed but not started.

Where jobs are short, a worker also claims tickets ahead: it then takes one lock for many tickets.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import answered
from snakemake_kochi.next.worker.walltime import Walltime
from snakemake_kochi.notices import Notices
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.claiming import Answer, Claim
from snakemake_kochi.queue.entries import Entry, QueueRemovedError
from snakemake_kochi.queue.queue import Queue
from snakemake_kochi.queue.result import UncountedReason, new_nonce, read_attempt
from snakemake_kochi.queue.ticket import Kind, Resources, Ticket, read_ticket
from snakemake_kochi.tickets.capacity import Capacity
from snakemake_kochi.worker.obstacles import Obstacles
from snakemake_kochi.worker.pace import Pace
from snakemake_kochi.worker.settings import RETRY

_log = logging.getLogger(__name__)

_UNKNOWN_INTERVAL = 5.0  # seconds


@dataclass(frozen=True)
class Room:
    """What a search for tickets begins with; it stays the same while another thread searches.

    `running` and `held`: what the jobs that run need, and what the tickets need that the worker
    holds ahead. `ahead`: how many more tickets it may claim ahead.
    """

    running: tuple[Resources, ...]
    held: tuple[Resources, ...]
    ahead: int


@dataclass(frozen=True)
class Claimed:
    """The claims of one call.

    `at_once`: the claims that can start now, in this order; `ahead`: those after them. `is_full`: a
    ticket must wait for room, whether the worker has claimed it ahead or not, or the worker may not
    claim now. `cost`: how many seconds the call took.
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
        self._due: set[str] = set()  # the nonces of held claims whose runners are being prepared
        self._moved = 0.0  # when a claim was last made or started, in monotonic seconds
        self._pace = Pace()
        self._last: Resources | None = None  # what the last claimed ticket needs
        self._left: list[tuple[Claim, UncountedReason, str]] = []  # still to requeue
        self._retry_at = math.inf
        self._unknown_due = 0.0
        self.obstacles = Obstacles(machine)
        self._notices = Notices(_log)

    def claim_from(
        self, queue: Queue, running: Sequence[Resources], is_poll: bool = False
    ) -> Claimed:
        """Claim the tickets for which there is room beside the `running` jobs, and some ahead.

        The worker then holds those ahead. `is_poll`: see `Queue.claim`. Raises OSError or
        KochiError.
        """
        claimed = self.find(queue, self.room(running), is_poll)
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

    def room(self, running: Sequence[Resources]) -> Room:
        """What the worker has room for beside the `running` jobs."""
        held = tuple(claim.ticket.resources for claim in self._held)
        return Room(tuple(running), held, self.allowance())

    def find(self, queue: Queue, room: Room, is_poll: bool = False) -> Claimed:
        """As `claim_from`, but nothing is held: another thread may call it if `is_searching`."""
        taken = list(room.running)
        # No ticket starts before those that the worker holds.
        must_wait, is_full = bool(room.held), False
        at_once: set[int] = set()
        ahead = 0

        def accept(ticket: Ticket) -> Answer:
            nonlocal must_wait, is_full, ahead
            if obstacle := self.obstacle(ticket):
                self.obstacles.add(ticket, obstacle)
                return "skip"
            if not self._wake():
                is_full = True
                return "stop"
            # No ticket starts before an earlier ticket that has to wait.
            if not must_wait and self._capacity.fits(ticket.resources, taken):
                taken.append(ticket.resources)
                at_once.add(ticket.job)
                return "take"
            must_wait = is_full = True
            # An idle worker should get a job that needs a worker for itself. While such a job runs
            # here, or is about to, other workers should get all other jobs.
            others = (*taken, *room.held)
            if ahead == room.ahead or any(each.exclusive for each in (ticket.resources, *others)):
                return "stop"
            ahead += 1
            return "take"

        began = time.monotonic()
        # Each ticket needs a core: with more, the first one that has to wait would be read.
        free = self._capacity.cores - sum(each.cores for each in room.running)
        claims = queue.claim(
            self._worker,
            accept,
            limit=room.ahead + (0 if room.held else free),
            is_first=self._is_first if self._first else None,
            is_idle=not room.running and not room.held,
            unread=(0, 0) if self._is_resting() else (self._room_for_last(room), room.ahead),
            is_poll=is_poll,
        )
        later = [claim for claim in claims if claim.ticket.job not in at_once]
        first = [claim for claim in claims if claim.ticket.job in at_once]
        return Claimed(first, later, is_full, time.monotonic() - began)

    def obstacle(self, ticket: Ticket) -> str | None:
        """Why the worker cannot run the ticket, now or later, for people; or None."""
        left = self._walltime.seconds_for_jobs()
        return self._capacity.obstacle(ticket.resources, left)

    def _room_for_last(self, room: Room) -> int:
        """How many tickets like the last one could start at once."""
        taken = list(room.running)
        last = None if room.held else self._last
        while last is not None and self._capacity.fits(last, taken):
            taken.append(last)
        return len(taken) - len(room.running)

    def _is_first(self, ticket: Ticket) -> bool:
        return any(kind.has(ticket.resources) for kind in self._first)

    def allowance(self) -> int:
        """How many more tickets the worker may claim ahead than it holds."""
        return max(0, self._pace.allowance(self._capacity.cores) - len(self._held))

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
        """Whether the worker should claim more: where claims are slow, before none is left.

        Then it claims when it holds half of what it may hold, and so some tickets at a time.
        """
        held = len(self._held)
        if not held or any(claim.ticket.resources.exclusive for claim in self._held):
            return not held
        return self.are_slow and held < self._capacity.cores and held <= self.allowance()

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
        """Hold these claims before all others."""
        self._held.extendleft(reversed(claims))

    def await_runner(self, claims: Iterable[Claim]) -> None:
        """Note that the turn of these held claims has come, but not their runners' readiness."""
        self._due.update(claim.nonce for claim in claims)
        self.keep()

    def late_obstacle(self, claim: Claim) -> str | None:
        """Why a held claim cannot start now that its turn comes: its time is over.

        The time that a runner takes to be prepared does not count. It would again with the next
        worker.
        """
        return None if claim.nonce in self._due else self.obstacle(claim.ticket)

    def keep(self) -> None:
        """Restart the time limit of the held claims: they are about to start."""
        self._moved = time.monotonic()

    def take_next(self) -> Claim:
        """Remove the first held claim and return it, to start it."""
        self.keep()
        claim = self._held.popleft()
        self._due.discard(claim.nonce)
        return claim

    def requeue_cancelled(self, cancelled: Collection[int]) -> None:
        """Requeue the held claims of these jobs, which ends cancelled jobs."""
        gone = [claim for claim in self._held if claim.ticket.job in cancelled]
        self._held = deque(claim for claim in self._held if claim.ticket.job not in cancelled)
        self.requeue(gone)

    def requeue_held(self) -> None:
        """Requeue all held claims: the jobs are not as short as expected, or do not start."""
        held = list(self._held)
        self._held.clear()
        self._due.clear()
        self._pace.forget_jobs()
        self.requeue(held)

    def requeue(
        self, claims: Iterable[Claim], reason: UncountedReason = "drained", detail: str = ""
    ) -> None:
        """Requeue claims that were not started; a cancelled ticket ends there.

        `reason` and `detail` are those of `Queue.requeue`. If a requeue fails, on a full disk for
        example, the worker tries again later. It does not start the job after all: on that disk it
        would claim and requeue the job for ever.
        """
        by_queue: dict[str, list[Claim]] = {}
        for claim in claims:
            by_queue.setdefault(claim.ticket.queue, []).append(claim)
        for of_queue in by_queue.values():
            errors = self._try_to_requeue(of_queue, reason, detail)
            for claim, error in zip(of_queue, errors, strict=True):
                self._note_requeue(claim, reason, detail, error)

    def _try_to_requeue(
        self, claims: Sequence[Claim], reason: UncountedReason, detail: str
    ) -> Sequence[OSError | KochiError | None]:
        """What prevented the requeue of each of these claims of one queue, if anything did."""
        try:
            return self._queue_of(claims[0].ticket).requeue_all(claims, reason, detail)
        except (OSError, KochiError) as error:
            return [error] * len(claims)

    def _note_requeue(
        self,
        claim: Claim,
        reason: UncountedReason,
        detail: str,
        error: OSError | KochiError | None,
    ) -> None:
        what = f"job {claim.ticket.job} cannot be requeued yet"
        if error is None:
            self._notices.over(what)
        elif isinstance(error, QueueRemovedError):
            _log.warning("job %d is not requeued: %s", claim.ticket.job, error.message)
        else:
            self._notices.fault(what, error)
            self._left.append((claim, reason, detail))
            self._retry_at = time.monotonic() + RETRY

    def retry(self) -> None:
        """Try again to requeue the claims that could not be requeued, if that is due.

        Not while another thread claims: it may just have claimed them anew, see `_forget_left`.
        """
        if not self.is_searching and time.monotonic() >= self._retry_at:
            left, self._left, self._retry_at = self._left, [], math.inf
            for claim, reason, detail in left:
                self.requeue([claim], reason, detail)

    def _forget_left(self, claims: Iterable[Claim]) -> None:
        """Forget that tickets which are claimed anew were to be requeued: they had been, although
        the call failed. The new claim has the same name, and a further try would take its ticket
        away while the job runs."""
        anew = {claim.path for claim in claims}
        self._left = [each for each in self._left if each[0].path not in anew]

    def drop(self) -> None:
        """Forget all claims: other workers decide about these tickets."""
        self._held.clear()
        self._due.clear()
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
        self.requeue(found)

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
