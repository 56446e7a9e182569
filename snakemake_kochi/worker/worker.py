"""The worker's loop: one thread, woken by its wake-up FIFO, its children, signals and timers."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence
from functools import partial
from itertools import takewhile

from snakemake_kochi.backoff import wait_until
from snakemake_kochi.errors import KochiError
from snakemake_kochi.files.together import Together
from snakemake_kochi.next.worker.walltime import END_SIGNAL, TIME_IS_OVER
from snakemake_kochi.notices import Notices
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.claiming import Claim
from snakemake_kochi.queue.wakeup import SILENT_WAIT
from snakemake_kochi.queue.workers import WorkerState
from snakemake_kochi.worker.claims import Claims
from snakemake_kochi.worker.logins import Logins
from snakemake_kochi.worker.logs import AlreadyCancelledError
from snakemake_kochi.worker.node.devices import Devices
from snakemake_kochi.worker.node.health import Health
from snakemake_kochi.worker.node.turns import Turns
from snakemake_kochi.worker.orders import RELEASED, ControllerWatch, Orders, Surroundings
from snakemake_kochi.worker.output import Echo
from snakemake_kochi.worker.own_directory import OwnDirectory
from snakemake_kochi.worker.queues import Idle, Looks, ServedQueues
from snakemake_kochi.worker.runners.interface import Runners
from snakemake_kochi.worker.search import Search
from snakemake_kochi.worker.settings import RETRY, WorkerSettings
from snakemake_kochi.worker.signals import Events, Wake
from snakemake_kochi.worker.slots import Ends, Slots
from snakemake_kochi.worker.starts import AlreadyBegunError
from snakemake_kochi.worker.state import StateFile

_log = logging.getLogger(__name__)

_UNSTARTED = "a job cannot be started here now"


class Worker:
    """Claims tickets of its queues and runs them beside each other as they fit.

    Its process must have no other children. Files of a slow filesystem are also made in other
    threads, and claims too; no process that goes on in Python is forked beside them.
    """

    def __init__(
        self,
        machine: MachinePaths,
        state: WorkerState,
        settings: WorkerSettings,
        surroundings: Surroundings,
        runners: Runners,
        echo: Echo,
        devices: Devices,
        turns: Turns,
        wake: Wake,
    ) -> None:
        self._settings = settings
        self._walltime = surroundings.walltime
        self._devices = devices
        self._turns = turns
        self._runners = runners
        self._echo = echo
        self._capacity = state.capacity
        self._own = OwnDirectory(machine.worker(state.worker))
        self._state = StateFile(machine, state)
        self._health = Health(machine, state.worker, surroundings.environment)
        self._queues = ServedQueues(machine, self._state)
        queue_of = self._queues.queue_of
        self._claims = Claims(
            *(machine, state.worker, state.capacity, self._walltime, queue_of, settings.first),
            is_resting=lambda: self._state.is_resting,
            wake=lambda: not self._orders.is_stopping and self._state.wake(),
        )
        self._search = Search(self._queues, self._claims, state.capacity)
        together = Together()
        self._ends = Ends(
            self._state, self._health, self._walltime, queue_of, lambda: together.is_slow
        )
        self._logins = Logins(machine, state.worker, self._own)
        self._slots = Slots(
            *(machine, surroundings.environment, settings.grace, runners, devices),
            *(self._state, self._ends, echo, self._logins, together),
        )
        self._orders = Orders(machine, state.worker, self._own, surroundings)
        self._controller = ControllerWatch(machine, state)
        self._idle = Idle(settings, self._queues, self._controller)
        self._looks = Looks(settings.idle_wait)
        self._look_due = True
        self._pause_until = 0.0
        self._awaits_runner = False
        fifo = machine.worker(state.worker).wakeup
        watched = (*runners.watched, turns, self._ends.background, self._search.background)
        self._events = Events(
            wake, fifo, surroundings.parent, watched, lambda: self._walltime.ends_jobs_soon
        )
        self._notices = Notices(_log)

    def run(self) -> int:
        """Work until no work is left or the worker is told to stop; return the exit status."""
        with contextlib.ExitStack() as stack:
            if stack.enter_context(self._events).is_silent:
                self._looks = Looks(min(SILENT_WAIT, self._settings.idle_wait))
            stack.enter_context(self._state.signs_of_life())
            stack.callback(self._leave)
            self._queues.read()
            while self._turn():
                pass
        self._controller.cancel_waiting(self._settings.cancel_waiting)
        return 1 if self._health.cause or self._state.presumed_dead_by else 0

    def _turn(self) -> bool:
        """Handle one wake-up; return whether there will be another."""
        is_notified = self._events.wait(self._time_out())
        # Check this first: while the worker or its node slept, others may have got its tickets.
        if self._state.presumed_dead_by is not None:
            return False
        is_retry = self._queues.take_retry()
        if is_notified:
            self._looks.reset()
        if is_notified or is_retry:
            self._queues.read()
        is_told = is_notified or self._looks.is_due
        self._look_due |= is_told or is_retry
        if is_told:
            self._own.look(is_notified)
        if is_told and self._orders.is_told_to_finish():
            self._finish()
        if self._orders.is_told_to_stop(self._events.signals.stops):
            self._stop()
        self._claims.retry()
        if is_told:
            self._look_around(is_notified)
        self._advance()
        self._take_found()
        self._start_held()
        is_paused = time.monotonic() < self._pause_until
        if self._look_due and self._may_claim and not is_paused:
            self._claim(is_poll=is_told and not is_notified and self._is_idle)
        elif is_told:
            self._looks.skip()
        self._keep_turns()
        self._slots.prepare(self._claims.coming)
        self._echo.pump()
        self._show()
        self._state.note_idle(self._is_idle and self._claims.is_empty)
        self._state.write_when_due()
        if not self._is_idle:
            return not self._is_held_up
        if self._orders.is_stopping:
            return False
        return not self._idle.is_over or not self._may_leave()

    def _show(self) -> None:
        """Note in the state what others may see a little late."""
        if self._state.state.fresh and not self._walltime.is_fresh:
            self._state.touch(fresh=False)
        if self._state.state.waits != (waits := self._turns.waits):
            if waits and not self._state.state.waits:
                _log.info("%s", waits)
            self._state.touch(waits=waits)
        if self._state.state.ahead != self._claims.held:
            self._state.touch(ahead=self._claims.held)

    def _time_out(self) -> float:
        """Seconds until something is due without a wake-up."""
        moment = time.monotonic()
        deadlines = [due for slot in self._slots if (due := slot.next_due) is not None]
        deadlines += [self._state.deadline, self._claims.deadline, self._queues.deadline]
        deadlines.append(self._echo.deadline)
        if self._is_idle:
            deadlines.append(self._idle.deadline)
        if not self._orders.requests:
            is_claiming = self._look_due and self._may_claim
            deadlines.append(self._pause_until if is_claiming else self._looks.deadline)
            if (left := self._walltime.seconds_left()) is not None:
                deadlines.append(moment + left)
        return max(0.0, min(deadlines) - moment)

    @property
    def _is_idle(self) -> bool:
        has_claims = self._claims.next_held is not None or self._claims.is_searching
        return not self._slots and not has_claims

    @property
    def _may_claim(self) -> bool:
        # What is claimed behind a ticket that waits for its runner would wait, too, while other
        # workers may be idle.
        return self._search.may_begin and not self._awaits_runner and not self._orders.is_stopping

    @property
    def _is_held_up(self) -> bool:
        """Whether it is to leave, and only waits for processes that no signal ends."""
        states = [slot.is_held_up for slot in self._slots]
        return self._orders.is_stopping and bool(states) and all(states)

    def _stop(self) -> None:
        """Requeue the jobs: with their grace at the first request, without it at the second."""
        is_first = self._state.state.state != "draining"
        if is_first:
            tickets = [slot.claim.ticket for slot in self._slots]
            names = ", ".join(f"{ticket.job} ({ticket.name})" for ticket in tickets)
            why = self._orders.reason or f"told by {self._events.signals.first_stop}"
            self._ends.is_at_time_limit = why in (TIME_IS_OVER, f"told by {END_SIGNAL.name}")
            _log.info("stopping (%s); jobs requeued: %s", why, names or "none")
            self._state.update(state="draining", reason=why)
        # The jobs are told first: their grace has begun, and requeues may take as long.
        self._slots.requeue_all(self._settings.grace if self._orders.requests == 1 else 0.0)
        if is_first:
            self._claims.requeue_held()

    def _finish(self) -> None:
        names = ", ".join(map(str, self._slots.jobs))
        _log.info("%s; jobs that still run: %s", RELEASED, names or "none")
        self._state.update(state="finishing", reason=RELEASED)
        self._claims.requeue_held()

    def _look_around(self, is_notified: bool) -> None:
        """Look for all events that no process reports to the worker."""
        if self._orders.reason is None and self._controller.is_run_over(is_notified):
            self._orders.stop("the run that started it is over")
        self._obey_cancels()
        self._logins.obey(is_notified)
        if self._claims.take_unknown_due():
            self._requeue_unknown()
        self._controller.look()
        self._devices.release_leases()

    def _obey_cancels(self) -> None:
        running = {slot.claim.ticket.job: slot for slot in self._slots if slot.stop is None}
        cancelled = self._orders.cancelled([*running, *self._claims.held])
        for job in cancelled & running.keys():
            _log.info("cancelling job %d", job)
            running[job].end("cancel", self._settings.grace)
        self._claims.requeue_cancelled(cancelled)

    def _requeue_unknown(self) -> None:
        for queue in self._queues.queues:
            requeue = partial(self._claims.requeue_unknown, queue, self._slots.jobs)
            self._queues.tried(queue.name, requeue)

    def _advance(self) -> None:
        for slot in self._slots.advance():
            self._claims.job_ended(slot.seconds)
            self._walltime.job_ended()
            self._idle.begin()
            self._looks.reset()
            self._look_due = True
        self._keep_turns()
        self._obey_health()

    def _keep_turns(self) -> None:
        running = {slot.claim.nonce for slot in self._slots if not slot.is_over}
        held = self._claims.next_held
        self._turns.keep(running if held is None else {*running, held.nonce})

    def _obey_health(self) -> None:
        if self._health.is_in_doubt():
            self._pause_until = time.monotonic() + RETRY
        if self._health.cause is not None:
            self._orders.stop(f"set aside: {self._health.cause}")

    def _claim(self, is_poll: bool = False) -> None:
        """Claim the tickets that fit, and start them now or later; `is_poll`: see `Queue.claim`."""
        self._look_due = False
        self._looks.begin()
        if not self._search.begin(self._slots.resources):
            found = self._search.now(lambda: self._slots.resources, self._start_all, is_poll)
            self._looks.end(found, is_busy=bool(self._slots))

    def _take_found(self) -> None:
        """Hold what was claimed beside other work."""
        if (found := self._search.take()) is not None:
            self._looks.end(found, is_busy=bool(self._slots))
            if self._orders.is_stopping:
                self._claims.requeue_held()

    def _start_held(self) -> None:
        """Start the tickets claimed ahead, in order, as room permits."""
        self._awaits_runner = False
        claims: list[Claim] = []
        without_time: list[Claim] = []
        taken = self._slots.resources
        while not self._orders.is_stopping and (claim := self._claims.next_held) is not None:
            is_paused = time.monotonic() < self._pause_until
            if is_paused or not self._capacity.fits(claim.ticket.resources, taken):
                break
            if obstacle := self._claims.late_obstacle(claim):
                _log.info("job %d is requeued: %s", claim.ticket.job, obstacle)
                without_time.append(self._claims.take_next())
                continue
            if not self._may_begin(claim):
                self._await([claim])
                break
            taken.append(claim.ticket.resources)
            claims.append(self._claims.take_next())
        self._start_all(claims)
        self._claims.requeue(without_time)
        if self._claims.is_overdue:
            _log.info("jobs %s do not start soon and are requeued", self._claims.held)
            self._claims.requeue_held()

    def _await(self, claims: Sequence[Claim]) -> None:
        """Keep held claims that are about to begin.

        The first one waits for its runner, or for its turn on this computer. That takes time that
        it may lack then.
        """
        self._awaits_runner = True
        if self._runners.is_ready(claims[0].ticket):
            self._claims.keep()
        else:
            self._claims.await_runner(claims)

    def _may_begin(self, claim: Claim) -> bool:
        return self._runners.is_ready(claim.ticket) and self._turns.has(claim)

    def _start_all(self, claims: list[Claim]) -> None:
        if not claims or self._state.presumed_dead_by is not None:
            return  # if it was presumed dead, other workers decide about these claims
        ready = list(takewhile(self._may_begin, claims))
        if len(ready) < len(claims):
            self._claims.hold_first(claims[len(ready) :])
            self._await(claims[len(ready) :])
        failed: list[tuple[Claim, OSError | KochiError]] = []
        for claim, error in zip(ready, self._slots.start(ready), strict=True):
            if isinstance(error, AlreadyBegunError):
                _log.warning("%s", error)
            elif isinstance(error, AlreadyCancelledError):
                _log.info("%s", error)
                self._claims.requeue([claim])
            elif isinstance(error, (OSError, KochiError)):
                failed.append((claim, error))
            else:
                self._health.started()
                self._notices.over(_UNSTARTED)
        if failed:
            self._start_failed([claim for claim, _ in failed], failed[0][1])

    def _start_failed(self, claims: list[Claim], error: OSError | KochiError) -> None:
        """Handle a failed start of the first of the claims.

        No file or no process can be made for it here, but another worker may succeed.
        """
        self._notices.fault(_UNSTARTED, error)
        fault = self._health.start_failed(error, claims[0].ticket.directory)
        self._pause_until = time.monotonic() + RETRY
        if fault is not None:
            self._claims.requeue([claims.pop(0)], self._health.reason, fault)
        self._claims.requeue(claims)
        self._obey_health()

    def _may_leave(self) -> bool:
        """Whether a last look finds nothing for an idle worker.

        The worker publishes its state before the last look. A process that submits a ticket and
        then finds this worker "running" can rely on that look; a process that finds it "leaving"
        starts another worker.
        """
        stays = self._settings.stay
        if time.monotonic() < self._pause_until and not stays:
            return False
        if not self._state.update(state="leaving") and not stays:
            self._pause_until = time.monotonic() + RETRY
            self._state.touch(state="running")
            return False
        why = self._look_last()
        if why is None:
            self._state.update(state="running")
            return False
        self._state.touch(reason=why)
        return True

    def _look_last(self) -> str | None:
        """Why the worker may leave, for people.

        None if it found a job, or if it must leave only when its queues are empty and they may not
        be empty.
        """
        if self._settings.stay:
            self._idle.begin()
            self._claim()
            return None if self._slots or not self._claims.is_empty else self._idle.reason
        self._requeue_unknown()
        tried, queues = self._queues.tried, self._queues.queues
        is_sure = all(tried(queue.name, queue.recover) is not None for queue in queues)
        self._claim()
        if not is_sure or self._slots or not self._claims.is_empty:
            return None
        if not all(tried(queue.name, queue.is_empty) for queue in queues):
            return None
        # It may be a ticket that only this worker can run, and that another one has not read yet.
        own = self._state.state.worker
        held = (tried(queue.name, partial(queue.has_unbegun_claims, own)) for queue in queues)
        if any(each is not False for each in held):
            self._pause_until = time.monotonic() + RETRY
            return None
        left = self._claims.obstacles.describe()
        self._echo.pump(everything=True)
        self._echo.say(*left)
        return "nothing is left that it can run" if left else "nothing to do"

    def _leave(self) -> None:
        """End in all cases so that nothing of a job stays behind."""
        began = time.monotonic()
        if presumed_dead_by := self._state.presumed_dead_by:
            self._state.touch(reason=f"presumed dead by {presumed_dead_by}")
            give_up = self._claims.drop
            self._slots.kill_all()
        else:
            give_up = self._claims.requeue_held
            self._slots.requeue_all(0.0)
        give_up()

        def has_none() -> bool:
            if self._slots:
                self._advance()
            if self._search.take() is not None:
                give_up()
            return not self._slots and not self._claims.is_searching

        left = self._settings.leave_patience - (time.monotonic() - began)
        wait_until(has_none, max(0.0, left), 0.01)
        self._slots.kill_orphans()
        self._queues.leave()
        self._echo.pump(everything=True)
        reason = self._state.state.reason or self._orders.reason or "ended by an error"
        # If jobs may still run, the supervisor goes on to end them. The state must not be "left"
        # then: others would requeue their tickets at once.
        state = "draining" if self._slots or self._claims.is_searching else "left"
        self._state.update(state=state, reason=reason, ahead=self._claims.held)
