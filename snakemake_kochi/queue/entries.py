"""The tickets of a queue as names in directories: listed without opening a file."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from snakemake_kochi.files import is_name
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
    try:
        return [name for name in os.listdir(directory) if not name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _entries(
    directory: Path,
    pattern: re.Pattern[str],
    newest_first: bool = False,
    skip: Collection[str] = (),
) -> Iterator[Entry]:
    # Names are padded, and matched one by one: whoever wants the first need not pay for all.
    names = [name for name in _list(directory) if name not in skip]
    for name in sorted(names, reverse=newest_first):
        if match := pattern.fullmatch(name):
            yield Entry(directory / name, *map(int, match.groups()))


def waiting_shards(queue: QueuePaths) -> list[str]:
    """The names of the directories of waiting tickets, in the order of the tickets."""
    return sorted(_list(queue.waiting))


def shard_entries(shard: Path, skip: Collection[str] = ()) -> Iterator[Entry]:
    """The waiting tickets of one directory, in their order, without some files."""
    return _entries(shard, _WAITING, skip=skip)


def waiting_entries(queue: QueuePaths, newest_first: bool = False) -> Iterator[Entry]:
    """The waiting tickets in their order, one shard at a time: the first costs the same however
    many there are."""
    for shard in sorted(_list(queue.waiting), reverse=newest_first):
        yield from _entries(queue.waiting / shard, _WAITING, newest_first)


def running_entries(queue: QueuePaths) -> list[Entry]:
    return list(_entries(queue.running, _RUNNING))


def find_entry(queue: QueuePaths, job: int) -> Entry | None:
    """The ticket of that job, if this queue has it. Reads two directories, opens no file."""
    waiting = _entries(queue.waiting_shard(job), _WAITING)
    candidates = itertools.chain(waiting, _entries(queue.running, _RUNNING))
    return next((entry for entry in candidates if entry.job == job), None)


def find_entries(queue: QueuePaths, jobs: Collection[int]) -> dict[int, Entry]:
    """Those of the jobs whose ticket this queue has. Lists a directory for each shard of them and
    one more, opens no file."""
    wanted = set(jobs)
    shards = {queue.waiting_shard(job) for job in wanted}
    entries = [entry for shard in shards for entry in _entries(shard, _WAITING)]
    entries += _entries(queue.running, _RUNNING)
    return {entry.job: entry for entry in entries if entry.job in wanted}


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
