"""Cancelling jobs: one that waits ends at once, one that runs by its worker."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Sequence
from typing import Literal

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import is_there, make_directory, write_exclusively
from snakemake_kochi.paths import MachinePaths, QueuePaths
from snakemake_kochi.queue.ending import (
    complete,
    end_ticket,
    set_aside,
    unexecuted_result,
)
from snakemake_kochi.queue.entries import (
    Entry,
    QueueRemovedError,
    find_entries,
    find_entry,
    queue_lock,
    queue_names,
    remove_empty,
)
from snakemake_kochi.queue.jobs import find_job
from snakemake_kochi.queue.recovery import recover
from snakemake_kochi.queue.ticket import read_ticket
from snakemake_kochi.queue.wakeup import notify

_log = logging.getLogger(__name__)

Outcome = Literal["cancelled", "cancelling", "ended"]
# This is large enough that the lock costs almost nothing, and small enough that others wait only
# briefly.
_JOBS_PER_LOCK = 256


def cancel(machine: MachinePaths, job: int) -> Outcome:
    """Cancel a job.

    Returns "cancelled" if the job waited: its result is published and its controller is notified.
    Returns "cancelling" if the job runs: its worker is notified and will end the processes of the
    job. Returns "ended" if the job had ended. Raises NameNotFoundError for an unknown job.
    """
    while True:
        # This raises for an unknown job, which also ends the loop.
        if find_job(machine, job).state == "ended":
            return "ended"
        for name in queue_names(machine):
            try:
                outcome = _cancel_in(machine, machine.queue(name), job)
            except QueueRemovedError:
                continue  # the job had ended, and its controller removed the queue
            if outcome == "cancelling" and recover(machine, name):
                # Its worker may have died; then no other process acts on the mark.
                view = find_job(machine, job)
                return "cancelled" if view.state == "ended" else outcome
            if outcome is not None:
                return outcome


def cancel_all(
    machine: MachinePaths, jobs: Iterable[int]
) -> dict[int, Outcome | KochiError | OSError]:
    """Cancel many jobs at once; return for each job what `cancel` returns or raises.

    This takes one lock per few hundred jobs and lists each queue once, whereas `cancel` searches
    all queues for each job.
    """
    wanted = list(jobs)
    if not wanted:
        return {}
    outcomes: dict[int, Outcome | KochiError | OSError] = {}
    for name in queue_names(machine):
        left = [job for job in wanted if job not in outcomes]
        try:
            outcomes |= _cancel_all_in(machine, machine.queue(name), left)
        except (KochiError, OSError) as error:
            # A queue that cannot be listed must not prevent cancelling in the others.
            _log.warning("queue %s: %s", name, error)
    for job in wanted:
        if outcomes.get(job) == "cancelling":
            with contextlib.suppress(OSError):  # it was notified, even if its end is unknown
                if is_there(machine.job(job).result):
                    outcomes[job] = "cancelled"
        elif job not in outcomes:
            # The job had ended, was just moved, or is unknown.
            try:
                outcomes[job] = cancel(machine, job)
            except (KochiError, OSError) as error:
                outcomes[job] = error
    return outcomes


def withdraw(machine: MachinePaths, queue: str, jobs: Sequence[int]) -> list[int]:
    """Cancel those of some jobs that wait in a queue, and return them.

    Jobs of which a worker has the ticket go on. Raises OSError and KochiError.
    """
    outcomes = _cancel_all_in(machine, machine.queue(queue), jobs, only_waiting=True)
    return [job for job, outcome in outcomes.items() if outcome == "cancelled"]


def _cancel_all_in(
    machine: MachinePaths, queue: QueuePaths, jobs: Sequence[int], only_waiting: bool = False
) -> dict[int, Outcome | KochiError | OSError]:
    outcomes: dict[int, Outcome | KochiError | OSError] = {}
    present = sorted(find_entries(queue, jobs))
    for start in range(0, len(present), _JOBS_PER_LOCK):
        some = present[start : start + _JOBS_PER_LOCK]
        try:
            outcomes |= _cancel_some(machine, queue, some, only_waiting)
        except (KochiError, OSError) as error:
            outcomes |= dict.fromkeys(some, error)
    if "cancelling" in outcomes.values():
        # Their workers may have died; then no other process acts on the marks.
        with contextlib.suppress(OSError):
            recover(machine, queue.name)
    return outcomes


def _cancel_some(
    machine: MachinePaths, queue: QueuePaths, jobs: Sequence[int], only_waiting: bool
) -> dict[int, Outcome | KochiError | OSError]:
    outcomes: dict[int, Outcome | KochiError | OSError] = {}
    with contextlib.suppress(QueueRemovedError), queue_lock(machine, queue.name):
        entries = find_entries(queue, jobs)
        for job, entry in sorted(entries.items()):
            if only_waiting and entry.worker is not None:
                continue
            try:
                outcome = _cancel_entry(machine, queue, entry)
            except (KochiError, OSError) as error:
                outcomes[job] = error
                continue
            if outcome is not None:
                outcomes[job] = outcome
        remove_empty({each.path.parent for each in entries.values() if each.worker is None})
    return outcomes


def _cancel_in(machine: MachinePaths, queue: QueuePaths, job: int) -> Outcome | None:
    """Cancel a job in this queue; None when this queue does not contain the job."""
    if find_entry(queue, job) is None:
        return None
    with queue_lock(machine, queue.name):
        entry = find_entry(queue, job)
        if entry is None:
            return None
        outcome = _cancel_entry(machine, queue, entry)
        if entry.worker is None:
            remove_empty([entry.path.parent])
        return outcome


def _cancel_entry(machine: MachinePaths, queue: QueuePaths, entry: Entry) -> Outcome | None:
    """Cancel the job of an entry; None when the job has ended. Call with the queue's lock held."""
    paths = machine.job(entry.job)
    has_ended = is_there(paths.result)
    if entry.worker is None:
        try:
            ticket = read_ticket(entry.path)
        except DamagedFileError as error:
            set_aside(machine, queue, entry, error.message)
        else:
            # If the job has ended, a process was killed while it ended this ticket. In the queue of
            # a single run, no process claims tickets any more, so it must be taken out here.
            if not complete(machine, entry.path, ticket):
                end_ticket(
                    machine, entry.path, ticket, unexecuted_result(machine, entry, "cancelled")
                )
        return None if has_ended else "cancelled"
    if has_ended:
        return None
    make_directory(paths.directory)
    write_exclusively(paths.cancel, b"")
    notify(machine.worker(entry.worker).wakeup)
    return "cancelling"
