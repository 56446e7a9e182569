"""The running jobs of a worker, from their starts to the publication of their ends.

At the end of a job the worker publishes a result, or requeues the ticket.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from humanfriendly.text import pluralize

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import is_there
from snakemake_kochi.files.together import Background, Together, outcome_of
from snakemake_kochi.next.worker.walltime import Walltime
from snakemake_kochi.notices import Notices
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import ProcessIdentity, send_signal
from snakemake_kochi.queue.claiming import Claim
from snakemake_kochi.queue.entries import QueueRemovedError
from snakemake_kochi.queue.queue import Queue
from snakemake_kochi.queue.result import Result, UncountedReason
from snakemake_kochi.queue.ticket import Resources, Ticket, now
from snakemake_kochi.worker.logins import Logins
from snakemake_kochi.worker.node.devices import Devices
from snakemake_kochi.worker.node.health import Health
from snakemake_kochi.worker.output import Echo
from snakemake_kochi.worker.runners.interface import Runners
from snakemake_kochi.worker.settings import RETRY
from snakemake_kochi.worker.signals import reap_orphans
from snakemake_kochi.worker.slot import Slot
from snakemake_kochi.worker.starts import Starts
from snakemake_kochi.worker.state import StateFile

_log = logging.getLogger(__name__)


class Slots:
    """The running jobs of one worker; `state` and `echo` show them to others."""

    def __init__(
        self,
        machine: MachinePaths,
        environment: Mapping[str, str],
        grace: float,
        runners: Runners,
        devices: Devices,
        state: StateFile,
        ends: Ends,
        echo: Echo,
        logins: Logins,
        together: Together,
    ) -> None:
        self._starts = Starts(
            *(machine, environment, runners, devices, together),
            is_presumed_dead=lambda: state.presumed_dead_by is not None,
        )
        self._grace = grace
        self._runners = runners
        self._devices = devices
        self._state = state
        self._ends = ends
        self._echo = echo
        self._logins = logins
        self._slots: list[Slot] = []

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def jobs(self) -> list[int]:
        return [slot.claim.ticket.job for slot in self._slots]

    @property
    def resources(self) -> list[Resources]:
        """The resources of the jobs that run, which another job cannot have now."""
        return [slot.claim.ticket.resources for slot in self._slots if not slot.is_being_published]

    def prepare(self, held: Sequence[Claim]) -> None:
        """See `Logs.prepare`."""
        self._starts.logs.prepare(held)

    def start(self, claims: Sequence[Claim]) -> list[Exception | None]:
        """Start claimed tickets, beside each other; return for each why it did not start, or None.

        See `Starts`.
        """
        outcomes = self._starts.start(claims)
        for claim, slot in zip(claims, outcomes, strict=True):
            if isinstance(slot, Slot):
                self._slots.append(slot)
                ticket = claim.ticket
                _log.info(
                    "job %d (%s) started, attempt %d", ticket.job, ticket.name, ticket.attempt
                )
                self._echo.job_started(ticket.job, ticket.name, slot.log, slot.offset)
        if any(isinstance(outcome, Slot) for outcome in outcomes):
            self._note_running()
        return [None if isinstance(outcome, Slot) else outcome for outcome in outcomes]

    def _note_running(self) -> None:
        running = {slot.claim.ticket.job: slot.started for slot in self._slots}
        idle_since = None if running else self._state.state.idle_since or now()
        self._state.touch(running=running, idle_since=idle_since)

    def requeue_all(self, grace: float) -> None:
        """End all jobs within `grace` seconds, to requeue them; see `Slot.end`."""
        for slot in self._slots:
            slot.end("requeue", grace)

    def kill_all(self) -> None:
        for slot in self._slots:
            slot.kill()

    def advance(self) -> list[Slot]:
        """Continue to end jobs, publish the ends of the jobs that are over, and return these.

        A job whose end is published in the background is returned when that begins: there is room
        for another job.
        """
        for slot in self._slots:
            slot.poll()
            if slot.is_overdue:
                _log.info("job %d has reached its time limit", slot.claim.ticket.job)
                slot.end("timeout", self._grace)
        # List them after the polls: when the end of a process is visible, the processes that it
        # left behind are already children of the worker.
        orphans = self._reap_orphans()
        is_alone = sum(not slot.is_over for slot in self._slots) == 1
        over = [slot for slot in self._slots if slot.advance(orphans, is_alone)]
        for slot in over:
            self._release_devices(slot)
        published = self._ends.publish(over)
        for slot, ending in published:
            self._slots.remove(slot)
            slot.file.close()
            self._echo.job_ended(slot.claim.ticket.job, ending)
        if published:
            self._note_running()
        return [slot for slot in over if slot.is_being_published or slot not in self._slots]

    def _release_devices(self, slot: Slot) -> None:
        # Once: if its end could not be published, the job comes here again.
        if slot.allotment is not None:
            self._devices.release(slot.allotment)
            slot.allotment = None

    def _reap_orphans(self) -> list[ProcessIdentity]:
        helpers = self._runners.helpers | self._logins.helpers
        jobs = {slot.pid for slot in self._slots if not slot.is_over}
        return reap_orphans(jobs, helpers)

    def kill_orphans(self) -> None:
        """Kill leftover processes that could not be assigned to a job.

        They belong to jobs that ended while other jobs ran. Ends the runners and logins first.
        """
        self._runners.close()
        self._logins.close()
        send_signal(self._reap_orphans(), signal.SIGKILL)


class Ends:
    """Publishes the ends of one worker's jobs, counts them, and passes them to its `Health`.

    While the filesystem `is_slow`, results are published in the background.

    `is_at_time_limit`: the worker ends its jobs because its own time is over, and not because a
    person wants the node.
    """

    def __init__(
        self,
        state: StateFile,
        health: Health,
        walltime: Walltime,
        queue_of: Callable[[Ticket], Queue],
        is_slow: Callable[[], bool],
    ) -> None:
        self.is_at_time_limit = False
        self.background: Background[tuple[Slot, Result], bool] = Background()
        self._state = state
        self._health = health
        self._walltime = walltime
        self._queue_of = queue_of
        self._is_slow = is_slow
        self._began = time.monotonic()
        self._notices = Notices(_log)

    def publish(self, over: Iterable[Slot]) -> list[tuple[Slot, str]]:
        """Publish the results of jobs that are over, or requeue their tickets.

        Returns the jobs whose end is published, each with a text for people about how it ended
        (empty for a success). After a failure the caller passes the job again after RETRY seconds.
        """
        done: list[tuple[Slot, str]] = []
        finished: list[tuple[Slot, Result]] = []
        for slot in over:
            # Once it is known: a later test of the node may find no fault any more.
            slot.why_uncounted = slot.why_uncounted or self._why_uncounted(slot)
            if slot.why_uncounted is not None:
                done += self._requeue(slot, *slot.why_uncounted)
            else:
                finished.append((slot, slot.result(self._state.state.node.host)))
        for slot, result in finished:
            queue = self._queue_of(slot.claim.ticket)
            finish = partial(queue.finish, slot.claim, result, slot.file)
            if self._is_slow():
                slot.is_being_published = True
                self.background.begin((slot, result), finish)
            else:
                done += self._finished(slot, result, outcome_of(finish))
        for (slot, result), outcome in self.background.take():
            slot.is_being_published = False
            done += self._finished(slot, result, outcome)
        return done

    def _why_uncounted(self, slot: Slot) -> tuple[UncountedReason, str] | None:
        """The reason, and a detail, why the ticket is to be requeued; None if there is a result."""
        had_its_time = slot.stop == "requeue" and self._had_its_time(slot)
        if had_its_time and self._had_longest_allocation(slot):
            limit = pluralize(slot.limit or 0, "second")
            slot.time_out(f"its worker had less time than the job's limit of {limit}")
        if slot.stop == "requeue":
            return "out of time" if had_its_time else "drained", self._state.state.reason
        result = slot.result(self._state.state.node.host)
        fault = self._health.fault_behind(result, slot.claim.ticket.directory)
        return None if fault is None else (self._health.reason, fault)

    def _had_its_time(self, slot: Slot) -> bool:
        return self._walltime.was_used_by(slot.seconds, time.monotonic() - self._began)

    def _had_longest_allocation(self, slot: Slot) -> bool:
        """Whether the job already had the longest allocation that it can get.

        If a longer allocation were possible, the job would have got one that is longer than its
        limit. Another attempt would not get further.
        """
        if not self.is_at_time_limit or slot.limit is None:
            return False
        return self._walltime.is_shorter_than_allocation_for(slot.limit)

    def _requeue(self, slot: Slot, reason: UncountedReason, detail: str) -> list[tuple[Slot, str]]:
        if slot.is_held_up:
            # If the worker leaves before, who recovers the ticket waits for its processes, too.
            slot.publish_again_in(RETRY)
            return []
        queue = self._queue_of(slot.claim.ticket)
        slot.file.close()  # it goes, and NFS would keep an open file under another name
        try:
            if self._state.presumed_dead_by is None:  # else others decide about it
                queue.requeue(slot.claim, reason, detail)
        except (OSError, KochiError) as error:
            return self._later(slot, error)
        self._notices.over(_about(slot))
        return [(slot, "requeued")]

    def _finished(
        self, slot: Slot, result: Result, outcome: bool | Exception
    ) -> list[tuple[Slot, str]]:
        """Note a published result; `outcome` is what `Queue.finish` returned or raised."""
        if isinstance(outcome, (OSError, KochiError)):
            return self._later(slot, outcome)
        if isinstance(outcome, Exception):
            raise outcome
        self._notices.over(_about(slot))
        ticket = slot.claim.ticket
        self._count(ticket.queue, result)
        self._health.note(result, ticket.queue)
        late = "" if outcome else " (too late: the worker had been presumed dead)"
        _log.info("job %d (%s) %s%s", ticket.job, ticket.name, result.describe(), late)
        return [(slot, "" if result.ok else result.describe())]

    def _later(self, slot: Slot, error: OSError | KochiError) -> list[tuple[Slot, str]]:
        if isinstance(error, QueueRemovedError) and self._machine_is_there(slot):
            job = slot.claim.ticket.job
            _log.warning("the end of job %d cannot be written: %s", job, error.message)
            return [(slot, "its queue was removed")]
        # On a full disk, for example. The worker keeps the result, which may be that of a long run.
        self._notices.fault(_about(slot), error)
        slot.publish_again_in(RETRY)
        return []

    def _machine_is_there(self, slot: Slot) -> bool:
        # If the machine's directory is missing, its filesystem is not mounted, and the queue may
        # come back with it.
        with contextlib.suppress(OSError):
            return is_there(self._queue_of(slot.claim.ticket).machine.queues)
        return False

    def _count(self, queue: str, result: Result) -> None:
        if result.reason == "cancelled":
            return  # a cancelled job says nothing about the node
        state = self._state.state
        succeeded, failed = state.by_queue.get(queue, (0, 0))
        counts = (succeeded + 1, failed) if result.ok else (succeeded, failed + 1)
        self._state.touch(
            succeeded=state.succeeded + result.ok,
            failed=state.failed + (not result.ok),
            by_queue={**state.by_queue, queue: counts},
        )


def _about(slot: Slot) -> str:
    return f"the end of job {slot.claim.ticket.job} cannot be written yet"
