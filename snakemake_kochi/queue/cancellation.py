"""Cancelling a job, wherever it is."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Sequence
from typing import Literal

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import is_there, make_directory, write_exclusively
from snakemake_kochi.paths import MachinePaths, QueuePaths
from snakemake_kochi.queue.entries import (
    Entry,
    QueueRemovedError,
    find_entries,
    find_entry,
    queue_lock,
    queue_names,
)
from snakemake_kochi.queue.jobs import complete, end_ticket, find_job, set_aside, unexecuted_result
from snakemake_kochi.queue.recovery import recover
from snakemake_kochi.queue.ticket import read_ticket
from snakemake_kochi.queue.wakeup import notify

_log = logging.getLogger(__name__)

Outcome = Literal["cancelled", "cancelling", "ended"]
# So many that the lock costs nothing, and so few that others need not wait long for it.
_JOBS_PER_LOCK = 256


def cancel(machine: MachinePaths, job: int) -> Outcome:
    """Cancel a job.

    Returns "cancelled" when it waited: its result is published and its controller told;
    "cancelling" when it runs: its worker was told and will end its processes; "ended" when there
    was nothing left to cancel. Raises NameNotFoundError for an unknown job.
    """
    while True:
        # Raises for an unknown job, which also ends the loop.
        if find_job(machine, job).state == "ended":
            return "ended"
        for name in queue_names(machine):
            try:
                outcome = _cancel_in(machine, machine.queue(name), job)
            except QueueRemovedError:
                continue  # it had ended, and its controller removed the queue
            if outcome == "cancelling" and recover(machine, name):
                # Its worker may have died: then nobody else would act on the mark.
                view = find_job(machine, job)
                return "cancelled" if view.state == "ended" else outcome
            if outcome is not None:
                return outcome


def cancel_all(
    machine: MachinePaths, jobs: Iterable[int]
) -> dict[int, Outcome | KochiError | OSError]:
    """`cancel` for many at once: for each job what that returns or raises.

    Costs a lock for some hundred jobs and a listing of each queue, where `cancel` looks through all
    queues for each job.
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
            # One queue that cannot be listed keeps nobody from cancelling in the others.
            _log.warning("queue %s: %s", name, error)
    for job in wanted:
        if outcomes.get(job) == "cancelling":
            with contextlib.suppress(OSError):  # it was told, whatever is known of its end
                if is_there(machine.job(job).result):
                    outcomes[job] = "cancelled"
        elif job not in outcomes:
            # It had ended, was moved just now, or is not known.
            try:
                outcomes[job] = cancel(machine, job)
            except (KochiError, OSError) as error:
                outcomes[job] = error
    return outcomes


def _cancel_all_in(
    machine: MachinePaths, queue: QueuePaths, jobs: Sequence[int]
) -> dict[int, Outcome | KochiError | OSError]:
    outcomes: dict[int, Outcome | KochiError | OSError] = {}
    present = sorted(find_entries(queue, jobs))
    for start in range(0, len(present), _JOBS_PER_LOCK):
        some = present[start : start + _JOBS_PER_LOCK]
        try:
            outcomes |= _cancel_some(machine, queue, some)
        except (KochiError, OSError) as error:
            outcomes |= dict.fromkeys(some, error)
    if "cancelling" in outcomes.values():
        # Their workers may have died: then nobody else would act on the marks.
        with contextlib.suppress(OSError):
            recover(machine, queue.name)
    return outcomes


def _cancel_some(
    machine: MachinePaths, queue: QueuePaths, jobs: Sequence[int]
) -> dict[int, Outcome | KochiError | OSError]:
    outcomes: dict[int, Outcome | KochiError | OSError] = {}
    with contextlib.suppress(QueueRemovedError), queue_lock(machine, queue.name):
        for job, entry in sorted(find_entries(queue, jobs).items()):
            try:
                outcome = _cancel_entry(machine, queue, entry)
            except (KochiError, OSError) as error:
                outcomes[job] = error
                continue
            if outcome is not None:
                outcomes[job] = outcome
    return outcomes


def _cancel_in(machine: MachinePaths, queue: QueuePaths, job: int) -> Outcome | None:
    """None when the job is not, or no longer, in this queue."""
    if find_entry(queue, job) is None:
        return None
    with queue_lock(machine, queue.name):
        entry = find_entry(queue, job)
        return None if entry is None else _cancel_entry(machine, queue, entry)


def _cancel_entry(machine: MachinePaths, queue: QueuePaths, entry: Entry) -> Outcome | None:
    """Call with the queue's lock held; None when the job has ended."""
    paths = machine.job(entry.job)
    if is_there(paths.result):
        if entry.worker is None:
            # Somebody was killed in ending it. In the queue of one run nobody claims any more.
            _complete_waiting(machine, queue, entry)
        return None
    if entry.worker is None:
        _end_waiting(machine, queue, entry)
        return "cancelled"
    make_directory(paths.directory)
    write_exclusively(paths.cancel, b"")
    notify(machine.worker(entry.worker).wakeup)
    return "cancelling"


def _complete_waiting(machine: MachinePaths, queue: QueuePaths, entry: Entry) -> None:
    try:
        complete(machine, entry.path, read_ticket(entry.path))
    except DamagedFileError as error:
        set_aside(machine, queue, entry, error.message)


def _end_waiting(machine: MachinePaths, queue: QueuePaths, entry: Entry) -> None:
    try:
        ticket = read_ticket(entry.path)
    except DamagedFileError as error:
        set_aside(machine, queue, entry, error.message)
        return
    end_ticket(machine, entry.path, ticket, unexecuted_result(machine, entry, "cancelled"))
