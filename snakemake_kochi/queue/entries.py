"""The tickets of a queue as names in directories: listed without opening a file."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
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
    directory: Path, pattern: re.Pattern[str], newest_first: bool = False
) -> Iterator[Entry]:
    matches = filter(None, map(pattern.fullmatch, _list(directory)))
    found = [(tuple(map(int, match.groups())), match.string) for match in matches]
    for numbers, name in sorted(found, reverse=newest_first):
        # Only now: whoever wants the first of a shard need not pay for the paths of all.
        yield Entry(directory / name, *numbers)


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


def count_waiting(queue: QueuePaths) -> int:
    return sum(len(_list(queue.waiting / shard)) for shard in _list(queue.waiting))


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
