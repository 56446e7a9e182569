"""Jobs by their numbers: views of their states, finding and listing them."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from snakemake_kochi.errors import DamagedFileError, NameNotFoundError
from snakemake_kochi.files import is_there
from snakemake_kochi.locks import read_lock_settings
from snakemake_kochi.packs import JobFilter, Packs, Summary
from snakemake_kochi.paths import MachinePaths
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
from snakemake_kochi.queue.result import Result, read_attempt, read_result
from snakemake_kochi.queue.ticket import Ticket, read_ticket

if TYPE_CHECKING:
    from snakemake_kochi.packs.pack import PackedFile

_log = logging.getLogger(__name__)

_ALL = JobFilter()


@dataclass(frozen=True)
class JobView:
    """One job at one moment.

    `ticket` is None when its file is damaged, `started` and `node` are None while the job waits,
    and `result` is None until it has ended. `cancelling` is true while its processes are being
    ended.
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
    node: str | None = None


def _read_ticket_or_none(path: Path, packs: Packs | None = None) -> Ticket | None:
    try:
        return read_ticket(path) if packs is None else read_ticket(path, packs.read_json)
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
    attempt = None
    if entry.worker is not None:
        with contextlib.suppress(FileNotFoundError, DamagedFileError):
            attempt = read_attempt(paths.attempt(entry.attempt))
    return JobView(
        job=entry.job,
        state="waiting" if entry.worker is None else "running",
        ticket=None if ticket is None else ticket.with_attempt(entry.attempt),
        attempt=entry.attempt,
        worker=entry.worker,
        started=attempt.started if attempt else None,
        result=None,
        log=paths.log,
        cancelling=is_there(paths.cancel),
        node=attempt.node.host if attempt else None,
    )


def view_ended(machine: MachinePaths, job: int, packs: Packs | None = None) -> JobView | None:
    """The view of an ended job; None without a result. `packs`: what a caller uses for many jobs.

    Raises DamagedFileError when the result cannot be read, or when it may be in a pack that cannot
    be read.
    """
    paths, packs = machine.job(job), packs or Packs(machine)
    try:
        result = read_result(paths.result, packs.read_json)
    except FileNotFoundError:
        return None
    ticket = None
    with contextlib.suppress(FileNotFoundError):
        ticket = _read_ticket_or_none(paths.ticket, packs)
    return JobView(
        job=job,
        state="ended",
        ticket=None if ticket is None else ticket.with_attempt(result.attempt),
        attempt=result.attempt,
        worker=result.worker,
        started=result.started,
        result=result,
        log=paths.log,
        node=result.node,
    )


def find_job(machine: MachinePaths, job: int) -> JobView:
    """The view of a job. Raises NameNotFoundError for a number that no ticket ever got."""
    damage: DamagedFileError | None = None
    # The ticket may move from a directory not yet searched to one already searched.
    for _ in range(5):
        try:
            if (view := view_ended(machine, job)) is not None:
                return view
        except DamagedFileError as error:
            damage = error
        for name in queue_names(machine):
            entry = find_entry(machine.queue(name), job)
            if entry is not None and (view := view_entry(machine, entry)) is not None:
                return view
        if damage is not None:
            raise damage
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


def packed_log(machine: MachinePaths, job: int) -> PackedFile | None:
    """The log of a job in a pack; None if it is a file of its own, or if there is none.

    Raises DamagedFileError and OSError.
    """
    return _packed(machine, machine.job(job).log)


def packed_result(machine: MachinePaths, job: int) -> PackedFile | None:
    """The result of a job in a pack; None if it is a file of its own, or if there is none.

    Raises DamagedFileError and OSError.
    """
    return _packed(machine, machine.job(job).result)


def _packed(machine: MachinePaths, path: Path) -> PackedFile | None:
    return None if is_there(path) else Packs(machine).file(path)


def has_ended(machine: MachinePaths, job: int) -> bool:
    """Whether a job has a result, in its directory or in a pack.

    Raises DamagedFileError and OSError when that is not known now.
    """
    return Packs(machine).is_there(machine.job(job).result)


def summary_of(ticket: Ticket | None, state: str) -> Summary:
    """What lists of jobs are filtered by; the ticket is None if it is damaged."""
    if ticket is None:
        return Summary(None, None, None, None, state)
    project = ticket.labels.get("project")
    return Summary(ticket.name, ticket.queue, project, ticket.directory, state)


def _state(view: JobView) -> str:
    return view.state if view.result is None else view.result.state


def _newest_first(entry: Entry) -> int:
    return -entry.job


def _live_jobs(machine: MachinePaths, limit: int) -> Iterator[JobView]:
    newest: list[Iterable[Entry]] = []
    for name in queue_names(machine):
        paths = machine.queue(name)
        waiting = waiting_entries(paths, newest_first=True)
        # As many as are likely to be shown are listed before those that run: a ticket that is
        # claimed meanwhile is then seen. The other shards are listed if they are needed.
        first = list(itertools.islice(waiting, limit))
        newest.append(sorted(running_entries(paths), key=_newest_first))
        newest.append(itertools.chain(first, waiting))
    for entry in heapq.merge(*newest, key=_newest_first):
        if (view := view_entry(machine, entry)) is not None:
            yield view


def _ended_jobs(machine: MachinePaths, wanted: JobFilter) -> Iterator[JobView]:
    packs = Packs(machine)
    for job in packs.numbers(wanted, ended_job_numbers(machine)):
        try:
            view = view_ended(machine, job, packs)
        except DamagedFileError as error:
            _log.warning("%s", error.message)
            continue
        if view is not None:
            yield view


def list_jobs(
    machine: MachinePaths,
    ended: bool = False,
    limit: int = 100,
    wanted: JobFilter = _ALL,
) -> list[JobView]:
    """The newest `limit` wanted jobs, newest first: those that wait and run, and with `ended` also
    ended ones.

    The cost depends on the jobs that are listed, and with a filter also on those in directories of
    their own; of the packed jobs, only those that are listed are opened.
    """
    views: Iterator[JobView] = _live_jobs(machine, limit)
    if ended:
        views = heapq.merge(views, _ended_jobs(machine, wanted), key=lambda view: -view.job)
    # A job is listed twice when it ended in between; the later state comes from the second listing.
    unique: dict[int, JobView] = {}
    for view in views:
        if view.job not in unique and len(unique) == limit:
            break
        if wanted.accepts(summary_of(view.ticket, _state(view))):
            unique[view.job] = view
    return list(unique.values())


def jobs_with_tickets(machine: MachinePaths, jobs: Collection[int]) -> set[int]:
    """The jobs that have a ticket in a queue. Raises OSError and KochiError.

    A ticket outside of all queues whose job had a result before the call never comes back.
    """
    found: set[int] = set()
    is_used = read_lock_settings(machine) is not None
    for name in queue_names(machine) if jobs else ():
        look = partial(find_entries, machine.queue(name), jobs)
        if not is_used:  # no process moves tickets before the locks are settled
            found.update(look())
            continue
        with contextlib.suppress(QueueRemovedError), queue_lock(machine, name):
            found.update(look())
    return found


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
