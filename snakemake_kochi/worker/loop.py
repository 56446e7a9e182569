"""A worker: it claims tickets that fit on its node, and gives each to the thread of a job."""

from __future__ import annotations

import json
import logging
import os
import random
import select
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from humanfriendly.text import pluralize

from snakemake_kochi.base import clock, files
from snakemake_kochi.base.wake import listen, wake
from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import random_word
from snakemake_kochi.notices import Notices
from snakemake_kochi.own_environment import OwnEnvironment
from snakemake_kochi.processes import ProcessIdentity, this_node
from snakemake_kochi.quantities import format_duration
from snakemake_kochi.queue.paused import PausedBatches
from snakemake_kochi.queue.spreading import MOST_LEFT, Spreading
from snakemake_kochi.tickets.capacity import Capacity
from snakemake_kochi.tickets.claims import Claims, WorkerLife
from snakemake_kochi.tickets.hand import is_by_hand
from snakemake_kochi.tickets.moving import listing
from snakemake_kochi.tickets.names import SERVING, Layout, Name, RunPaths
from snakemake_kochi.tickets.run import ENDED, OWN, has_users
from snakemake_kochi.tickets.ticket import Kind, Resources, Ticket, ticket_in
from snakemake_kochi.tickets.watching import INTERVAL, SILENT, FencedError, IsGone, Pulse, Watch
from snakemake_kochi.worker.health import Health
from snakemake_kochi.worker.job import Job
from snakemake_kochi.worker.logins import Logins
from snakemake_kochi.worker.node.capacity import OomWatch
from snakemake_kochi.worker.node.devices import Allotment, Devices
from snakemake_kochi.worker.runners import Forks, Runners
from snakemake_kochi.worker.settings import BETWEEN_JOBS, WorkerSettings
from snakemake_kochi.worker.walltime import END_SIGNAL, TIME_IS_OVER, Walltime

_log = logging.getLogger(__name__)

_WOKEN, _NEWS = "woken", "news"  # by others; by a thread of this process
_RETRY = 1.0  # seconds until a claim is tried again that failed
_MOST_FAILED_STARTS = 3
_SET_ASIDE = "set aside"
# Seconds in which a claim reads tickets that this worker cannot take: the loop has other duties.
_LONGEST_CLAIM = 1.0
# Seconds until tickets of the kinds that come first are searched again after a search without any,
# for each second that it took: it reads what others submitted, too.
_FIRST_PAUSE = 4.0
# Intervals between two signs of life of a worker without jobs, and between two looks for what is
# amiss, if no worker of its queues had a ticket.
_IDLE_BEAT = _IDLE_LOOK = 3
# Between two looks for tickets of which nobody woke this worker, in times of the first interval.
_LONGEST, _GROWTH = 5.0, 1.5


@dataclass(frozen=True)
class Means:
    """What a node gives a worker. `environment`: the common one of all jobs; `lock`: the directory
    of the computer's lock, if its jobs are to take it."""

    capacity: Capacity
    devices: Devices
    walltime: Walltime
    environment: Mapping[str, str]
    lock: Path | None
    oom: OomWatch
    health: Health
    is_gone: IsGone


class Worker:
    """One worker. Jobs call it from their threads; all else is done by the thread of `run`."""

    def __init__(
        self,
        layout: Layout,
        life: WorkerLife,
        settings: WorkerSettings,
        means: Means,
        make_forks: Callable[[Callable[[signal.Signals], None]], tuple[Forks, Runners]],
    ) -> None:
        """`make_forks` gets what is to be called for each request to stop."""
        self.grace = settings.grace
        self.lock, self.oom = means.lock, means.oom
        self._layout = layout
        self._life = life
        self._settings = settings
        self._means = means
        self._capacity, self._walltime = means.capacity, means.walltime
        self._began = self._idle_since = clock.now()
        self._mutex = threading.Lock()  # of devices, and of what jobs change here
        self._jobs: dict[Name, Job] = {}  # those that take room
        self._threads: set[Name] = set()
        self._queue_of: dict[Name, str] = {}
        self._tickets: dict[Name, Ticket | DamagedFileError] = {}  # claimed a moment ago
        self._unread: list[tuple[str, Name]] = []  # held, and not readable yet
        self._skipped: dict[Name, str] = {}  # why this worker cannot execute them
        self._paused = PausedBatches(settings.paths)
        # Tickets of paused batches; runs that have ended; what is left to others, in this claim.
        self._waits_paused, self._no_users, self._left = set[Name](), set[int](), list[Name]()
        # Jobs of the kinds that do not come first: they are read once. When those that do are
        # searched next, by queue.
        self._not_first, self._first_due = set[tuple[int, int]](), dict[str, float]()
        self._waits = dict[Name, str]()  # for the lock of the computer, and why
        self._claim_until: float | None = None
        self._notices = Notices(_log, clock=clock.now)
        # The next ticket has no room; a search saw tickets of kinds that do not come first.
        self._must_wait = self._sees_others = False
        self._are_by_hand: dict[int, bool] = {}  # by run: while a ticket is held, it stays so
        self._stops, self._stop_reason, self._is_at_time_limit = 0, "", False
        self._is_woken = settings.worker is not None  # it may have been released before
        self._why = ""  # why it leaves
        self._is_draining, self._failed_starts = False, 0  # in a row
        parent = settings.parent
        # One that is gone already has no start: nobody lives who began at -1.
        self._parent = parent and (ProcessIdentity.of(parent) or ProcessIdentity(parent, -1))
        self._run = None if settings.controller is None else layout.run(int(settings.controller))
        self._pulse = None if self._run is None else Pulse(self._run.alive)
        self._pause, self._has_left = settings.idle_wait, False
        self._look_due = self._reconcile_due = self._beat_due = 0.0
        self._mail = clock.mailbox()
        self._claims, self._spreading = dict[str, Claims](), dict[str, Spreading]()
        for queue in settings.queues:
            self._serve(queue)
        self._watch = Watch(layout, self._is_by_hand, means.is_gone)
        self.forks, self.runners = make_forks(self.note_stop)
        self._logins = Logins(self.forks, life.name, life.paths)

    # ---- the loop

    def run(self) -> int:
        """Work until told to leave, or until nothing is left; the exit status."""
        _log.info("worker %s started", self._life.name)
        listen(self._life.paths.wake, lambda: self._mail.put(_WOKEN))
        clock.spawn(self._beat)
        if self._parent:
            clock.spawn(partial(self._await_end, self._parent))
        while True:
            self._obey()
            self._look()
            if self._is_over():
                return self._leave()
            mail, self._is_woken = self._mail.get(self._seconds_to_wait()), False
            while mail is not None:
                self._is_woken |= mail is _WOKEN
                mail = self._mail.get(0.0)

    def _serve(self, queue: str) -> None:
        """Raises OSError."""
        self._claims[queue] = Claims(self._layout, queue, self._life)
        self._spreading[queue] = Spreading()
        with suppress(OSError):
            files.overwrite(self._layout.queue(queue).serving(self._life.name), b"")

    def _beat(self) -> None:
        environment = OwnEnvironment()
        while not self._has_left:
            environment.note_use()
            try:
                self._life.beat()
            except FencedError:
                self._fence()
            except OSError as error:
                _log.warning("no sign of life can be given now: %s", error)
            if self._life.cancelled or self._life.release or self._life.wants_login:
                self._notify()
            for _ in range(_IDLE_BEAT):
                clock.sleep(INTERVAL)
                if self._threads or self._why or self._has_left:
                    break

    def _await_end(self, parent: ProcessIdentity) -> None:
        """Have the loop look when it ends: somebody may begin its jobs anew, without kochi."""
        with suppress(ProcessLookupError):
            poll = select.poll()
            poll.register(os.pidfd_open(parent.pid), select.POLLIN)
            poll.poll()
        self._beat_due = 0.0
        self._notify()

    def _fence(self) -> NoReturn:
        """Others have this worker's tickets: the supervisor ends all that is left of it."""
        _log.error("others took this worker for dead: it ends now")
        self.forks.abandon()

    def _notify(self) -> None:
        self._mail.put(_NEWS)

    def _seconds_to_wait(self) -> float:
        if self._why and not (self._threads or self._unread):
            return 0.0  # it is over
        now = clock.now()
        moments = [self._beat_due]
        if not self._why:
            moments += [self._look_due, self._reconcile_due]
            if (left := self._walltime.seconds_left()) is not None:
                moments.append(now + left)
            if self._settings.idle_timeout is not None and not self._jobs:
                moments.append(self._idle_since + self._settings.idle_timeout)
        return max(0.0, min(moments) - now)

    def _is_over(self) -> bool:
        if self._threads or self._unread:
            return False
        if self._why:
            return True
        idle = clock.now() - self._idle_since
        has_looked = self._look_due > clock.now() and not self._must_wait
        if has_looked and self._is_run_dead():
            self._why = "the run that started it was killed, and it has no job"
        elif self._settings.stay:
            limit = self._settings.idle_timeout
            if limit is not None and idle >= limit:
                self._why = f"it had no job for {format_duration(limit)}"
        elif has_looked and not self._has_users(idle):
            self._why = self._last_look()
        return bool(self._why)

    def _has_users(self, idle: float) -> bool:
        """Whether a run goes on that has submitted to these queues: between a build and its runs,
        for example, they are empty for a moment."""
        if idle >= BETWEEN_JOBS:
            return False
        with suppress(OSError):
            return has_users(self._layout, self._claims, self._no_users)
        return True

    def _last_look(self) -> str:
        """Why it may leave; "" if it found a job, after others could see that it leaves.

        Who submits a job and finds this worker relies on this look; who finds that it has left
        starts another one.
        """
        try:
            files.overwrite(self._life.paths.left, b'{"reason": "nothing to do"}\n')
            if self._claim() and not self._threads:
                return "nothing is left that it can run" if self._skipped else "nothing to do"
            files.unlink(self._life.paths.left)
        except OSError as error:
            _log.warning("it cannot leave now: %s", error)
        return ""

    # ---- orders

    def note_stop(self, number: signal.Signals) -> None:
        # Schedulers may send it much too early: this clock is better.
        left = self._walltime.seconds_left()
        if number == END_SIGNAL and left is not None and left <= 60.0:
            return
        self._stops += 1
        self._is_at_time_limit = number == END_SIGNAL
        self._stop_reason = f"told by {number.name}"
        self._notify()

    def _obey(self) -> None:
        now = clock.now()
        if now >= self._beat_due:
            self.forks.beat()
            self._beat_due = now + INTERVAL
            if self._parent and not self._parent.is_alive():
                self._drain(f"process {self._parent.pid}, which started this worker, is gone")
        with suppress(OSError):
            try:
                if self._threads:
                    self._life.require_fresh()
                else:
                    self._life.feed()  # it asks before it claims
                if self._is_woken:
                    self._look_due = 0.0
                    self._life.look()
            except FencedError:
                self._fence()
            for queue in self._life.queues:
                if queue not in self._claims:
                    self._serve(queue)
        for name in sorted(self._life.cancelled):
            if job := self._jobs.get(name):
                job.end("cancel", self.grace)
        if self._life.wants_login:
            self._life.wants_login = False
            self._logins.obey()
        at_once = self._life.release == "now"
        if self._life.release and (at_once or not self._why):
            self._drain("released by kochi release", at_once)
        if self._walltime.is_over:
            self._is_at_time_limit = True
            self._drain(TIME_IS_OVER)
        if self._stops:
            self._drain(self._stop_reason)
        if self._stops > 1:
            for job in list(self._jobs.values()):
                job.end("requeue", 0.0)

    def _drain(self, why: str, at_once: bool = True) -> None:
        """Leave when all jobs have ended; `at_once`: they go back to their queue."""
        if not self._why:
            _log.info("stopping: %s; jobs: %s", why, ", ".join(map(str, self._jobs)) or "none")
            if not self._life.release:
                with suppress(OSError):  # for people
                    text = f"{'now' if at_once else 'finish':8}\n{why}\n"
                    files.overwrite(self._life.paths.release, text.encode())
        if at_once and not self._is_draining:
            self._is_draining = True
            for job in list(self._jobs.values()):
                job.end("requeue", self.grace)
        self._why = self._why or why

    # ---- claims

    def _look(self) -> None:
        unread, self._unread = self._unread, []
        for queue, name in unread:
            self._begin(queue, name)
        if self._why:
            return
        now = clock.now()
        try:
            if now >= self._reconcile_due:
                self._reconcile()
                is_idle = not any(claims.running for claims in self._claims.values())
                self._reconcile_due = now + (_IDLE_LOOK if is_idle else 1) * INTERVAL
            if now >= self._look_due:
                self._look_due = now + self._pause * random.uniform(0.75, 1.0)
                self._pause = min(self._pause * _GROWTH, self._settings.idle_wait * _LONGEST)
                self._claim()
        except FencedError:
            self._fence()

    def _reconcile(self) -> None:
        for queue, claims in self._claims.items():
            try:
                for name in claims.reconcile():
                    _log.warning("ticket %s was claimed without this worker's knowledge", name)
                    self._begin(queue, name)
            except OSError as error:
                self._notices.fault(f"queue {queue} cannot be read now", error)
        with suppress(OSError):
            self._watch.look_at({queue: c.running for queue, c in self._claims.items()})
        if self._run is not None:
            with suppress(OSError):
                self._look_at_run(listing(self._run.directory))

    def _look_at_run(self, texts: Sequence[str]) -> None:
        if ENDED in texts:
            self._drain("the run that started it is over")
        elif any(text.startswith(f"{OWN}.") for text in texts) and not self._why:
            # It has cancelled what waits, and awaits what runs.
            self._drain("another run took over from the one that started it", at_once=False)
        elif self._pulse is not None and self._settings.allocation:
            self._pulse.look()

    def _is_run_dead(self) -> bool:
        """Whether it left an allocation behind: on its own computer a worker ends with it."""
        is_silent = self._pulse and self._pulse.still >= SILENT * INTERVAL
        return bool(is_silent and self._settings.allocation)

    def _is_by_hand(self, name: Name) -> bool:
        if name.run not in self._are_by_hand:
            self._are_by_hand[name.run] = is_by_hand(self._layout, name.run)
        return self._are_by_hand[name.run]

    def _claim(self) -> bool:
        """Begin what fits; False if a queue cannot be seen now."""
        is_seen = True
        for queue, claims in self._claims.items():
            taken = self._taken()
            if self._capacity.is_full(taken):
                break
            self._must_wait = False
            try:
                names = self._claim_of(queue, claims, taken)
            except OSError as error:
                self._notices.fault(f"no ticket of queue {queue} can be claimed now", error)
                self._look_due = min(self._look_due, clock.now() + _RETRY)
                is_seen = False
                continue
            for name in names:
                self._begin(queue, name)
            self._tickets.clear()  # what others got
            if self._must_wait:  # or smaller tickets would take the room before it is enough
                break
        return is_seen

    def _taken(self) -> list[Resources]:
        return [job.ticket.resources for job in list(self._jobs.values())]

    def _claim_of(self, queue: str, claims: Claims, taken: Sequence[Resources]) -> list[Name]:
        """Tickets of the kinds for which this worker was requested, and only then others: short or
        small ones would exhaust the time or memory of a worker for long or large ones."""
        began = clock.now()
        if self._settings.first and began >= self._first_due.get(queue, 0.0):
            self._sees_others = False
            names = self._search(queue, claims, taken, self._settings.first)
            if names or self._must_wait or not self._sees_others:
                if names and self._sees_others:
                    self._look_due = 0.0  # for others, in the room that is left
                return names
            now = clock.now()
            self._first_due[queue] = now + _FIRST_PAUSE * (now - began)
        return self._search(queue, claims, taken, ())

    def _search(
        self, queue: str, claims: Claims, taken: Sequence[Resources], kinds: Sequence[Kind]
    ) -> list[Name]:
        """Claim tickets of these kinds, or of any.

        Tickets like those that this worker has had (see `Spreading`) come last; one with jobs
        leaves them while others serve the queue."""
        spreading = self._spreading[queue]
        self._left, self._claim_until = [], None
        if names := claims.claim(partial(self._accept, taken, spreading, kinds)):
            spreading.overtaken(name.key for name in self._left)
        elif self._left and not (taken and self._has_others(queue)):
            names = claims.claim(partial(self._accept, taken, None, kinds))
        return names

    def _has_others(self, queue: str) -> bool:
        paths = self._layout.queue(queue)
        own = paths.serving(self._life.name).rpartition("/")[2]
        return any(text.startswith(SERVING) and text != own for text in listing(paths.directory))

    def _accept(
        self,
        running: Sequence[Resources],
        spreading: Spreading | None,
        kinds: Sequence[Kind],
        name: Name,
        read: Callable[[], bytes],
        claimed: Sequence[Name],
    ) -> bool | None:
        tickets = [self._tickets[each] for each in claimed]
        taken = [*running, *(each.resources for each in tickets if isinstance(each, Ticket))]
        if self._capacity.is_full(taken):
            return None
        if self._claim_until is None:
            # From the first ticket on: the listing may have taken longer.
            self._claim_until = clock.now() + _LONGEST_CLAIM
            if self._paused.has_changed():
                self._waits_paused.clear()
        if clock.now() >= self._claim_until:  # the next claim goes on where this one was
            self._look_due = 0.0
            return None
        if name in self._skipped or name in self._waits_paused:
            return False
        run = None if self._settings.any_run else self._settings.controller
        if run not in (None, str(name.run)):
            return False  # another run's: it would go back to its queue when the own run is over
        if kinds and name.key in self._not_first:
            self._sees_others = True
            return False
        try:
            ticket = ticket_in(read(), str(name))
        except DamagedFileError as error:
            self._tickets[name.held_by(self._life.name)] = error
            return True
        wanted = ticket.resources
        if kinds and not any(kind.has(wanted) for kind in kinds):
            self._not_first.add(name.key)
            self._sees_others = True
            return False
        if self._paused.has(ticket):
            self._waits_paused.add(name)
            return False
        may_leave = spreading is not None and len(self._left) < MOST_LEFT
        if spreading is not None and may_leave and spreading.leaves(ticket, name.key):
            self._left.append(name)
            return False
        if obstacle := self._capacity.obstacle(wanted, self._walltime.seconds_for_jobs()):
            self._skipped[name] = obstacle
            _log.info("job %s (%s) is left to others: %s", name, ticket.name, obstacle)
            return False
        if not self._capacity.fits(wanted, taken):
            self._must_wait = True
            return None
        self._tickets[name.held_by(self._life.name)] = ticket
        if spreading is not None:
            spreading.took(ticket, name.key)
        return True

    def _begin(self, queue: str, name: Name) -> None:
        """Start the thread of a claimed ticket, or let it go."""
        self._queue_of[name] = queue
        ticket = self._tickets.pop(name, None)
        if ticket is None:
            try:
                ticket = ticket_in(self._claims[queue].read(name), str(name))
            except FileNotFoundError:
                return
            except DamagedFileError as error:
                ticket = error
            except OSError as error:
                _log.warning("ticket %s cannot be read yet: %s", name, error)
                self._unread.append((queue, name))
                return
        self._pause = self._settings.idle_wait
        self._idle_since = clock.now()
        if isinstance(ticket, DamagedFileError):
            details = {"node": this_node().host, "detail": f"damaged ticket: {ticket}"}
            target: Callable[[], Any] = partial(self.finish, name, "failed", details)
        elif not self._capacity.fits(ticket.resources, self._taken()) or self._why:
            target = partial(self.put_back, name, None)
        else:
            self._jobs[name] = target = Job(self, name, ticket)
        self._threads.add(name)
        clock.spawn(partial(self._live, name, target))

    def _live(self, name: Name, job: Callable[[], Any]) -> None:
        job()
        self._threads.discard(name)
        del self._queue_of[name]
        if self._why or not self._threads:  # or there is nothing to do for the loop
            self._notify()

    # ---- what jobs call, from their threads

    def environment_of(self, name: Name, ticket: Ticket) -> dict[str, str]:
        job = f"{name.run}.{name.job}"
        with suppress(OSError):
            job = str(name.run) if self._is_by_hand(name) else job
        return {
            **self._means.environment,
            "PWD": ticket.directory,
            **ticket.environment,
            "KOCHI_WORKER_ID": self._life.name,
            "KOCHI_QUEUE": self._queue_of[name],
            "KOCHI_JOB_ID": job,
            "KOCHI_JOB_NAME": ticket.name,
            "KOCHI_ATTEMPT": str(name.attempt),
        }

    def paths_of(self, name: Name) -> RunPaths:
        return self._layout.run(name.run)

    def require_life(self) -> None:
        try:
            self._life.require_fresh()
        except FencedError:
            self._fence()

    def allot(self, ticket: Ticket) -> Allotment:
        with self._mutex:
            return self._means.devices.allot(ticket.resources)

    def give_back(self, allotment: Allotment) -> None:
        with self._mutex:
            self._means.devices.release(allotment)

    def tell_wait(self, name: Name, why: str) -> None:
        """Tell others why a job does not begin; "": it waits no longer."""
        self._waits[name] = why
        said = next(filter(None, list(self._waits.values())), "")
        if not why:
            del self._waits[name]
        with suppress(OSError):
            files.overwrite(self._life.paths.waits, f"{said}\n".encode())

    def is_alone(self, job: Job) -> bool:
        return len(self._jobs) == 1

    def why_requeued(self, job: Job) -> tuple[str, str]:
        """The reason, and a detail; no reason: the job took too long, as the detail says."""
        worked = clock.now() - self._began
        if not self._walltime.was_used_by(job.seconds, worked):
            return "drained", self._why
        limit = job.limit
        # A longer allocation would have been longer than its limit: no attempt gets further.
        is_short = limit and self._walltime.is_shorter_than_allocation_for(limit)
        if self._is_at_time_limit and is_short:
            named = pluralize(limit, "second")
            return "", f"its worker had less time than the job's limit of {named}"
        return "out of time", self._why

    def fault_behind(self, ticket: Ticket) -> str:
        """What this node cannot do, for people, if the job may have failed for that."""
        if fault := self._means.health.fault(ticket.directory):
            self._set_aside(fault)
        return fault

    def _set_aside(self, fault: str) -> None:
        self._why = self._why or f"{_SET_ASIDE}: this node {fault}"
        _log.error("%s", self._why)

    def over(self, job: Job, has_begun: bool) -> None:
        """There is room for another one; not at once, if no process could be made."""
        self._jobs.pop(job.name, None)
        self._walltime.job_ended()
        self._idle_since = clock.now()
        self._pause = self._settings.idle_wait
        self._failed_starts = 0 if has_begun else self._failed_starts + 1
        if self._failed_starts == _MOST_FAILED_STARTS:
            self._set_aside("cannot start jobs")
        self._look_due = 0.0 if has_begun else clock.now() + _RETRY
        self._notify()

    def finish(self, name: Name, state: str, details: Any) -> bool:
        done = self._claims[self._queue_of[name]].finish(name, state, details)
        wake(self._layout.run(name.run).wake)
        return done

    def is_loss(self, reason: str) -> bool:
        """Whether a job that goes back to its queue has lost a worker, of which it has only a few.

        That a process could not be made counts once the worker is set aside for it.
        """
        is_set_aside = self._why.startswith(_SET_ASIDE)
        return reason == "out of time" or (reason == "node failed" and is_set_aside)

    def put_back(self, name: Name, why: Any, losses: int = 0) -> None:
        """Repeats until the server answers."""
        while True:
            with suppress(OSError):
                self._claims[self._queue_of[name]].put_back(name, why, losses)
                return
            clock.sleep(_RETRY)

    # ---- the end

    def _leave(self) -> int:
        _log.info("worker %s left: %s", self._life.name, self._why)
        for queue in self._claims:
            with suppress(OSError):
                files.unlink(self._layout.queue(queue).serving(self._life.name))
        self._has_left = True
        with suppress(OSError):
            text = json.dumps({"reason": self._why, "ended": datetime.now(UTC).isoformat()})
            files.overwrite(self._life.paths.left, f"{text}\n".encode())
        self._logins.close()
        self.runners.close()
        return 1 if self._why.startswith(_SET_ASIDE) else 0


def facts_of_worker(settings: WorkerSettings, capacity: Capacity, walltime: Walltime) -> Any:
    """What `worker.json` says. `process`: the supervisor, which ends last."""
    supervisor = ProcessIdentity.of(os.getppid())
    assert supervisor is not None
    return {
        "process": asdict(supervisor),
        "nonce": random_word(8),
        "node": asdict(this_node()),
        "queues": settings.queues,
        "capacity": asdict(capacity),
        "started": datetime.now(UTC).isoformat(timespec="microseconds"),
        "until": walltime.until,
        "seconds": walltime.seconds_for_jobs(),  # at its beginning
        "controller": settings.controller,
        "allocation": settings.allocation,
    }
