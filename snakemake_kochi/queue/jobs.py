"""Jobs by their numbers: views of their states, finding, listing and cancelling them."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from snakemake_kochi.errors import DamagedFileError, KochiError, NameNotFoundError
from snakemake_kochi.files import is_there, make_directory, write_exclusively
from snakemake_kochi.locks import read_lock_settings
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
    ended_job_numbers,
    find_entries,
    find_entry,
    queue_lock,
    queue_names,
    read_next,
    running_entries,
    waiting_entries,
)
from snakemake_kochi.queue.recovery import recover
from snakemake_kochi.queue.result import Result, read_attempt, read_result
from snakemake_kochi.queue.ticket import Ticket, read_ticket
from snakemake_kochi.queue.wakeup import notify

_log = logging.getLogger(__name__)

Outcome = Literal["cancelled", "cancelling", "ended"]
# This is large enough that the lock costs almost nothing, and small enough that others wait only
# briefly.
_JOBS_PER_LOCK = 256


@dataclass(frozen=True)
class JobView:
    """One job at one moment.

    `ticket` is None when its file is damaged, `started` is None while the job waits, and `result`
    is None until it has ended. `cancelling` is true while its processes are being ended.
    """

    job: int
    state: Literal["waiting", "running", "ended"]
    ticket: Ticket | None
    attempt: int
    worker: int | None
    started: str | None
    result: Result | None
    log: Path
    cancelling: bool = False


def _read_ticket_or_none(path: Path) -> Ticket | None:
    try:
        return read_ticket(path)
    except DamagedFileError as error:
        _log.warning("%s", error.message)
        return None


def view_entry(machine: MachinePaths, entry: Entry) -> JobView | None:
    """The view of a waiting or running job; None when its ticket has moved since it was listed."""
    paths = machine.job(entry.job)
    try:
        ticket = _read_ticket_or_none(entry.path)
    except FileNotFoundError:
        return None
    started = None
    if entry.worker is not None:
        with contextlib.suppress(FileNotFoundError, DamagedFileError):
            started = read_attempt(paths.attempt(entry.attempt)).started
    return JobView(
        job=entry.job,
        state="waiting" if entry.worker is None else "running",
        ticket=None if ticket is None else ticket.with_attempt(entry.attempt),
        attempt=entry.attempt,
        worker=entry.worker,
        started=started,
        result=None,
        log=paths.log,
        cancelling=is_there(paths.cancel),
    )


def view_ended(machine: MachinePaths, job: int) -> JobView | None:
    """The view of an ended job; None without a result.

    Raises DamagedFileError when the result cannot be read.
    """
    paths = machine.job(job)
    try:
        result = read_result(paths.result)
    except FileNotFoundError:
        return None
    ticket = None
    with contextlib.suppress(FileNotFoundError):
        ticket = _read_ticket_or_none(paths.ticket)
    return JobView(
        job=job,
        state="ended",
        ticket=None if ticket is None else ticket.with_attempt(result.attempt),
        attempt=result.attempt,
        worker=result.worker,
        started=result.started,
        result=result,
        log=paths.log,
    )


def find_job(machine: MachinePaths, job: int) -> JobView:
    """The view of a job. Raises NameNotFoundError for a number that no ticket ever got."""
    # The ticket may move from a directory not yet searched to one already searched.
    for _ in range(5):
        if (view := view_ended(machine, job)) is not None:
            return view
        for name in queue_names(machine):
            entry = find_entry(machine.queue(name), job)
            if entry is not None and (view := view_entry(machine, entry)) is not None:
                return view
    if (view := _find_job_locked(machine, job)) is not None:
        return view
    following = read_next(machine, "job")
    known = f"jobs 0 to {following - 1} are known" if following else "there are none"
    if job < following:
        known += ", and `kochi clean` deletes the files of old ones"
    raise NameNotFoundError(
        f"there is no job {job} on machine {machine.name}; {known}",
        "List them with: kochi show jobs -t",
    )


def _find_job_locked(machine: MachinePaths, job: int) -> JobView | None:
    """Find a job whose ticket moves between queue and worker as fast as the search."""
    # Before the locks are settled no process moves tickets, and a process that only reads does not
    # settle them.
    names = () if read_lock_settings(machine) is None else queue_names(machine)
    for name in names:
        with contextlib.suppress(QueueRemovedError), queue_lock(machine, name):
            entry = find_entry(machine.queue(name), job)
            if entry is not None and (view := view_entry(machine, entry)) is not None:
                return view
    return view_ended(machine, job)


def _live_jobs(machine: MachinePaths, limit: int) -> Iterator[JobView]:
    newest: list[Entry] = []
    for name in queue_names(machine):
        paths = machine.queue(name)
        newest += itertools.islice(waiting_entries(paths, newest_first=True), limit)
        newest += running_entries(paths)
    for entry in sorted(newest, key=lambda entry: entry.job, reverse=True):
        if (view := view_entry(machine, entry)) is not None:
            yield view


def _ended_jobs(machine: MachinePaths) -> Iterator[JobView]:
    for job in ended_job_numbers(machine):
        try:
            view = view_ended(machine, job)
        except DamagedFileError as error:
            _log.warning("%s", error.message)
            continue
        if view is not None:
            yield view


def list_jobs(machine: MachinePaths, ended: bool = False, limit: int = 100) -> list[JobView]:
    """The newest `limit` jobs, newest first: waiting and running ones, and ended ones with `ended`.

    The cost depends on the jobs listed, not on the jobs ever run.
    """
    views: Iterator[JobView] = _live_jobs(machine, limit)
    if ended:
        views = heapq.merge(views, _ended_jobs(machine), key=lambda view: -view.job)
    # A job is listed twice when it ended in between; the later state comes from the second listing.
    unique: dict[int, JobView] = {}
    for view in views:
        if view.job not in unique and len(unique) == limit:
            break
        unique[view.job] = view
    return list(unique.values())


def jobs_in(machine: MachinePaths, queue: str) -> list[JobView]:
    """All jobs of a queue that wait or run, by number, also if their tickets move meanwhile.

    Raises OSError and KochiError when the queue cannot be listed or locked.
    """
    entries: dict[int, Entry] = {}
    with contextlib.suppress(QueueRemovedError), queue_lock(machine, queue):
        entries = find_entries(machine.queue(queue))
    views = (_present_view(machine, queue, entry) for _, entry in sorted(entries.items()))
    return [view for view in views if view is not None]


def _present_view(machine: MachinePaths, queue: str, entry: Entry) -> JobView | None:
    """The view of a job wherever its ticket is now; None when the job has ended."""
    present: Entry | None = entry
    while present is not None:
        if (view := view_entry(machine, present)) is not None:
            return view
        # The ticket was claimed or requeued since it was listed.
        present = find_entry(machine.queue(queue), entry.job)
        if present is None and not is_there(machine.job(entry.job).result):
            with queue_lock(machine, queue):
                present = find_entry(machine.queue(queue), entry.job)
    return None


def jobs_of(
    machine: MachinePaths, controllers: Collection[str], queues: Collection[str] | None = None
) -> list[JobView]:
    """The waiting and running jobs that some controllers submitted, in all queues or in some.

    No job is missed. The call reads every ticket of these queues, and holds each queue's lock for a
    moment.
    """
    names = queue_names(machine) if queues is None else sorted(queues)
    return [
        view
        for name in (names if controllers else ())
        for view in jobs_in(machine, name)
        if view.ticket is not None and view.ticket.controller in controllers
    ]


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
        # Their workers may have died; then no other process acts on the marks.
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
    """Cancel a job in this queue; None when this queue does not contain the job."""
    if find_entry(queue, job) is None:
        return None
    with queue_lock(machine, queue.name):
        entry = find_entry(queue, job)
        return None if entry is None else _cancel_entry(machine, queue, entry)


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
