"""Requeues tickets: those of a draining worker, and those of a dead one."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Literal

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import (
    is_there,
    last_lines,
    make_directory,
    move,
    show_new_files,
    to_json,
    write_exclusively,
)
from snakemake_kochi.hints import typed
from snakemake_kochi.paths import MachinePaths, QueuePaths
from snakemake_kochi.processes import find_by_environment, kill_job_processes, this_node
from snakemake_kochi.queue.ending import (
    complete,
    end_ticket,
    set_aside,
    unexecuted_result,
    withdraw_attempt,
    withdraw_drafts,
)
from snakemake_kochi.queue.entries import Entry, QueueRemovedError, queue_lock, running_entries
from snakemake_kochi.queue.observer import Observer
from snakemake_kochi.queue.result import (
    EndedAttempt,
    UncountedReason,
    find_attempt,
    read_ended_attempt,
)
from snakemake_kochi.queue.ticket import Ticket, now, read_ticket
from snakemake_kochi.queue.wakeup import notify_subscribers, unsubscribe
from snakemake_kochi.queue.workers import WorkerState

_log = logging.getLogger(__name__)

# Limits for a ticket that kills its worker or meets broken nodes again and again. Without them it
# would be tried for ever.
MOST_LOST_ATTEMPTS = 3
MOST_LOST_CLAIMS = 10
MOST_FAILED_NODES = 3
MOST_OUT_OF_TIME = 3

# What Slurm, PBS and LSF write into the output of an allocation that they end for its memory, also
# where the kernel counts no such kill (Slurm: JobAcctGatherParams=OverMemoryKill). Jobs may print
# there, too, so a line has to begin as theirs do.
_MEMORY = re.compile(
    r"^slurmstepd\b.*(exceeded memory limit|out.of.memory|oom.?kill)"
    r"|^=>> PBS: job killed: v?mem|^TERM_MEMLIMIT",
    re.IGNORECASE,
)
_OUT = "its allocation ran out of memory"
_LINES = 20  # the last ones of such an output, in which that may be

# The result of a ticket whose last attempt ended in that way.
_GIVEN_UP: Mapping[UncountedReason, Literal["lost", "node failed", "timeout"]] = {
    "lost": "lost",
    "node failed": "node failed",
    "out of time": "timeout",
}

# Seconds until the next try: if processes could not be ended, and if the disk was full.
_UNENDED_PAUSE = 60.0
_PAUSE = 1.0


def requeue(
    machine: MachinePaths, queue: QueuePaths, entry: Entry, ticket: Ticket, end: EndedAttempt
) -> str:
    """Move a claimed ticket back to waiting/; call with the queue's lock held.

    An attempt number names one execution. A ticket that was claimed and drained before it started
    waits for the same attempt again. Any other attempt has ended as `end` says, and the ticket
    waits for the next one. A ticket that was being cancelled ends instead. So does a ticket whose
    third attempt was lost, met a broken node, or ran out of a worker's whole time. Returns in a few
    words what happened to the ticket.
    """
    paths = machine.job(entry.job)
    if complete(machine, entry.path, ticket):
        withdraw_drafts(paths)  # the process that published it may not come to that
        return "had ended"
    began = is_there(paths.attempt(entry.attempt)) or is_there(paths.ended(entry.attempt))
    is_over = began or end.reason != "drained"
    if is_over:
        make_directory(paths.directory)
        # This comes before other processes can claim the ticket: a worker that starts this attempt
        # late sees the file and does not start it, and one that ends it late does not publish it.
        write_exclusively(paths.ended(entry.attempt), to_json(end.to_dict()))
        withdraw_attempt(paths, entry.attempt)
        if complete(machine, entry.path, ticket):
            return "had ended"
    if is_there(paths.cancel):
        end_ticket(machine, entry.path, ticket, unexecuted_result(machine, entry, "cancelled"))
        return "cancelled"
    if is_over and (detail := _cause_to_give_up(machine, entry, end.reason)):
        result = unexecuted_result(machine, entry, _GIVEN_UP[end.reason], detail, end.node)
        end_ticket(machine, entry.path, ticket, result)
        return f"given up: {detail}"
    target = queue.waiting_ticket(entry.job, entry.attempt + 1 if is_over else entry.attempt)
    make_directory(target.parent)
    move(entry.path, target)
    return "requeued"


def give_up(
    machine: MachinePaths,
    queue: QueuePaths,
    entry: Entry,
    ticket: Ticket,
    reason: UncountedReason = "drained",
    detail: str = "",
) -> None:
    """Requeue the claim of a worker on this node, unless others have taken it from the worker.

    Call with the queue's lock held.
    """
    if is_there(entry.path):
        assert entry.worker is not None
        host = this_node().host
        end = ended_attempt(machine, entry, reason, entry.worker, host, detail)
        requeue(machine, queue, entry, ticket, end)


def ended_attempt(
    machine: MachinePaths,
    entry: Entry,
    reason: UncountedReason,
    worker: int,
    node: str,
    detail: str = "",
) -> EndedAttempt:
    """The record of how the present attempt of a claimed ticket ends now."""
    nonce = begun = None
    # With any other error, the record would be lost: the attempt's file is removed afterwards.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, DamagedFileError):
        attempt = find_attempt(machine.job(entry.job), entry.attempt)
        nonce, begun = attempt.nonce, attempt.to_dict()
    numbers = (entry.job, entry.attempt, nonce, worker, node, reason)
    return EndedAttempt(*numbers, now(), detail, begun)


def _cause_to_give_up(machine: MachinePaths, entry: Entry, reason: UncountedReason) -> str | None:
    """Why a ticket is given up, with its failed attempts; None when it may be tried again."""
    ends = []
    for attempt in range(1, entry.attempt + 1):
        with contextlib.suppress(FileNotFoundError, DamagedFileError):
            end = read_ended_attempt(machine.job(entry.job).ended(attempt))
            if end.reason == reason:
                ends.append(end)
    # An attempt that never began was waiting in the worker while another ticket killed the worker.
    begun = sum(end.nonce is not None for end in ends)
    if reason == "lost" and (begun >= MOST_LOST_ATTEMPTS or len(ends) >= MOST_LOST_CLAIMS):
        names = ", ".join(f"worker {end.worker} on {end.node}" for end in ends)
        memory = next((f"; {end.detail}" for end in ends if end.detail.startswith(_OUT)), "")
        more = "; request more with the resource mem_mb" if memory else ""
        see = f"see: kochi show log worker {ends[-1].worker}"
        return f"each worker that had it died: {names}{memory}{more}; {see}"
    if reason == "node failed" and len(ends) >= MOST_FAILED_NODES:
        causes = "; ".join(f"{end.node} (worker {end.worker}): {end.detail}" for end in ends)
        return f"no node could execute it: {causes}"
    if reason == "out of time" and len(ends) >= MOST_OUT_OF_TIME:
        names = ", ".join(f"worker {end.worker} on {end.node}" for end in ends)
        return (
            f"the time of each worker that had it ended before the job did: {names}; request "
            "longer allocations for the machine, and set the job's run time (resources: runtime)"
        )
    return None


def recover(
    machine: MachinePaths,
    name: str,
    observer: Observer | None = None,
    running: Sequence[Entry] | None = None,
) -> list[str]:
    """Requeue the tickets of dead workers; return one message for each, for people.

    Without an `observer`, the tickets of workers on other nodes stay where they are, because the
    death of such a worker can only be seen over time. An observer must be the same for all calls of
    a process. A ticket that cannot be requeued, for example for lack of space, is tried again in a
    later call; that is logged once for each observer. Any process may call it at any time, several
    at once; what a call costs without a death is the observer's decision. `running` are the claims
    of the queue, if they were listed just now. Raises OSError when the
    queue cannot be listed.
    """
    queue = machine.queue(name)
    observer = observer or Observer()
    dead = observer.find_dead(machine, queue, running)
    if not dead:
        return []
    messages = []
    for entry in running_entries(queue):
        if entry.worker in dead and observer.postponed.is_due(entry.path):
            messages += _recover_entry(machine, queue, entry, dead[entry.worker], observer)
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
    observer: Observer,
) -> list[str]:
    messages: list[str] = []
    postponed = observer.postponed
    try:
        # After a failed try there is no second wait, because the tickets of other workers are
        # waiting, too.
        patience = 0.0 if entry.path in postponed else observer.kill_patience
        if obstacle := _end_processes(machine, entry, worker, patience):
            why = f"job {entry.job} is not requeued yet: {obstacle}"
            postponed.postpone(entry.path, _UNENDED_PAUSE, why)
            return []
        # The process that removed the queue found no ticket left in it.
        with contextlib.suppress(QueueRemovedError), queue_lock(machine, queue.name):
            messages = _requeue_dead(machine, queue, entry, worker)
    except (OSError, KochiError) as error:
        # A full disk, for example, must not end the calling process, which has jobs of its own.
        why = f"job {entry.job} of worker {worker.worker}, which died, is not requeued yet: {error}"
        postponed.postpone(entry.path, _PAUSE, why)
        return []
    postponed.forget(entry.path)
    return messages


def _end_processes(
    machine: MachinePaths, entry: Entry, worker: WorkerState, patience: float
) -> str | None:
    """Kill the remaining processes of a dead worker's job; return an obstacle to a new run, if any.

    The obstacle is a text for people. Call without the lock, because this may take seconds. No
    attempt file means that the job never began, because it is held back until that file exists (see
    docs/queue.md).
    """
    try:
        attempt = find_attempt(machine.job(entry.job), entry.attempt)
    except FileNotFoundError:
        return None
    except DamagedFileError as error:
        return _look_for_processes(machine, entry, worker, error.message)
    if not this_node().can_see(attempt.node):
        return None  # rebooted since, or another node: processes cannot be seen or ended from here
    if kill_job_processes(attempt.process, attempt.nonce, patience):
        return None
    return f"the processes of its session {attempt.process.pid} cannot be killed"


def _look_for_processes(
    machine: MachinePaths, entry: Entry, worker: WorkerState, damage: str
) -> str | None:
    """Do the work of `_end_processes` when the attempt's file is damaged.

    Processes that are found by their environments are only waited for, because jobs below another
    KOCHI_ROOT may have the same numbers.
    """
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
    return f"{damage}; processes {pids} seem to belong to it, and must end first"


def _requeue_dead(
    machine: MachinePaths, queue: QueuePaths, entry: Entry, worker: WorkerState
) -> list[str]:
    try:
        ticket = read_ticket(entry.path).with_attempt(entry.attempt)
    except FileNotFoundError:
        return []  # another process was faster
    except DamagedFileError as error:
        set_aside(machine, queue, entry, error.message)
        return []
    detail = _memory_kill(machine, worker)
    if not detail and worker.presumed_dead:
        detail = "its heartbeat stood still"
    end = ended_attempt(machine, entry, "lost", worker.worker, worker.node.host, detail)
    outcome = requeue(machine, queue, entry, ticket, end)
    why = f" ({detail})" if detail else ""
    see = "" if outcome.startswith("given up") else f"; see: kochi show log worker {worker.worker}"
    said = f"worker {worker.worker} on {worker.node.host} died while it had job {entry.job}{why}"
    return [typed(f"{said}: {outcome}{see}")]


def _memory_kill(machine: MachinePaths, worker: WorkerState) -> str:
    """What a dead worker's allocation printed about a kill for its memory, for people, or ""."""
    if worker.allocation is None:
        return ""
    log = machine.allocation_log(worker.controller, worker.allocation)
    show_new_files(log.parent)
    lines = (line for path in (log, log.with_suffix(".out")) for line in last_lines(path, _LINES))
    return next((f'{_OUT}: "{line.strip()}"' for line in lines if _MEMORY.search(line)), "")
