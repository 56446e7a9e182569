"""Jobs that have ended: their tickets, attempts, logs and results; and the ranges of their numbers.

A job goes if its result is old, no queue has its ticket, and the controller that submitted it has
ended in good order. The result is read first, then the queues under their locks, then the
controllers. A ticket that is in no queue after its result was seen never comes back, and a
controller that does not exist after its ticket was seen never exists again. So nothing can begin to
need the job meanwhile, and no lock is held while files are deleted. At last the result is read
again: a job that had none may run for days, and end before the queues are listed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping
from typing import get_args

from snakemake_kochi.cleaning.removal import LEFTOVER_AGE, Removal
from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import answered, list_names, show_new_files
from snakemake_kochi.locks import read_lock_settings
from snakemake_kochi.paths import SHARD, JobPaths, MachinePaths
from snakemake_kochi.project.clean_rules import Rules
from snakemake_kochi.queue import QueueRemovedError, queue_lock
from snakemake_kochi.queue.entries import (
    Kind,
    controller_names,
    find_entries,
    old_ranges,
    queue_names,
    raise_floor,
)
from snakemake_kochi.queue.jobs import jobs_with_tickets
from snakemake_kochi.queue.ticket import Ticket, read_ticket


def clean_jobs(
    machine: MachinePaths, rules: Rules, removal: Removal, needed: Collection[int]
) -> None:
    """Delete ended jobs. `needed` are jobs that others need (see `artifacts`)."""
    for name in sorted(list_names(machine.jobs)):
        if name.isdecimal():
            with removal.tolerating(f"jobs in {machine.jobs / name}"):
                _clean_shard(machine, int(name), rules, removal, needed)
    for kind in get_args(Kind):
        with removal.tolerating(f"ranges of {kind} numbers"):
            _clean_ranges(machine, kind, rules, removal)


def _clean_shard(
    machine: MachinePaths, shard: int, rules: Rules, removal: Removal, needed: Collection[int]
) -> None:
    directory = machine.job(shard * SHARD).directory.parent
    removal.check_time()
    removal.sweep(directory)
    numbers = sorted(int(name) for name in list_names(directory) if name.isdecimal())
    ended = dict(_ended(machine, numbers, rules, removal))
    if ended:
        live = jobs_with_tickets(machine, list(ended))
        controllers = {
            name
            for name in controller_names(machine)
            if machine.controller(name).directory not in removal.gone
        }
        for job, ticket in ended.items():
            if job in live or job in needed or _is_awaited(ticket, controllers):
                continue
            # A job that had no result may have ended before the queues were listed. Its directory
            # is listed, because a client of NFS believes for a minute that the result is missing.
            show_new_files(machine.job(job).directory)
            if not _has_ended_before(machine.job(job), removal.now - rules.jobs, removal.now):
                continue
            if not rules.keeps("jobs", (str(job), *((ticket.name,) if ticket else ()))):
                removal.remove("jobs", machine.job(job).directory)
    if not removal.is_dry:
        # Fails while it has files; `make_directory` copes with the rest.
        with contextlib.suppress(OSError):
            os.rmdir(directory)


def _ended(
    machine: MachinePaths, numbers: Collection[int], rules: Rules, removal: Removal
) -> Iterator[tuple[int, Ticket | None]]:
    """The jobs that ended long ago, with their tickets if these can be read."""
    for job in numbers:
        paths = machine.job(job)
        if not _has_ended_before(paths, removal.now - rules.jobs, removal.now):
            continue
        ticket = None
        with contextlib.suppress(FileNotFoundError, DamagedFileError):
            ticket = read_ticket(paths.ticket)
        yield job, ticket


def _has_ended_before(paths: JobPaths, moment: float, now: float) -> bool:
    """Whether a job ended before a moment, and is still there. Raises OSError."""
    try:
        return answered(paths.result.stat).st_mtime <= moment
    except FileNotFoundError:
        pass
    # Of a job that was deleted, a worker that was long presumed dead has left a late result.
    try:
        return answered(paths.directory.stat).st_mtime <= min(moment, now - LEFTOVER_AGE)
    except FileNotFoundError:
        return False


def _is_awaited(ticket: Ticket | None, controllers: Collection[str]) -> bool:
    """Whether a controller, or the next one of its directory, may want to know how a job ended."""
    if ticket is None:
        return bool(controllers)
    return ticket.controller in controllers


def _clean_ranges(machine: MachinePaths, kind: Kind, rules: Rules, removal: Removal) -> None:
    directory, age = machine.number_ranges(kind), max(rules.jobs, LEFTOVER_AGE)
    for shard in (directory, *(directory / name for name in list_names(directory))):
        removal.sweep(shard)
    old = []
    for path in old_ranges(machine, kind):
        if removal.now - answered(path.stat).st_mtime < age:
            break
        old.append(path)
    if not old:
        return
    if not removal.is_dry:
        raise_floor(machine, kind, old)
    for path in old:
        removal.remove("leftovers", path)
        if not removal.is_dry:
            with contextlib.suppress(OSError):
                os.rmdir(path.parent)


def all_tickets(machine: MachinePaths) -> Iterator[Ticket]:
    """The tickets that wait or run. Raises OSError and KochiError for one that cannot be read."""
    if read_lock_settings(machine) is None:
        return  # it was never used
    for name in queue_names(machine):
        entries: Mapping[int, object] = {}
        with contextlib.suppress(QueueRemovedError), queue_lock(machine, name):
            entries = find_entries(machine.queue(name))
        yield from filter(None, (_read(machine, name, job) for job in entries))


def _read(machine: MachinePaths, queue: str, job: int) -> Ticket | None:
    """The ticket of a job, wherever it is now; None if it has ended, or was never readable."""
    for _ in range(5):
        entry = find_entries(machine.queue(queue), (job,)).get(job)
        if entry is None:
            break
        with contextlib.suppress(FileNotFoundError, DamagedFileError):
            return read_ticket(entry.path)
    return None
