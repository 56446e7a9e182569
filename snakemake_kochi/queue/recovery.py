"""Requeues tickets: those of a draining worker, and those a dead one left."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Literal

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import is_there, make_directory, move, to_json, write_exclusively
from snakemake_kochi.paths import MachinePaths, QueuePaths
from snakemake_kochi.processes import (
    find_by_environment,
    kill_job_processes,
    this_node,
)
from snakemake_kochi.queue.entries import Entry, QueueRemovedError, queue_lock, running_entries
from snakemake_kochi.queue.jobs import complete, end_ticket, set_aside, unexecuted_result
from snakemake_kochi.queue.observation import Observer, Postponed
from snakemake_kochi.queue.result import (
    EndedAttempt,
    UncountedReason,
    read_attempt,
    read_ended_attempt,
)
from snakemake_kochi.queue.serving import notify_subscribers, subscribers, unsubscribe
from snakemake_kochi.queue.ticket import Ticket, now, read_ticket
from snakemake_kochi.queue.workers import WorkerState

_log = logging.getLogger(__name__)

# A ticket that takes down its worker, or finds a broken node, again and again would go on for ever.
MOST_LOST_ATTEMPTS = 3
MOST_LOST_CLAIMS = 10
MOST_FAILED_NODES = 3
MOST_OUT_OF_TIME = 3

# The result of a ticket whose last attempt ended so.
_GIVEN_UP: Mapping[UncountedReason, Literal["lost", "node failed", "timeout"]] = {
    "lost": "lost",
    "node failed": "node failed",
    "out of time": "timeout",
}

_PATIENCE = 5.0  # seconds for processes that were killed to be gone
# Seconds after which it is tried again: with processes that could not be ended, and with a disk
# that was full.
_UNENDED_PAUSE = 60.0
_PAUSE = 1.0


def requeue(
    machine: MachinePaths, queue: QueuePaths, entry: Entry, ticket: Ticket, end: EndedAttempt
) -> str:
    """Move a claimed ticket back to waiting/; call with the queue's lock held.

    An attempt number names an execution: one that was claimed and drained before it started is
    waiting for the same attempt again; any other has ended as `end` says, and the ticket waits for
    the next. A ticket that was being cancelled ends instead, and one whose third attempt was lost,
    found a broken node, or had not enough of a worker's whole time. Returns in a few words what
    became of it.
    """
    if complete(machine, entry.path, ticket):
        return "had ended"
    paths = machine.job(entry.job)
    if is_there(paths.cancel):
        end_ticket(machine, entry.path, ticket, unexecuted_result(machine, entry, "cancelled"))
        return "cancelled"
    began = is_there(paths.attempt(entry.attempt)) or is_there(paths.ended(entry.attempt))
    is_over = began or end.reason != "drained"
    if is_over:
        make_directory(paths.directory)
        # Before the ticket is there for others: who begins late sees it, and does not begin.
        write_exclusively(paths.ended(entry.attempt), to_json(end.to_dict()))
        if detail := _cause_to_give_up(machine, entry, end.reason):
            result = unexecuted_result(machine, entry, _GIVEN_UP[end.reason], detail, end.node)
            end_ticket(machine, entry.path, ticket, result)
            return f"it is given up: {detail}"
    target = queue.waiting_ticket(entry.job, entry.attempt + 1 if is_over else entry.attempt)
    make_directory(target.parent)
    move(entry.path, target)
    return "requeued"


def ended_attempt(
    machine: MachinePaths,
    entry: Entry,
    reason: UncountedReason,
    worker: int,
    node: str,
    detail: str = "",
) -> EndedAttempt:
    """How the present attempt of a claimed ticket ends now."""
    nonce = None
    with contextlib.suppress(OSError, DamagedFileError):
        nonce = read_attempt(machine.job(entry.job).attempt(entry.attempt)).nonce
    return EndedAttempt(entry.job, entry.attempt, nonce, worker, node, reason, now(), detail)


def _cause_to_give_up(machine: MachinePaths, entry: Entry, reason: UncountedReason) -> str | None:
    """For people, naming those that had it; None when it may be tried again."""
    ends = []
    for attempt in range(1, entry.attempt + 1):
        with contextlib.suppress(FileNotFoundError, DamagedFileError):
            end = read_ended_attempt(machine.job(entry.job).ended(attempt))
            if end.reason == reason:
                ends.append(end)
    # One that never began was waiting in the worker while another ticket took it down.
    begun = sum(end.nonce is not None for end in ends)
    if reason == "lost" and (begun >= MOST_LOST_ATTEMPTS or len(ends) >= MOST_LOST_CLAIMS):
        names = ", ".join(f"worker {end.worker} on {end.node}" for end in ends)
        return f"each worker that had it died: {names}"
    if reason == "node failed" and len(ends) >= MOST_FAILED_NODES:
        causes = "; ".join(f"{end.node} (worker {end.worker}): {end.detail}" for end in ends)
        return f"no node could execute it: {causes}"
    if reason == "out of time" and len(ends) >= MOST_OUT_OF_TIME:
        names = ", ".join(f"worker {end.worker} on {end.node}" for end in ends)
        return (
            f"it takes longer than each worker that had it was there: {names}; give the machine's "
            "allocations more time, and say how long the job takes (resources: runtime)"
        )
    return None


def recover(machine: MachinePaths, name: str, observer: Observer | None = None) -> list[str]:
    """Requeue the tickets of dead workers; return one message for each, for people.

    Without an `observer`, the caller's own for all its calls, those of workers on other nodes stay
    where they are: that one of these died is seen only over time. With one, workers that hold no
    ticket are looked at too, now and then. A ticket that cannot be requeued, for lack of space say,
    is tried again with a later call; that is logged once for each observer. Cheap when nobody died:
    one directory listing and one small file per worker with a ticket. Anybody may call it at any
    time, several at once. Raises OSError when the queue cannot be listed.
    """
    queue = machine.queue(name)
    holders = {entry.worker for entry in running_entries(queue) if entry.worker is not None}
    watched = holders if observer is None else set(observer.share_of(holders))
    if observer is not None and observer.is_time_for_all(name):
        # One that died idle would be taken for one that serves the queue, for ever.
        everybody = subscribers(queue)
        observer.looked_at_all(name, len(everybody))
        watched.update(everybody)
    observer = observer or Observer()
    dead = observer.find_dead(machine, watched) if watched else {}
    if not dead:
        return []
    messages = []
    for entry in running_entries(queue):
        if entry.worker in dead and observer.postponed.is_due(entry.path):
            messages += _recover_entry(
                machine, queue, entry, dead[entry.worker], observer.postponed
            )
    for worker in dead:
        with contextlib.suppress(OSError):
            unsubscribe(queue, worker)
    for message in messages:
        _log.warning("%s", message)
    if messages:
        notify_subscribers(machine, queue)
    return messages


def _recover_entry(
    machine: MachinePaths,
    queue: QueuePaths,
    entry: Entry,
    worker: WorkerState,
    postponed: Postponed,
) -> list[str]:
    messages: list[str] = []
    try:
        # Who could not end them waits no second time: others have their tickets here, too.
        patience = 0.0 if entry.path in postponed else _PATIENCE
        if obstacle := _end_processes(machine, entry, worker, patience):
            why = f"job {entry.job} is not run again yet: {obstacle}"
            postponed.postpone(entry.path, _UNENDED_PAUSE, why)
            return []
        # Who removed the queue found nothing left in it.
        with contextlib.suppress(QueueRemovedError), queue_lock(machine, queue.name):
            messages = _requeue_dead(machine, queue, entry, worker)
    except (OSError, KochiError) as error:
        # A full disk, say, must not take down who only looked, with jobs of its own.
        why = f"job {entry.job} of worker {worker.worker}, which died, is not requeued yet: {error}"
        postponed.postpone(entry.path, _PAUSE, why)
        return []
    postponed.forget(entry.path)
    return messages


def _end_processes(
    machine: MachinePaths, entry: Entry, worker: WorkerState, patience: float
) -> str | None:
    """Kill what a dead worker's job left running; return for people why it cannot be run again,
    None when it can.

    Outside the lock: it may take seconds. No attempt file means that the job never began, because
    it is held back until that file is there (see docs/queue.md).
    """
    try:
        attempt = read_attempt(machine.job(entry.job).attempt(entry.attempt))
    except FileNotFoundError:
        return None
    except DamagedFileError as error:
        return _look_for_processes(machine, entry, worker, error.message)
    if not this_node().can_see(attempt.node):
        return None  # booted again since, or another node: nothing can be seen, or done, from here
    if kill_job_processes(attempt.process, attempt.nonce, patience):
        return None
    return f"processes of its session {attempt.process.pid} cannot be ended"


def _look_for_processes(
    machine: MachinePaths, entry: Entry, worker: WorkerState, damage: str
) -> str | None:
    """`_end_processes` where the attempt's file tells nothing. Found by what all their environments
    say they are only waited for: jobs below another KOCHI_ROOT may have the same numbers."""
    if not this_node().can_see(worker.node):
        return None
    variables = {
        "KOCHI_MACHINE": machine.name,
        "KOCHI_WORKER_ID": str(worker.worker),
        "KOCHI_JOB_ID": str(entry.job),
        "KOCHI_ATTEMPT": str(entry.attempt),
    }
    found = find_by_environment(variables, worker.process.start)
    if not found:
        return None
    pids = " ".join(map(str, found))
    return f"{damage}; processes {pids} seem to be of it and would have to be ended"


def _requeue_dead(
    machine: MachinePaths, queue: QueuePaths, entry: Entry, worker: WorkerState
) -> list[str]:
    try:
        ticket = read_ticket(entry.path).with_attempt(entry.attempt)
    except FileNotFoundError:
        return []  # somebody else was quicker
    except DamagedFileError as error:
        set_aside(machine, queue, entry, error.message)
        return []
    said = f"worker {worker.worker} on {worker.node.host} died with job {entry.job}"
    detail = "its heartbeat stood still" if worker.presumed_dead else ""
    end = ended_attempt(machine, entry, "lost", worker.worker, worker.node.host, detail)
    return [f"{said}: {requeue(machine, queue, entry, ticket, end)}"]
