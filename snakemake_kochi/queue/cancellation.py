"""Cancelling a job, wherever it is."""

from __future__ import annotations

from typing import Literal

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import make_directory, write_exclusively
from snakemake_kochi.paths import MachinePaths, QueuePaths
from snakemake_kochi.queue.bell import ring
from snakemake_kochi.queue.entries import Entry, find_entry, queue_names
from snakemake_kochi.queue.jobs import end_ticket, find_job, set_aside, unexecuted_result
from snakemake_kochi.queue.lock import LockRemovedError, queue_lock
from snakemake_kochi.queue.recovery import recover
from snakemake_kochi.queue.ticket import read_ticket

Outcome = Literal["cancelled", "cancelling", "ended"]


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
            except LockRemovedError:
                continue  # it had ended, and its controller removed the queue
            if outcome == "cancelling" and recover(machine, name):
                # Its worker may have died: then nobody else would act on the mark.
                view = find_job(machine, job)
                return "cancelled" if view.state == "ended" else outcome
            if outcome is not None:
                return outcome


def _cancel_in(machine: MachinePaths, queue: QueuePaths, job: int) -> Outcome | None:
    """None when the job is not, or no longer, in this queue."""
    if find_entry(queue, job) is None:
        return None
    with queue_lock(queue.lock):
        entry = find_entry(queue, job)
        if entry is None or machine.job(job).result.exists():
            return None
        if entry.worker is None:
            _end_waiting(machine, queue, entry)
            return "cancelled"
        paths = machine.job(job)
        make_directory(paths.directory)
        write_exclusively(paths.cancel, b"")
        ring(machine.worker(entry.worker).bell)
        return "cancelling"


def _end_waiting(machine: MachinePaths, queue: QueuePaths, entry: Entry) -> None:
    try:
        ticket = read_ticket(entry.path)
    except DamagedFileError as error:
        set_aside(machine, queue, entry, error.message)
        return
    end_ticket(machine, entry.path, ticket, unexecuted_result(machine, entry, "cancelled"))
