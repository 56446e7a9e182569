"""The tickets of a queue as names in directories: listed without opening a file."""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterator
from dataclasses import dataclass
from pathlib import Path

from snakemake_kochi.files import is_name, list_names
from snakemake_kochi.paths import MachinePaths, QueuePaths

_WAITING = re.compile(r"(\d+)-([1-9]\d*)\.json")
_RUNNING = re.compile(r"(\d+)-([1-9]\d*)-(\d+)\.json")


@dataclass(frozen=True)
class Entry:
    """A ticket's place: the file, and what its name tells. `worker` is None while it waits."""

    path: Path
    job: int
    attempt: int
    worker: int | None = None


def _list(directory: Path) -> list[str]:
    return [name for name in list_names(directory) if not name.startswith(".")]


def _entries(
    directory: Path,
    pattern: re.Pattern[str],
    newest_first: bool = False,
    skip: Container[int] = (),
) -> Iterator[Entry]:
    # Names are padded, and matched one by one: whoever wants the first need not pay for all.
    for name in sorted(_list(directory), reverse=newest_first):
        if (match := pattern.fullmatch(name)) and int(match[1]) not in skip:
            yield Entry(directory / name, *map(int, match.groups()))


def waiting_shards(queue: QueuePaths) -> list[str]:
    """The names of the directories of waiting tickets, in the order of the tickets."""
    return sorted(_list(queue.waiting))


def shard_entries(shard: Path, skip: Container[int] = ()) -> Iterator[Entry]:
    """The waiting tickets of one directory, in their order, without those of some jobs."""
    return _entries(shard, _WAITING, skip=skip)


def waiting_entries(queue: QueuePaths, newest_first: bool = False) -> Iterator[Entry]:
    """The waiting tickets in their order, one shard at a time: the first costs the same however
    many there are."""
    for shard in sorted(_list(queue.waiting), reverse=newest_first):
        yield from _entries(queue.waiting / shard, _WAITING, newest_first)


def running_entries(queue: QueuePaths) -> list[Entry]:
    return list(_entries(queue.running, _RUNNING))


def find_entry(queue: QueuePaths, job: int) -> Entry | None:
    """The ticket of that job, if this queue has it. See `find_entries`."""
    return find_entries(queue, (job,)).get(job)


def find_entries(queue: QueuePaths, jobs: Collection[int] | None = None) -> dict[int, Entry]:
    """The tickets of those of the jobs that this queue has, or of all (None). Lists a directory for
    each shard of them and one more, opens no file.

    Without the queue's lock one may be missed only if it moves twice meanwhile.
    """
    if jobs is None:
        shards = [queue.waiting / shard for shard in _list(queue.waiting)]
    else:
        shards = [queue.waiting / name for name in {queue.shard_name(job) for job in jobs}]
    # Before and after: what is requeued, or claimed, between two listings is in one of the three.
    before = running_entries(queue)
    waiting = [entry for shard in shards for entry in _entries(shard, _WAITING)]
    found = {entry.job: entry for entry in (*before, *waiting, *running_entries(queue))}
    return found if jobs is None else {job: found[job] for job in jobs if job in found}


def count_waiting(queue: QueuePaths) -> int:
    return sum(len(_list(queue.waiting / shard)) for shard in _list(queue.waiting))


def count_before(queue: QueuePaths, job: int) -> int:
    """How many tickets wait before that of a job. Reads names and opens no file."""
    own = queue.waiting_shard(job)
    shards = [queue.waiting / shard for shard in _list(queue.waiting) if shard < own.name]
    before = sum(entry.job < job for entry in _entries(own, _WAITING))
    return before + sum(len(_list(shard)) for shard in shards)


def has_waiting(queue: QueuePaths) -> bool:
    return next(waiting_entries(queue), None) is not None


def queue_names(machine: MachinePaths) -> list[str]:
    return sorted(filter(is_name, _list(machine.queues)))


def worker_numbers(machine: MachinePaths) -> list[int]:
    return sorted(int(name) for name in _list(machine.workers) if name.isdecimal())


def controller_names(machine: MachinePaths) -> list[str]:
    return sorted(filter(is_name, _list(machine.controllers)))


def ended_job_numbers(machine: MachinePaths) -> Iterator[int]:
    """The jobs that have a directory, newest first; a directory alone does not mean it ended."""
    for shard in sorted(_list(machine.jobs), reverse=True):
        numbers = (int(name) for name in _list(machine.jobs / shard) if name.isdecimal())
        yield from sorted(numbers, reverse=True)
