"""Jobs as people and controllers see them: finding, listing, ending and delivering them."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from snakemake_kochi.errors import DamagedFileError, NameNotFoundError
from snakemake_kochi.files import (
    LINK_REFUSED,
    answered,
    is_there,
    make_directory,
    move,
    to_json,
    write_exclusively,
)
from snakemake_kochi.locks import read_lock_settings
from snakemake_kochi.paths import JobPaths, MachinePaths, QueuePaths
from snakemake_kochi.queue.entries import (
    Entry,
    QueueRemovedError,
    controller_names,
    ended_job_numbers,
    find_entry,
    queue_lock,
    queue_names,
    read_next,
    running_entries,
    waiting_entries,
)
from snakemake_kochi.queue.result import Result, read_attempt, read_result
from snakemake_kochi.queue.ticket import Ticket, now, read_ticket
from snakemake_kochi.queue.wakeup import notify

_log = logging.getLogger(__name__)


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


def new_nonce() -> str:
    return secrets.token_hex(8)


def unexecuted_result(
    machine: MachinePaths,
    entry: Entry,
    reason: Literal["failed", "cancelled", "lost", "node failed", "timeout"],
    detail: str = "",
    node: str = "",
) -> Result:
    """The result of a ticket that ends without a completed execution."""
    return Result(
        job=entry.job,
        attempt=entry.attempt,
        nonce=new_nonce(),
        worker=entry.worker,
        node=node,
        reason=reason,
        exit_status=None,
        signal=None,
        started=None,
        ended=now(),
        log=str(machine.job(entry.job).log),
        detail=detail,
    )


def deliver(machine: MachinePaths, result: Result, controller: str) -> None:
    """Put a result into a controller's inbox and notify it.

    A controller that is gone gets nothing.
    """
    paths = machine.controller(controller)
    delivery = paths.delivery(result.job, result.nonce)
    with contextlib.suppress(FileExistsError, FileNotFoundError):
        try:
            # The delivery is a second name of the result's file, not a copy, so that there is only
            # one text.
            answered(partial(os.link, machine.job(result.job).result, delivery))
        except OSError as error:
            # Some filesystems (AFS, BeeGFS before 7) link within one directory only.
            if error.errno not in LINK_REFUSED:
                raise
            write_exclusively(delivery, to_json(result.to_dict()))
    notify(paths.wakeup)


def damaged_result(machine: MachinePaths, entry: Entry, why: str) -> Result:
    """The result that a controller gets in place of one that cannot be read.

    Its nonce is always the same, so it is reported once, however often the damage is found.
    """
    detail = f"how it ended cannot be read: {why}"
    return replace(unexecuted_result(machine, entry, "failed", detail), nonce="damaged")


def _deliver_damage(machine: MachinePaths, entry: Entry, controller: str, why: str) -> None:
    paths = machine.controller(controller)
    result = damaged_result(machine, entry, why)
    with contextlib.suppress(FileNotFoundError):  # the controller is gone
        write_exclusively(paths.delivery(entry.job, result.nonce), to_json(result.to_dict()))
    notify(paths.wakeup)


def end_ticket(machine: MachinePaths, path: Path, ticket: Ticket, result: Result) -> bool:
    """Publish the result of a ticket, notify its controller, and take it out of its queue.

    Call with the queue's lock held. Returns False when a result existed already; then the new one
    is kept beside it and ignored. If a process dies in between, the queue contains a ticket whose
    result exists; `complete` takes it out.
    """
    paths = machine.job(ticket.job)
    make_directory(paths.directory)
    content = to_json(result.to_dict())
    if not write_exclusively(paths.result, content):
        if nonce_of(paths) == result.nonce:
            # The disk was full after the link of this result; the remaining steps follow now.
            return complete(machine, path, ticket)
        write_exclusively(paths.late_result(result.nonce), content)
        complete(machine, path, ticket)
        return False
    if ticket.controller is not None:
        deliver(machine, result, ticket.controller)
    move(path, paths.ticket)
    return True


def nonce_of(paths: JobPaths) -> str | None:
    """The nonce of the result that counts; None when there is no readable result."""
    try:
        return read_result(paths.result).nonce
    except (FileNotFoundError, DamagedFileError):
        return None


def complete(machine: MachinePaths, path: Path, ticket: Ticket) -> bool:
    """Finish what a dead process began: if the ticket has a result, take it out of the queue.

    The result is delivered to the controller, perhaps again. Returns whether there was a result.
    """
    paths = machine.job(ticket.job)
    if not is_there(paths.result):
        return False
    try:
        if ticket.controller is not None:
            deliver(machine, read_result(paths.result), ticket.controller)
    except DamagedFileError as error:
        _log.warning("%s", error.message)
        assert ticket.controller is not None
        # The result is empty after a power failure, for example. Without this delivery, the
        # controller would wait for ever.
        entry = Entry(path, ticket.job, ticket.attempt)
        _deliver_damage(machine, entry, ticket.controller, error.message)
    with contextlib.suppress(FileNotFoundError):
        move(path, paths.ticket)
    return True


def set_aside(machine: MachinePaths, queue: QueuePaths, entry: Entry, why: str) -> None:
    """Take an unreadable ticket out of the queue, keep it, and publish that it failed.

    Call with the queue's lock held. Only the unreadable file names its controller, so the result is
    delivered to every controller. Each one skips jobs that are not its own.
    """
    make_directory(queue.damaged)
    kept = queue.damaged_ticket(entry.path.name, new_nonce())
    result = unexecuted_result(machine, entry, "failed", f"{why} (set aside as {kept})")
    make_directory(machine.job(entry.job).directory)
    if write_exclusively(machine.job(entry.job).result, to_json(result.to_dict())):
        for controller in controller_names(machine):
            deliver(machine, result, controller)
    with contextlib.suppress(FileNotFoundError):
        move(entry.path, kept)
    _log.warning("job %d failed: %s", entry.job, result.detail)


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
