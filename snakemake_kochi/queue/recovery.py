"""Back into the queue: what a draining worker puts back, and what a dead one left behind."""

from __future__ import annotations

import contextlib
import logging
import os

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import make_directory, to_json, write_exclusively
from snakemake_kochi.paths import MachinePaths, QueuePaths
from snakemake_kochi.queue.entries import Entry, running_entries
from snakemake_kochi.queue.jobs import complete, end_ticket, set_aside, unexecuted_result
from snakemake_kochi.queue.lock import LockRemovedError, queue_lock
from snakemake_kochi.queue.processes import kill_job_processes, this_node
from snakemake_kochi.queue.result import EndedAttempt, read_attempt, read_ended_attempt
from snakemake_kochi.queue.ticket import Ticket, now, read_ticket
from snakemake_kochi.queue.workers import (
    WorkerState,
    find_lost,
    ring_subscribers,
    unsubscribe,
)

_log = logging.getLogger(__name__)

# A ticket that takes down its worker again and again would take down all of them.
MOST_LOST_ATTEMPTS = 3


def requeue(machine: MachinePaths, queue: QueuePaths, entry: Entry, ticket: Ticket) -> str:
    """Put a claimed ticket back to waiting; call with the queue's lock held.

    An attempt number names an execution: one that was claimed and never started is waiting for the
    same attempt again, one that started waits for the next. A ticket that was being cancelled ends
    instead. Returns in a few words what became of it.
    """
    if complete(machine, entry.path, ticket):
        return "had ended"
    paths = machine.job(entry.job)
    if paths.cancel.exists():
        end_ticket(machine, entry.path, ticket, unexecuted_result(machine, entry, "cancelled"))
        return "cancelled"
    started = paths.attempt(entry.attempt).exists() or paths.ended(entry.attempt).exists()
    target = queue.waiting_ticket(entry.job, entry.attempt + 1 if started else entry.attempt)
    make_directory(target.parent)
    os.rename(entry.path, target)
    return "put back"


def recover(machine: MachinePaths, name: str) -> list[str]:
    """Put the tickets of dead workers back into a queue; return one message for each, for people.

    Cheap when nobody died: one directory listing and one small file per worker with a ticket.
    Anybody may call it at any time, several at once.
    """
    queue = machine.queue(name)
    holders = {entry.worker for entry in running_entries(queue) if entry.worker is not None}
    lost = find_lost(machine, holders) if holders else {}
    if not lost:
        return []
    messages = []
    for entry in running_entries(queue):
        if entry.worker in lost and _end_processes(machine, entry):
            # Who removed the queue found nothing left in it.
            with contextlib.suppress(LockRemovedError), queue_lock(queue.lock):
                messages += _recover_entry(machine, queue, entry, lost[entry.worker])
    for worker in lost:
        unsubscribe(queue, worker)
    for message in messages:
        _log.warning("%s", message)
    ring_subscribers(machine, queue)
    return messages


def _end_processes(machine: MachinePaths, entry: Entry) -> bool:
    """Kill what a dead worker's job left running; return whether it can be run again.

    Outside the lock: it may take seconds. No attempt file means that the job never began, because
    it is held back until that file is there (see docs/queue.md).
    """
    try:
        attempt = read_attempt(machine.job(entry.job).attempt(entry.attempt))
    except FileNotFoundError:
        return True
    except DamagedFileError as error:
        _log.warning("job %d is not run again: %s", entry.job, error.message)
        return False
    if not this_node().can_see(attempt.node):
        return True  # its host was booted again since
    if kill_job_processes(attempt.process, attempt.nonce):
        return True
    _log.warning(
        "job %d is not run again yet: processes of its session %d cannot be ended",
        entry.job,
        attempt.process.pid,
    )
    return False


def _recover_entry(
    machine: MachinePaths, queue: QueuePaths, entry: Entry, worker: WorkerState
) -> list[str]:
    try:
        ticket = read_ticket(entry.path).with_attempt(entry.attempt)
    except FileNotFoundError:
        return []  # somebody else was quicker
    except DamagedFileError as error:
        set_aside(machine, queue, entry, error.message)
        return []
    paths = machine.job(entry.job)
    if not paths.result.exists():
        make_directory(paths.directory)
        ended = EndedAttempt(
            job=entry.job,
            attempt=entry.attempt,
            nonce=_nonce_of(machine, entry),
            worker=worker.worker,
            node=worker.node.host,
            reason="lost",
            ended=now(),
        )
        write_exclusively(paths.ended(entry.attempt), to_json(ended.to_dict()))
    said = f"worker {worker.worker} on {worker.node.host} died with job {entry.job}"
    victims = _lost_workers(machine, entry)
    if len(victims) >= MOST_LOST_ATTEMPTS and not paths.result.exists():
        detail = f"each worker that ran it died: {', '.join(victims)}"
        result = unexecuted_result(machine, entry, "lost", detail, worker.node.host)
        end_ticket(machine, entry.path, ticket, result)
        return [f"{said}; it is given up: {detail}"]
    return [f"{said}: {requeue(machine, queue, entry, ticket)}"]


def _lost_workers(machine: MachinePaths, entry: Entry) -> list[str]:
    victims = []
    for attempt in range(1, entry.attempt + 1):
        with contextlib.suppress(FileNotFoundError, DamagedFileError):
            ended = read_ended_attempt(machine.job(entry.job).ended(attempt))
            if ended.reason == "lost":
                victims.append(f"worker {ended.worker} on {ended.node}")
    return victims


def _nonce_of(machine: MachinePaths, entry: Entry) -> str | None:
    with contextlib.suppress(FileNotFoundError, DamagedFileError):
        return read_attempt(machine.job(entry.job).attempt(entry.attempt)).nonce
    return None
