"""Numbers for jobs and workers: taken in ranges, each of which one process alone can take.

A range is a file, `numbers/<kind>/<shard>/<first>.json`, and the next one begins where it ends. So
two processes that believe the same number to be free try to link the same file, and one fails,
whatever their locks are worth. The counter in ids.json only says where to begin.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import (
    answered,
    list_names,
    make_directory,
    read_json,
    to_json,
    write_atomically,
    write_exclusively,
)
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.entries import (
    Entry,
    ended_job_numbers,
    queue_names,
    running_entries,
    waiting_entries,
    worker_numbers,
)
from snakemake_kochi.queue.lock import ids_lock

VERSION = 1
Kind = Literal["job", "worker"]


def read_next(machine: MachinePaths, kind: Kind) -> int:
    """The number that will be given next, as far as the counter says. Raises DamagedFileError when
    it is damaged."""
    try:
        number = _read_counters(machine).get(kind)
    except DamagedFileError as error:
        raise DamagedFileError(
            error.message,
            f"Remove {machine.ids}: numbers then go on after the largest that is in use.",
        ) from error
    if number is None:
        newest = _newest_range(machine, kind)
        return max(_largest_in_use(machine, kind) + 1, 0 if newest is None else _end_of(newest))
    if not isinstance(number, int) or number < 0:
        raise DamagedFileError(
            f"{machine.ids}: key '{kind}': a number from 0 was expected",
            f"Remove {machine.ids}: numbers then go on after the largest that is in use.",
        )
    return number


def _read_counters(machine: MachinePaths) -> dict[str, Any]:
    """Nothing when the file is not there, or empty: in an empty one is nothing to misread."""
    try:
        is_empty = answered(machine.ids.stat).st_size == 0
        return {} if is_empty else read_json(machine.ids, VERSION)
    except FileNotFoundError:
        return {}


def _largest_in_use(machine: MachinePaths, kind: Kind) -> int:
    """-1 when there is none. Given again, a number would meet what its first owner left: a job
    its result, a worker its state."""
    queues = [machine.queue(name) for name in queue_names(machine)]
    running = [entry for queue in queues for entry in running_entries(queue)]
    if kind == "worker":
        holders = (entry.worker for entry in running if entry.worker is not None)
        return max((*worker_numbers(machine), *holders), default=-1)
    newest: Iterator[Entry] = (
        entry
        for queue in queues
        for entry in itertools.islice(waiting_entries(queue, newest_first=True), 1)
    )
    jobs = (entry.job for entry in (*running, *newest))
    return max((*jobs, *itertools.islice(ended_job_numbers(machine), 1)), default=-1)


def _newest_range(machine: MachinePaths, kind: Kind) -> Path | None:
    directory = machine.number_ranges(kind)
    for shard in sorted(list_names(directory), reverse=True):
        firsts = [
            int(name.removesuffix(".json"))
            for name in list_names(directory / shard)
            if name.removesuffix(".json").isdecimal()
        ]
        if firsts:
            return machine.number_range(kind, max(firsts))
    return None


def _end_of(path: Path) -> int:
    """The first number that is not of that range. Raises FileNotFoundError, DamagedFileError."""
    following, first = read_json(path, VERSION).get("next"), int(path.stem)
    if not isinstance(following, int) or following <= first:
        raise DamagedFileError(f"{path}: key 'next': a number above {first} was expected")
    return following


def allocate_ids(machine: MachinePaths, kind: Kind, count: int) -> range:
    """Take `count` consecutive numbers that nobody else gets, counted from 0.

    Raises KochiError when the counter cannot be written.
    """
    try:
        return _allocate_ids(machine, kind, count)
    except OSError as error:
        raise KochiError(
            f"no {kind} number can be given: cannot write {machine.ids}: {error.strerror}"
        ) from error


def _allocate_ids(machine: MachinePaths, kind: Kind, count: int) -> range:
    make_directory(machine.directory)
    with ids_lock(machine):
        counters = {name: read_next(machine, name) for name in get_args(Kind)}
        numbers = _take_range(machine, kind, counters[kind], count)
        counters[kind] = numbers.stop
        write_atomically(machine.ids, to_json({"version": VERSION, **counters}))
    return numbers


def _take_range(machine: MachinePaths, kind: Kind, first: int, count: int) -> range:
    """The first range from `first` on that nobody has taken."""
    while True:
        path = machine.number_range(kind, first)
        make_directory(path.parent)
        content = to_json({"version": VERSION, "next": first + count})
        # Durable: a number given twice after a power failure would mix up two jobs' results.
        if write_exclusively(path, content, durable=True):
            return range(first, first + count)
        # The counter was behind: its lock keeps nobody out, or it is from before a power failure.
        first = _end_of(path)
