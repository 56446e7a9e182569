"""The worker's loop: one thread, woken by its bell, its children, signals and timers."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import select
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass

from snakemake_kochi.errors import KochiError
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.bell import Bell
from snakemake_kochi.queue.processes import ProcessIdentity, child_pids, send_signal
from snakemake_kochi.queue.queue import Answer, Claim, Queue
from snakemake_kochi.queue.ticket import Resources, Ticket
from snakemake_kochi.queue.workers import WorkerState, read_queues, subscribe, unsubscribe
from snakemake_kochi.worker.echo import Echo
from snakemake_kochi.worker.launch import AlreadyBegunError, Launcher
from snakemake_kochi.worker.runners import Runner
from snakemake_kochi.worker.signals import Signals, open_process
from snakemake_kochi.worker.slot import Slot
from snakemake_kochi.worker.state import StateFile

_log = logging.getLogger(__name__)

_ECHO_INTERVAL = 0.1  # seconds between two looks into a growing log
_RETRY = 1.0  # seconds until a result that could not be written is tried again
_MOST_FAILED_STARTS = 3
_LEAVE_PATIENCE = 15.0  # seconds


@dataclass(frozen=True)
class WorkerSettings:
    """How a worker behaves.

    `environment`: what its jobs start from; `idle_wait`: seconds after which an idle worker looks
    by itself, for what happened on other nodes; `grace`: seconds between SIGTERM and SIGKILL for a
    job that is to end.
    """

    environment: Mapping[str, str]
    stay: bool = False
    parent: ProcessIdentity | None = None
    idle_wait: float = 2.0
    grace: float = 5.0


class Worker:
    """Claims tickets of its queues and runs them beside each other as they fit.

    It must be the only thread of its process, and the parent of no other children.
    """

    def __init__(
        self,
        machine: MachinePaths,
        state: WorkerState,
        settings: WorkerSettings,
        runner: Runner,
        echo: Echo,
    ) -> None:
        self._machine = machine
        self._number = state.worker
        self._state = StateFile(machine, state)
        self._settings = settings
        self._launcher = Launcher(machine, settings.environment, runner)
        self._echo = echo
        self._capacity = state.capacity
        self._queues: dict[str, Queue] = {}
        self._slots: list[Slot] = []
        self._stops = 0
        self._reason_to_stop: str | None = None
        self._failed_starts = 0
        self._look_due = True
        self._next_look = 0.0

    def run(self) -> int:
        """Work until there is nothing left to do or it is told to stop; return the exit status."""
        with contextlib.ExitStack() as stack:
            signals = stack.enter_context(Signals())
            bell = Bell(self._machine.worker(self._number).bell)
            stack.callback(bell.close)
            parent = self._settings.parent
            descriptor = None if parent is None else open_process(parent.pid)
            if descriptor is not None:
                stack.callback(os.close, descriptor)
            poll = select.poll()
            for source in (signals, bell, descriptor):
                if source is not None:
                    poll.register(source, select.POLLIN)
            stack.callback(self._leave)
            self._serve()
            while self._turn(poll, signals, bell):
                pass
        return 1 if self._failed_starts >= _MOST_FAILED_STARTS else 0

    def _turn(self, poll: select.poll, signals: Signals, bell: Bell) -> bool:
        """One wake-up; returns whether there will be another."""
        poll.poll(self._time_out() * 1000)
        signals.drain()
        if bell.drain():
            self._serve()
            self._look_due = True
        if time.monotonic() >= self._next_look:
            self._look_due = True
        self._heed_stops(signals)
        if self._look_due:
            self._look_for_cancels()
        self._advance()
        if self._look_due and not self._stops:
            self._claim()
        self._echo.pump()
        self._state.write_when_due()
        if self._slots:
            return True
        if self._stops or self._reason_to_stop is not None:
            return False
        return self._settings.stay or not self._may_leave()

    def _time_out(self) -> float:
        """Seconds until something is due without anybody waking us."""
        moment = time.monotonic()
        deadlines = [slot.deadline for slot in self._slots if slot.deadline is not None]
        deadlines.append(self._state.deadline)
        if not self._stops:
            deadlines.append(moment if self._look_due else self._next_look)
        if self._echo.is_following:
            deadlines.append(moment + _ECHO_INTERVAL)
        return max(0.0, min(deadlines) - moment)

    def _serve(self) -> None:
        """Read which queues to serve; who started the worker may change that."""
        try:
            names = read_queues(self._machine, self._number)
            controller = self._state.state.controller
            wanted = {
                name: self._queues.get(name) or Queue(self._machine, name, controller)
                for name in names
            }
        except (KochiError, FileNotFoundError) as error:
            _log.warning("the queues to serve stay as they are: %s", error)
            return
        if list(wanted) == list(self._queues):
            return
        for queue in wanted.values():
            subscribe(self._machine, self._number, queue.paths)
        for name in set(self._queues) - set(wanted):
            unsubscribe(self._queues[name].paths, self._number)
        self._queues = wanted
        self._state.update(queues=tuple(wanted))

    def _heed_stops(self, signals: Signals) -> None:
        """The first request gives the jobs their grace and puts them back, a second none."""
        parent = self._settings.parent
        if parent is not None and not parent.is_alive():
            self._reason_to_stop = f"process {parent.pid}, which started this worker, is gone"
        stops = signals.stops + (self._reason_to_stop is not None)
        if stops == self._stops:
            return
        if self._stops == 0:
            tickets = [slot.claim.ticket for slot in self._slots]
            names = ", ".join(f"{ticket.job} ({ticket.name})" for ticket in tickets)
            why = self._reason_to_stop or "told to"
            _log.info("stopping (%s); jobs put back: %s", why, names or "none")
            self._state.update(state="draining")
        self._stops = stops
        for slot in self._slots:
            slot.end("put back", self._settings.grace if stops == 1 else 0.0)

    def _look_for_cancels(self) -> None:
        for slot in self._slots:
            job = slot.claim.ticket.job
            if slot.stop is None and self._machine.job(job).cancel.exists():
                _log.info("cancelling job %d", job)
                slot.end("cancel", self._settings.grace)

    def _advance(self) -> None:
        for slot in self._slots:
            slot.poll()
        # After the polls: what a process leaves behind is ours by the time its end can be seen.
        orphans = self._reap_orphans()
        is_alone = len(self._slots) == 1
        for slot in list(self._slots):
            if slot.advance(orphans, is_alone):
                self._close(slot)

    def _reap_orphans(self) -> list[ProcessIdentity]:
        """The living children that are no job's main process."""
        living = []
        for pid in set(child_pids()) - {slot.pid for slot in self._slots}:
            with contextlib.suppress(ChildProcessError):
                if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG) is None:
                    living.append(ProcessIdentity.of(pid))
        return [process for process in living if process is not None]

    def _close(self, slot: Slot) -> None:
        """Publish the result of a job that is over, or put its ticket back."""
        ticket = slot.claim.ticket
        queue = self._queue_of(ticket)
        try:
            if slot.stop == "put back":
                queue.put_back(slot.claim)
                ending = "put back"
            else:
                result = slot.result(self._state.state.node.host)
                counts = queue.finish(slot.claim, result)
                ending = "" if result.ok else result.describe()
                late = "" if counts else " (too late: it had been taken for lost)"
                _log.info("job %d (%s) %s%s", ticket.job, ticket.name, result.describe(), late)
        except OSError as error:
            # A full disk. The result is not given up: it may be that of a long run.
            _log.warning("the end of job %d cannot be written yet: %s", ticket.job, error)
            slot.deadline = time.monotonic() + _RETRY
            return
        self._slots.remove(slot)
        self._echo.job_ended(ticket.job, ending)
        self._look_due = True
        self._note_running()

    def _queue_of(self, ticket: Ticket) -> Queue:
        # It need not be among those served by now.
        return self._queues.get(ticket.queue) or Queue(self._machine, ticket.queue)

    def _note_running(self) -> None:
        running = {slot.claim.ticket.job: slot.started for slot in self._slots}
        self._state.touch(running=running)

    def _claim(self) -> None:
        """Take what fits, from the queues in their order, and start it."""
        self._look_due = False
        # Jittered: workers on many nodes must not come for the lock at the same moment.
        self._next_look = time.monotonic() + random.uniform(0.5, 1.0) * self._settings.idle_wait
        for queue in self._queues.values():
            taken = [slot.claim.ticket.resources for slot in self._slots]
            if self._capacity.is_full(taken):
                return
            claims, refused = self._claim_from(queue, taken)
            self._start_all(queue, claims)
            if refused:
                # The next queue's small tickets would keep the room from ever becoming free.
                return

    def _claim_from(self, queue: Queue, taken: list[Resources]) -> tuple[list[Claim], bool]:
        """What was claimed, and whether the next ticket did not fit."""
        refused = False

        def accept(ticket: Ticket) -> Answer:
            nonlocal refused
            if self._capacity.obstacle(ticket.resources) is not None:
                return "pass"
            refused = not self._capacity.fits(ticket.resources, taken)
            if refused:
                return "stop"
            taken.append(ticket.resources)
            return "take"

        claims = queue.claim(self._number, accept, limit=self._capacity.cores)
        return claims, refused

    def _start_all(self, queue: Queue, claims: list[Claim]) -> None:
        for position, claim in enumerate(claims):
            ticket = claim.ticket
            try:
                slot = self._launcher.start(claim)
            except AlreadyBegunError as error:
                _log.warning("%s was begun by another worker", error)
                continue
            except OSError as error:
                # No file or no process can be made: this node's trouble, another may do better.
                _log.warning("job %d cannot be started here: %s", ticket.job, error)
                for unused in claims[position:]:
                    queue.put_back(unused)
                self._failed_starts += 1
                if self._failed_starts >= _MOST_FAILED_STARTS:
                    self._reason_to_stop = f"{self._failed_starts} starts failed in a row"
                return
            self._failed_starts = 0
            self._slots.append(slot)
            _log.info("job %d (%s) started, attempt %d", ticket.job, ticket.name, ticket.attempt)
            self._echo.job_started(ticket.job, ticket.name, slot.log, slot.offset)
            self._note_running()

    def _may_leave(self) -> bool:
        """Whether the queues are empty for good.

        The state is published before the last look: who hands over a ticket and then finds this
        worker "running" can rely on that look; who finds it "leaving" starts another.
        """
        self._state.update(state="leaving")
        for queue in self._queues.values():
            queue.recover()
        self._claim()
        if not self._slots and all(queue.is_empty() for queue in self._queues.values()):
            return True
        self._state.update(state="running")
        return False

    def _leave(self) -> None:
        """The end, good or bad: nothing of a job stays behind."""
        deadline = time.monotonic() + _LEAVE_PATIENCE
        for slot in self._slots:
            slot.end("put back", 0.0)
        while self._slots and time.monotonic() < deadline:
            self._advance()
            time.sleep(0.01)
        # Of jobs that ended while others ran, and that nothing told whose they were.
        send_signal(self._reap_orphans(), signal.SIGKILL)
        for queue in self._queues.values():
            unsubscribe(queue.paths, self._number)
        self._echo.pump()
        self._state.update(state="left")
