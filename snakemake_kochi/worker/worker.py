"""The worker's loop: one thread, woken by its wake-up FIFO, its children, signals and timers."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import signal
import time
from functools import partial

from snakemake_kochi.errors import KochiError
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.capacity import format_duration
from snakemake_kochi.queue.postponed import Complaints
from snakemake_kochi.queue.processes import ProcessIdentity, send_signal
from snakemake_kochi.queue.queue import Claim
from snakemake_kochi.queue.ticket import Resources, now
from snakemake_kochi.queue.wakeup import SILENT_WAIT, WakeUp
from snakemake_kochi.queue.workers import WorkerState
from snakemake_kochi.worker.ahead import Ahead
from snakemake_kochi.worker.claiming import Claimer
from snakemake_kochi.worker.controller_watch import ControllerWatch
from snakemake_kochi.worker.echo import Echo
from snakemake_kochi.worker.ends import Ends
from snakemake_kochi.worker.launch import AlreadyBegunError, Launcher
from snakemake_kochi.worker.looks import Looks
from snakemake_kochi.worker.node.devices import Devices
from snakemake_kochi.worker.node.health import Health
from snakemake_kochi.worker.orders import Orders
from snakemake_kochi.worker.passed import Passed
from snakemake_kochi.worker.returns import Returns
from snakemake_kochi.worker.runners.choice import Runners
from snakemake_kochi.worker.served import Served
from snakemake_kochi.worker.settings import Surroundings, WorkerSettings
from snakemake_kochi.worker.signals import Signals, Wake, open_process, reap_orphans
from snakemake_kochi.worker.slot import Slot
from snakemake_kochi.worker.state import StateFile
from snakemake_kochi.worker.troubles import RETRY, Troubles
from snakemake_kochi.worker.unknown import UnknownClaims
from snakemake_kochi.worker.walltime import END_SIGNAL

_log = logging.getLogger(__name__)

_LEAVE_PATIENCE = 15.0  # seconds
_TIME_IS_OVER = "its walltime is over"
_RELEASED = "released by kochi release"
_UNSTARTED = "a job cannot be started here now"


class Worker:
    """Claims tickets of its queues and runs them beside each other as they fit.

    It must be the only thread of its process, and the parent of no other children.
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
        wake: Wake,
    ) -> None:
        self._machine = machine
        self._number = state.worker
        self._state = StateFile(machine, state)
        self._settings = settings
        self._surroundings = surroundings
        self._wake = wake
        self._devices = devices
        self._launcher = Launcher(machine, surroundings.environment, runners, devices)
        self._runners = runners
        self._echo = echo
        self._capacity = state.capacity
        self._slots: list[Slot] = []
        self._stops = 0
        self._is_finishing = False
        self._passed = Passed()
        self._reason_to_stop: str | None = None
        self._health = Health(machine, state.worker, surroundings.environment)
        self._troubles = Troubles()
        self._served = Served(machine, self._state, self._troubles)
        self._ends = Ends(self._state, self._health, self._served.queue_of)
        self._returns = Returns(self._served.queue_of)
        self._unknown = UnknownClaims(machine, state.worker)
        self._pause_until = 0.0
        self._ahead = Ahead(state.capacity.cores)
        self._controller_watch = ControllerWatch(machine, state)
        self._claimer = Claimer(
            *(state.worker, state.capacity, surroundings.walltime, self._passed, self._ahead),
            first=settings.first,
        )
        self._looks = Looks(settings.idle_wait)
        self._look_due = True
        self._orders = Orders(machine, state)
        self._complaints = Complaints()
        self._parent_end: int | None = None  # a descriptor that tells of it
        self._idle_end = math.inf  # in monotonic seconds, when it is time to leave without a job
        self._begin_to_idle()

    def run(self) -> int:
        """Work until there is nothing left to do or it is told to stop; return the exit status."""
        with contextlib.ExitStack() as stack:
            signals = stack.enter_context(Signals(self._wake))
            wakeup = WakeUp(self._machine.worker(self._number).wakeup)
            stack.callback(wakeup.close)
            if wakeup.is_silent:
                self._looks = Looks(min(SILENT_WAIT, self._settings.idle_wait))
            parent = self._surroundings.parent
            self._parent_end = None if parent is None else open_process(parent.pid)
            if self._parent_end is not None:
                stack.callback(os.close, self._parent_end)
            poll = select.poll()
            for source in (signals, wakeup, self._parent_end, *self._runners.watched):
                if source is not None:
                    poll.register(source, select.POLLIN)
            stack.enter_context(self._state.signs_of_life())
            stack.callback(self._leave)
            self._served.read()
            while self._turn(poll, signals, wakeup):
                pass
        self._controller_watch.cancel_waiting(self._settings.cancel_waiting)
        return 1 if self._health.cause or self._state.lost_to else 0

    def _turn(self, poll: select.poll, signals: Signals, wakeup: WakeUp) -> bool:
        """One wake-up; returns whether there will be another."""
        for descriptor, _ in poll.poll(self._time_out() * 1000):
            if descriptor == self._parent_end:
                # Readable for good: the loop would not sleep any more, for as long as the end of a
                # job cannot be written, say.
                poll.unregister(descriptor)
        signals.drain()
        for watched in self._runners.watched:
            watched.attend()
        # The first thing: others may have been given its tickets while it, or its node, slept.
        if self._state.lost_to is not None:
            return False
        is_retrial = self._troubles.take_due()
        if is_notified := wakeup.drain():
            self._looks.reset()
        if is_notified or is_retrial:
            self._served.read()
        is_told = is_notified or self._looks.is_due
        self._look_due |= is_told or is_retrial
        if is_told:
            self._heed_release()
        self._heed_stops(signals)
        self._returns.retry()
        if is_told:
            self._look_for_controller()
            self._look_for_cancels()
            if self._unknown.is_time():
                self._return_unknown()
            self._controller_watch.look()
            self._devices.release_leases()
            self._looks.put_off()
        self._advance()
        self._start_ahead()
        may_claim = self._ahead.first is None and time.monotonic() >= self._pause_until
        if self._look_due and may_claim and not self._is_stopping:
            self._claim()
        self._echo.pump()
        if self._state.state.fresh and not self._surroundings.walltime.is_fresh:
            self._state.touch(fresh=False)
        self._state.write_when_due()
        if self._slots or self._ahead.first is not None:
            return True
        if self._is_stopping:
            return False
        if self._settings.stay:
            return not self._is_time_to_leave or not self._may_leave_waiting()
        return not self._may_leave()

    def _time_out(self) -> float:
        """Seconds until something is due without anybody waking us."""
        moment = time.monotonic()
        deadlines = [due for slot in self._slots if (due := slot.next_due) is not None]
        deadlines += [self._state.deadline, self._ahead.deadline, self._returns.deadline]
        deadlines += [self._troubles.deadline, self._echo.deadline]
        watch = self._controller_watch
        is_idle = not self._slots and self._ahead.first is None
        # Only where it would be heeded: once past, it would keep the loop from sleeping.
        if is_idle and self._settings.stay and not watch.is_dead and not watch.is_in_doubt:
            deadlines.append(self._idle_end)
        if not self._stops:
            is_free = self._look_due and self._ahead.first is None and not self._is_stopping
            deadlines.append(self._pause_until if is_free else self._looks.deadline)
            if (left := self._surroundings.walltime.seconds_left()) is not None:
                deadlines.append(moment + left)
        return max(0.0, min(deadlines) - moment)

    def _heed_stops(self, signals: Signals) -> None:
        """The first request gives the jobs their grace and requeues them, a second none."""
        parent = self._surroundings.parent
        if parent is not None and not parent.is_alive():
            self._reason_to_stop = f"process {parent.pid}, which started this worker, is gone"
        elif self._surroundings.walltime.is_over:
            self._reason_to_stop = self._reason_to_stop or _TIME_IS_OVER
        stops = signals.stops + (self._reason_to_stop is not None)
        if stops == self._stops:
            return
        if self._stops == 0:
            tickets = [slot.claim.ticket for slot in self._slots]
            names = ", ".join(f"{ticket.job} ({ticket.name})" for ticket in tickets)
            why = self._reason_to_stop or f"told to by {signals.first_stop}"
            self._ends.is_at_time_limit = (
                why == _TIME_IS_OVER
                if self._reason_to_stop
                else signals.first_stop == END_SIGNAL.name
            )
            _log.info("stopping (%s); jobs requeued: %s", why, names or "none")
            self._state.update(state="draining", reason=why)
            self._requeue_ahead()
        self._stops = stops
        for slot in self._slots:
            slot.end("requeue", self._settings.grace if stops == 1 else 0.0)

    def _heed_release(self) -> None:
        """A person wants the node back: at once, or when the jobs have ended."""
        how = self._orders.release()
        if how == "now":
            self._reason_to_stop = self._reason_to_stop or f"{_RELEASED}, at once"
        elif how == "finish" and not self._is_stopping:
            names = ", ".join(str(slot.claim.ticket.job) for slot in self._slots)
            _log.info("%s; jobs that it still finishes: %s", _RELEASED, names or "none")
            self._is_finishing = True
            self._state.update(state="finishing", reason=_RELEASED)
            self._requeue_ahead()

    def _look_for_controller(self) -> None:
        if self._reason_to_stop is None and self._orders.is_run_over():
            self._reason_to_stop = "the run that started it is over"

    def _look_for_cancels(self) -> None:
        running = [slot.claim.ticket.job for slot in self._slots if slot.stop is None]
        cancelled = self._orders.cancelled([*running, *self._ahead.jobs])
        for slot in self._slots:
            job = slot.claim.ticket.job
            if slot.stop is None and job in cancelled:
                _log.info("cancelling job %d", job)
                slot.end("cancel", self._settings.grace)
        for claim in self._ahead.take_cancelled(cancelled):
            self._returns.requeue(claim)

    def _return_unknown(self) -> None:
        running = (slot.claim.ticket.job for slot in self._slots)
        known = {*running, *self._ahead.jobs, *self._returns.jobs}
        for queue in self._served.queues:
            found = self._troubles.tried(queue.name, partial(self._unknown.find, queue, known))
            for claim in found or ():
                self._returns.requeue(claim)

    def _advance(self) -> None:
        for slot in self._slots:
            slot.poll()
            if slot.is_overdue:
                _log.info("job %d has had its run time", slot.claim.ticket.job)
                slot.end("timeout", self._settings.grace)
        # After the polls: what a process leaves behind is ours by the time its end can be seen.
        orphans = self._reap_orphans()
        is_alone = len(self._slots) == 1
        over = [slot for slot in self._slots if slot.advance(orphans, is_alone)]
        for slot, ending in self._ends.publish(over):
            self._close(slot, ending)
        self._heed_health()

    def _reap_orphans(self) -> list[ProcessIdentity]:
        return reap_orphans({slot.pid for slot in self._slots}, self._runners.helpers)

    def _close(self, slot: Slot, ending: str) -> None:
        job = slot.claim.ticket.job
        self._slots.remove(slot)
        self._launcher.ended(slot)
        self._ahead.job_ended(job)
        self._surroundings.walltime.job_ended()
        self._begin_to_idle()
        self._echo.job_ended(job, ending)
        self._look_due = True
        self._note_running()

    def _resources(self) -> list[Resources]:
        return [slot.claim.ticket.resources for slot in self._slots]

    def _note_running(self) -> None:
        running = {slot.claim.ticket.job: slot.started for slot in self._slots}
        idle_since = None if running else self._state.state.idle_since or now()
        self._state.touch(running=running, ahead=self._ahead.jobs, idle_since=idle_since)

    @property
    def _is_stopping(self) -> bool:
        return self._stops > 0 or self._reason_to_stop is not None or self._is_finishing

    def _heed_health(self) -> None:
        if self._health.is_in_doubt():
            self._pause_until = time.monotonic() + RETRY
        if self._health.cause is not None:
            self._reason_to_stop = self._reason_to_stop or f"set aside: {self._health.cause}"

    def _claim(self) -> None:
        """Take what fits, from the queues in their order, and start it."""
        self._look_due = False
        self._looks.begin()
        found = False
        for queue in self._served.queues:
            running = self._resources()
            if self._capacity.is_full(running):
                break
            if self._troubles.is_pausing(queue.name):
                continue
            claim = partial(self._claimer.claim_from, queue, running)
            if (claims := self._troubles.tried(queue.name, claim)) is None:
                continue
            found |= bool(claims.at_once)
            self._ahead.hold(claims.later)
            self._start_all(claims.at_once)
            # The next queue's small tickets would keep the room from ever becoming free.
            if claims.is_full or self._ahead.first is not None:
                break
        self._looks.end(found or bool(self._slots))

    def _start_ahead(self) -> None:
        """Start what was claimed ahead, in order, as there is room for it."""
        while not self._is_stopping and (claim := self._ahead.first) is not None:
            is_paused = time.monotonic() < self._pause_until
            if is_paused or not self._capacity.fits(claim.ticket.resources, self._resources()):
                break
            if self._orders.cancelled([claim.ticket.job]):
                self._returns.requeue(self._ahead.take_first())
                continue
            if not self._runners.is_ready(claim.ticket):
                self._ahead.keep()
                break
            self._start_all([self._ahead.take_first()])
        if self._ahead.is_overdue:
            _log.info("jobs %s do not start soon and are requeued", self._ahead.jobs)
            self._requeue_ahead()

    def _requeue_ahead(self) -> None:
        for claim in self._ahead.take_all():
            self._returns.requeue(claim)
        self._note_running()

    def _start_all(self, claims: list[Claim]) -> None:
        for position, claim in enumerate(claims):
            ticket = claim.ticket
            if self._state.lost_to is not None:
                return  # the claims are not its own any more
            if not self._runners.is_ready(ticket):
                self._ahead.hold_first(claims[position:])
                return
            try:
                slot = self._launcher.start(claim)
            except AlreadyBegunError as error:
                _log.warning("%s", error)
                continue
            except (OSError, KochiError) as error:
                self._start_failed(claims[position:], error)
                return
            self._health.started()
            self._complaints.over(_UNSTARTED)
            self._slots.append(slot)
            self._ahead.job_began(ticket.job)
            _log.info("job %d (%s) started, attempt %d", ticket.job, ticket.name, ticket.attempt)
            self._echo.job_started(ticket.job, ticket.name, slot.log, slot.offset)
            self._note_running()

    def _start_failed(self, claims: list[Claim], error: OSError | KochiError) -> None:
        """No file or no process can be made for the first of the claims: another may do better."""
        ticket = claims[0].ticket
        self._complaints.about(_UNSTARTED, error)
        fault = self._health.start_failed(error, ticket.directory)
        self._pause_until = time.monotonic() + RETRY
        for unused in claims:
            if unused is claims[0] and fault is not None:
                self._returns.requeue(unused, self._health.reason, fault)
            else:
                self._returns.requeue(unused)
        self._heed_health()

    def _begin_to_idle(self) -> None:
        self._free_since = time.monotonic()
        if self._settings.idle_timeout is not None:
            self._idle_end = time.monotonic() + self._settings.idle_timeout

    @property
    def _is_time_to_leave(self) -> bool:
        """Whether there is nothing to wait for. In doubt it waits for certainty: the allocations
        that wait are of no use when the controller is dead."""
        watch = self._controller_watch
        if watch.is_dead:
            return not self._served.is_in_trouble()
        return time.monotonic() >= self._idle_end and not watch.is_in_doubt

    def _may_leave_waiting(self) -> bool:
        """Whether there is nothing for it, after it has waited for long; see `_may_leave`."""
        self._begin_to_idle()  # if not
        self._state.update(state="leaving")
        self._claim()
        if self._slots or self._ahead.first is not None or self._returns.jobs:
            self._state.update(state="running")
            return False
        why = f"it had no job for {format_duration(self._settings.idle_timeout or 0.0)}"
        if self._controller_watch.is_dead:
            why = "the run that started it was killed, and it has no job"
        self._state.touch(reason=why)
        return True

    def _may_leave(self) -> bool:
        """Whether the queues are empty for good.

        The state is published before the last look: who hands over a ticket and then finds this
        worker "running" can rely on that look; who finds it "leaving" starts another.
        """
        if time.monotonic() < self._pause_until or self._served.is_in_trouble():
            return False
        # Between a build and its runs, say, the queue is empty for a moment.
        waits_until = self._free_since + self._settings.between_jobs
        if time.monotonic() < waits_until and self._served.are_used():
            return False
        if not self._state.update(state="leaving"):
            self._pause_until = time.monotonic() + RETRY
            self._state.touch(state="running")
            return False
        self._return_unknown()
        tried, queues = self._troubles.tried, self._served.queues
        is_sure = all(tried(queue.name, queue.recover) is not None for queue in queues)
        self._claim()
        is_free = not self._slots and self._ahead.first is None and not self._returns.jobs
        if is_sure and is_free and all(tried(queue.name, queue.is_empty) for queue in queues):
            left = []
            with contextlib.suppress(OSError):
                left = self._passed.describe(self._machine)
            self._echo.pump(everything=True)
            self._echo.say(*left)
            self._state.touch(reason="nothing is left that it can run" if left else "nothing to do")
            return True
        self._state.update(state="running")
        return False

    def _leave(self) -> None:
        """The end, good or bad: nothing of a job stays behind."""
        deadline = time.monotonic() + _LEAVE_PATIENCE
        if lost_to := self._state.lost_to:
            self._reason_to_stop = f"presumed dead by {lost_to}"
            self._state.touch(reason=self._reason_to_stop)
            self._ahead.take_all()
            self._returns.drop()
        else:
            self._requeue_ahead()
        for slot in self._slots:
            if lost_to is None:
                slot.end("requeue", 0.0)
            else:
                slot.kill()
        while self._slots and time.monotonic() < deadline:
            self._advance()
            time.sleep(0.01)
        # Of jobs that ended while others ran, and that nothing told whose they were.
        self._runners.close()
        send_signal(self._reap_orphans(), signal.SIGKILL)
        self._served.leave()
        self._echo.pump(everything=True)
        reason = self._state.state.reason or self._reason_to_stop or "ended by an error"
        # Where jobs may be running still, and the supervisor goes on to end them, "left" would have
        # others give their tickets away at once.
        self._state.update(state="draining" if self._slots else "left", reason=reason)
