"""How a ticket ends: its result is published and delivered once, and it leaves its queue."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import (
    LINK_REFUSED,
    answered,
    is_removed,
    is_there,
    link_exclusively,
    list_names,
    make_directory,
    move,
    show_new_files,
    to_json,
    write_exclusively,
    write_new,
)
from snakemake_kochi.paths import DRAFT, JobPaths, MachinePaths, QueuePaths
from snakemake_kochi.queue.attempt_file import AttemptFile
from snakemake_kochi.queue.entries import Entry, QueueRemovedError, controller_names
from snakemake_kochi.queue.result import Result, new_nonce, read_result
from snakemake_kochi.queue.ticket import Ticket, now
from snakemake_kochi.queue.wakeup import notify

_log = logging.getLogger(__name__)


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
    detail = f"its result cannot be read: {why}"
    return replace(unexecuted_result(machine, entry, "failed", detail), nonce="damaged")


def _deliver_damage(machine: MachinePaths, entry: Entry, controller: str, why: str) -> None:
    paths = machine.controller(controller)
    result = damaged_result(machine, entry, why)
    with contextlib.suppress(FileNotFoundError):  # the controller is gone
        write_exclusively(paths.delivery(entry.job, result.nonce), to_json(result.to_dict()))
    notify(paths.wakeup)


def end_ticket(
    machine: MachinePaths,
    path: Path,
    ticket: Ticket,
    result: Result,
    own_attempt: int | None = None,
    file: AttemptFile | None = None,
) -> bool:
    """Publish the result of a ticket, notify its controller, and take it out of its queue.

    A worker calls this with its `own_attempt`, the one that has ended, and with the `file` of that
    attempt, without the queue's lock; others call it with the lock held. The result of an attempt
    that was given up by then does not count. Returns False when it does not count, or when a result
    existed already; then the new one is kept beside it and ignored. If a process dies in between,
    the queue contains a ticket whose result exists; `complete` takes it out.
    """
    paths = machine.job(ticket.job)
    counts = (
        _publish_draft(paths, path, result, own_attempt)
        if file is None
        else _publish_attempt(file, path, paths, result)
    )
    if counts:
        if ticket.controller is not None:
            deliver(machine, result, ticket.controller)
        with contextlib.suppress(FileNotFoundError):
            move(path, paths.ticket)
        return True
    if nonce_of(paths) == result.nonce:
        # An earlier call published it, and then the disk was full, for example; the remaining steps
        # follow now.
        return complete(machine, path, ticket)
    _keep_late(paths, result, path.parent)
    complete(machine, path, ticket)
    return False


def _publish_attempt(file: AttemptFile, ticket: Path, paths: JobPaths, result: Result) -> bool:
    """Publish the result of an attempt as a second name of its file.

    Who gives up an attempt first removes that file, and then looks whether there is a result.
    """
    try:
        return file.publish(result, paths.result)
    except OSError as error:
        # Without an answer, nobody may conclude that the attempt was given up. Instead of ENOENT,
        # a filesystem may answer ESTALE for a file that another node has removed.
        if error.errno not in (errno.ENOENT, errno.ESTALE):
            raise
        if _is_deleted(paths.directory, ticket.parent):
            # If the ticket is still claimed, nobody has given the attempt up.
            return is_there(ticket) and _publish_draft(paths, ticket, result, result.attempt)
        if is_removed(paths.attempt(result.attempt)):
            return False
        raise


def _is_deleted(directory: Path, queue: Path) -> bool:
    """Whether the directory of a job was deleted; raises QueueRemovedError if the queue was."""
    if is_there(directory):
        return False
    _require(queue)
    return is_removed(directory) or not is_there(directory.parent)


def _require(queue: Path) -> None:
    if not is_there(queue):
        raise QueueRemovedError(f"the directory of the queue does not exist: {queue.parent}")


def _keep_late(paths: JobPaths, result: Result, queue: Path) -> None:
    content = to_json(result.to_dict())
    try:
        write_exclusively(paths.late_result(result.nonce), content)
    except FileNotFoundError:
        _require(queue)
        make_directory(paths.directory)
        write_exclusively(paths.late_result(result.nonce), content)


def _publish_draft(paths: JobPaths, ticket: Path, result: Result, own: int | None) -> bool:
    """Publish the result of a ticket of which no attempt has a file."""
    draft = paths.draft(result.nonce)
    _write_draft(draft, to_json(result.to_dict()), ticket.parent)
    try:
        # Who gives up an attempt writes `ended` first and then removes the drafts. So a draft that
        # was there before, and is linked nevertheless, is found by that process as a result.
        return (own is None or _goes_on(paths, own, ticket)) and _publish(draft, paths)
    finally:
        draft.unlink(missing_ok=True)


def _goes_on(paths: JobPaths, attempt: int, ticket: Path) -> bool:
    """Whether an attempt was not given up, and no later one has ended. Raises OSError.

    The files of a job that has ended may be in a pack, or deleted, that of the attempt first. An
    attempt that could not begin has none, but its ticket is still claimed.
    """
    names = list_names(paths.directory)
    if paths.ended(attempt).name in names:
        return False
    return paths.attempt(attempt).name in names or is_there(ticket)


def _write_draft(draft: Path, content: bytes, queue: Path) -> None:
    """Write a draft. If its directory is missing, it is made, unless the queue is gone, too."""
    draft_of = partial(write_new, draft, content)
    try:
        answered(draft_of)
    except FileExistsError:
        # An earlier call could not remove it.
        draft.unlink(missing_ok=True)
        answered(draft_of)
    except FileNotFoundError:
        _require(queue)
        make_directory(draft.parent)
        answered(draft_of)


def _publish(draft: Path, paths: JobPaths) -> bool:
    try:
        return link_exclusively(draft, paths.result)
    except FileNotFoundError:
        # Without an answer, nobody may conclude that the draft was withdrawn.
        if is_removed(draft):
            return False
        raise


def withdraw_attempt(paths: JobPaths, attempt: int) -> None:
    """Remove the file of an attempt, and all drafts, after `paths.ended` was written.

    After that, a result of the given-up attempt either exists or never will. Raises OSError.
    """
    answered(partial(paths.attempt(attempt).unlink, missing_ok=True))
    withdraw_drafts(paths)


def withdraw_drafts(paths: JobPaths) -> None:
    """Remove the drafts of results that were not published. Raises OSError."""
    for name in list_names(paths.directory):
        if name.startswith(DRAFT):
            (paths.directory / name).unlink(missing_ok=True)
    show_new_files(paths.directory)


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
