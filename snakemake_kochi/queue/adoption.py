"""The orphans of a directory: what killed controllers left, for the next controller to adopt.

A job is recognised by the identity of its ticket, not by its number, because each controller counts
its jobs from the start. A job without an identity is never adopted.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import is_same_directory, is_there, list_names
from snakemake_kochi.paths import ControllerPaths, MachinePaths
from snakemake_kochi.queue.cancelling import cancel_all
from snakemake_kochi.queue.controllers import (
    ControllerState,
    adopt,
    forget_controller,
    list_controllers,
    queues_of,
)
from snakemake_kochi.queue.deliveries import jobs_read
from snakemake_kochi.queue.entries import find_entry, queue_names
from snakemake_kochi.queue.jobs import JobView, jobs_of
from snakemake_kochi.queue.recovery import recover
from snakemake_kochi.queue.result import Result, has_result, read_result
from snakemake_kochi.queue.ticket import Ticket, read_ticket
from snakemake_kochi.queue.workers import read_worker

_log = logging.getLogger(__name__)

_NOBODY: Mapping[str, float] = {}


@dataclass(frozen=True)
class Running:
    """A job that a dead controller submitted and that still runs."""

    ticket: Ticket


@dataclass(frozen=True)
class Ended:
    """A job that succeeded and whose outputs have not changed since."""

    ticket: Ticket
    result: Result


class Orphans:
    """The orphans of one directory.

    One thread uses an object. Only `has_ended` and `queues_of_ending` may be called by another
    thread meanwhile.

    The order of calls is: `find`; `Inbox.adopt` for each of `controllers`; `withdraw`; for each job
    of the run `take` and, if that returns None, `in_the_way` before the job is submitted; at the
    end `forget`.
    """

    def __init__(
        self,
        machine: MachinePaths,
        directory: str,
        controllers: Sequence[str],
        live: Sequence[JobView] = (),
        queues: Collection[str] | None = None,
    ) -> None:
        self.controllers = tuple(controllers)
        self._machine = machine
        self._directory = directory
        self._queues = queues
        self._live = {view.job: view.ticket for view in live if view.ticket is not None}
        self._waiting = {view.job for view in live if view.state == "waiting"}
        self._cancelling = {view.job for view in live if view.cancelling}
        self._workers = {view.job: view.worker for view in live if view.worker is not None}
        self._taken: set[int] = set()
        self._withdrawn: set[int] = set()
        self._ending: set[int] = set()
        self._writers: dict[str, set[int]] = defaultdict(set)
        for job, ticket in self._live.items():
            for output in ticket.outputs:
                self._writers[output].add(job)

    @classmethod
    def find(
        cls,
        machine: MachinePaths,
        directory: str,
        adopter: str,
        dead: Mapping[str, float] = _NOBODY,
    ) -> Orphans:
        """Find the orphans of a directory, which is written as in tickets.

        `adopter` is the identity of the caller's inbox; it adopts the jobs. Jobs that another
        living controller has adopted stay with that controller. `dead` are controllers that are
        dead although their files do not show it. Each has the seconds within which it must see the
        adopter if it is alive after all. Without a dead controller, the call reads one small file
        per controller.
        """
        adopted = [
            state
            for state in list_controllers(machine)
            if (state.is_dead or state.identity in dead)
            and _is_to_be_adopted(machine, state, directory)
            and adopt(machine, state.identity, adopter, dead)
        ]
        if not adopted:
            return cls(machine, directory, ())
        # A controller that is alive after all must see its adopter before its jobs are listed.
        time.sleep(max(dead.get(state.identity, 0.0) for state in adopted))
        identities, queues = [state.identity for state in adopted], queues_of(adopted)
        for name in queue_names(machine) if queues is None else sorted(queues):
            # Recovery ends or requeues the tickets that dead workers held.
            recover(machine, name)
        live = jobs_of(machine, identities, queues)
        names = {view.ticket.directory for view in live if view.ticket is not None}
        here = {name for name in names if is_same_directory(name, directory)}
        own = [view for view in live if view.ticket is not None and view.ticket.directory in here]
        return cls(machine, directory, identities, own, queues)

    @property
    def is_empty(self) -> bool:
        """Whether no controller died here; then no job can be adopted."""
        return not self.controllers

    def withdraw(self) -> list[int]:
        """Cancel the jobs that need not go on, and return them.

        These are waiting jobs, jobs of a worker that ends with its controller, jobs without an
        identity, and jobs that were being cancelled already. Some of them may still be ending after
        the call.
        """
        ending = set(self.controllers)
        jobs = [
            job
            for job, ticket in self._live.items()
            if ticket.identity is None
            or job in self._waiting
            or job in self._cancelling
            or self._controller_of_worker(job) in ending
        ]
        self._cancel(jobs)
        return sorted(jobs)

    def _controller_of_worker(self, job: int) -> str | None:
        worker = self._workers.get(job)
        if worker is not None:
            with contextlib.suppress(OSError, DamagedFileError):
                state = read_worker(self._machine, worker)
                # A worker in an allocation does not see its controller die, and goes on.
                return state.controller if state.allocation is None else None
        return None

    def _cancel(self, jobs: Collection[int]) -> None:
        self._withdrawn.update(jobs)
        self._ending.update(jobs)
        outcomes = cancel_all(self._machine, jobs)
        for job, outcome in outcomes.items():
            # On a full disk, for example: the job blocks others until it has ended.
            if isinstance(outcome, Exception):
                _log.warning("job %d could not be cancelled: %s", job, outcome)

    def has_ended(self, job: int) -> bool:
        """Whether the job has ended; False also while that is unknown."""
        with contextlib.suppress(OSError):
            return has_result(self._machine.job(job))
        return False

    def queues_of_ending(self) -> set[str]:
        """The queues of withdrawn jobs that have not ended.

        Their worker may have died on another host, and this run must then recover them.
        """
        # The sets are copied, because another thread may be withdrawing jobs.
        for job in list(self._ending):
            if self.has_ended(job):
                self._ending.discard(job)
        return {self._live[job].queue for job in list(self._ending)}

    def running(self) -> list[int]:
        """The jobs that still run and that this run has not taken."""
        untaken = self._live.keys() - self._taken - self._withdrawn
        return sorted(job for job in untaken if not self.has_ended(job))

    def unread(self) -> int:
        """How many jobs succeeded after their controller had died."""
        count = 0
        for identity in self.controllers:
            paths = self._machine.controller(identity)
            found, read = map(_read, _deliveries(paths)), jobs_read(paths)
            count += sum(each is not None and each.ok and each.job not in read for each in found)
        return count

    def take(self, identity: str | None) -> Running | Ended | None:
        """Return the job with that identity if it runs or succeeded; each job is returned once.

        After taking a running job, the caller must check for its result (`has_ended`), because the
        delivery may have been read before. Returns None also if the job must run again: its outputs
        changed, or another job that writes them has not ended.
        """
        if identity is None or not self.controllers:
            return None
        return self._take_running(identity) or self._take_ended(identity)

    def _take_running(self, identity: str) -> Running | None:
        job = self._by_identity.get(identity)
        if job is None or job in self._taken or job in self._withdrawn:
            return None
        ticket = self._live[job]
        if self.has_ended(job):
            return None
        entry = find_entry(self._machine.queue(ticket.queue), job)
        if entry is not None and entry.worker is None:
            # Its worker requeued it. The workers that now serve the queue may run only tickets of
            # the adopter.
            self._cancel([job])
            return None
        self._taken.add(job)
        return Running(ticket)

    @cached_property
    def _live_jobs(self) -> dict[str, list[int]]:
        """The jobs that waited or ran when the orphans were found, by identity."""
        jobs = defaultdict(list)
        for job, ticket in self._live.items():
            if ticket.identity is not None:
                jobs[ticket.identity].append(job)
        return jobs

    @cached_property
    def _by_identity(self) -> dict[str, int]:
        return {
            ticket.identity: job
            for job, ticket in self._live.items()
            if ticket.identity is not None and job not in self._waiting
        }

    def _take_ended(self, identity: str) -> Ended | None:
        # A live job may have ended after the deliveries were listed: a worker may have claimed and
        # finished a waiting one before it could be cancelled.
        candidates = {*self._ended.get(identity, ()), *self._live_jobs.get(identity, ())}
        for job in sorted(candidates - self._taken, reverse=True):
            found = self._read_ended(job)
            if found is None or self.in_the_way(found.ticket.outputs):
                continue
            if _is_unchanged(found):
                self._taken.add(job)
                return found
        return None

    @cached_property
    def _ended(self) -> dict[str, list[int]]:
        """The jobs that succeeded, by identity."""
        ended = defaultdict(list)
        for job in sorted(set(self._delivered_successes())):
            found = self._read_ended(job)
            if found is not None and found.ticket.identity is not None:
                ended[found.ticket.identity].append(job)
        return ended

    def _delivered_successes(self) -> Iterator[int]:
        """The numbers of succeeded jobs, from all deliveries, read or not.

        A controller may have read a delivery and died before it acted on it.
        """
        for identity in self.controllers:
            paths = self._machine.controller(identity)
            # The notes and the second listing follow after all files of the first one were read,
            # because another thread removes deliveries that it has noted, or moves them.
            for files in (partial(_deliveries, paths), paths.delivered_files):
                for result in map(_read, files()):
                    if result is not None and result.ok:
                        yield result.job
            yield from jobs_read(paths)

    def _read_ended(self, job: int) -> Ended | None:
        """The job with its result, or None if it has another directory or did not succeed."""
        paths = self._machine.job(job)
        try:
            result = read_result(paths.result)
            # Just after the end of a job, its ticket is on the way from running/ to this file.
            ticket = self._live.get(job) or read_ticket(paths.ticket)
        except (OSError, DamagedFileError):
            return None
        if not result.ok or not is_same_directory(ticket.directory, self._directory):
            return None
        return Ended(ticket, result)

    def in_the_way(self, outputs: Collection[str]) -> list[int]:
        """The jobs that also write one of these files and have not ended.

        A second writer must not start before they have ended.
        """
        writers: set[int] = set()
        if self._writers:
            for output in outputs:
                writers |= self._writers.get(output, set())
        return sorted(job for job in writers - self._taken if not self.has_ended(job))

    def clear(self, jobs: Collection[int]) -> None:
        """Cancel jobs that are in the way; `has_ended` tells when they have ended."""
        self._cancel([job for job in jobs if job not in self._withdrawn])

    def forget(self) -> None:
        """Remove the files of the dead controllers.

        The files of a controller stay while jobs of it still wait or run, so that a later
        controller can adopt these jobs.
        """
        if not self.controllers:
            return
        # The ticket of a job that has just ended may still be in its queue.
        alive = {
            view.ticket.controller
            for view in jobs_of(self._machine, self.controllers, self._queues)
            if view.ticket is not None and not self.has_ended(view.job)
        }
        for identity in self.controllers:
            if identity not in alive:
                forget_controller(self._machine, identity)


def _is_to_be_adopted(machine: MachinePaths, state: ControllerState, directory: str) -> bool:
    if state.directory is None or is_same_directory(state.directory, directory):
        return True
    # If the directory was removed, no other controller will ever adopt its jobs. If it is only not
    # mounted now, another controller will adopt them, so its files must stay as long as it has
    # jobs.
    try:
        is_gone = not is_there(state.directory)
    except OSError:
        return False
    return is_gone and not jobs_of(machine, [state.identity], state.queues)


def _is_unchanged(ended: Ended) -> bool:
    """Whether all outputs are as the job left them, including those that were missing.

    For a job without any output this cannot be determined; the answer is False.
    """
    seen = {}
    for output in ended.ticket.outputs:
        with contextlib.suppress(OSError):
            found = Path(ended.ticket.directory, output).stat()
            seen[output] = (found.st_mtime_ns, found.st_size)
    return bool(seen) and seen == dict(ended.result.outputs)


def _deliveries(paths: ControllerPaths) -> list[Path]:
    return [paths.inbox / name for name in sorted(list_names(paths.inbox))]


def _read(delivery: Path) -> Result | None:
    try:
        return read_result(delivery)
    except (OSError, DamagedFileError):
        return None  # another thread has just read it, or it is damaged
