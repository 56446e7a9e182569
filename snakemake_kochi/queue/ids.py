"""Numbers for jobs and workers: one counter each per machine."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Literal, get_args

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import make_directory, read_json, to_json, write_atomically
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
    """The number that will be given next. Raises DamagedFileError when the counter is damaged."""
    try:
        number = _read_counters(machine).get(kind)
    except DamagedFileError as error:
        raise DamagedFileError(
            error.message,
            f"Remove {machine.ids}: numbers then go on after the largest that is in use.",
        ) from error
    if number is None:
        return _largest_in_use(machine, kind) + 1
    if not isinstance(number, int) or number < 0:
        raise DamagedFileError(
            f"{machine.ids}: key '{kind}': a number from 0 was expected",
            f"Remove {machine.ids}: numbers then go on after the largest that is in use.",
        )
    return number


def _read_counters(machine: MachinePaths) -> dict[str, Any]:
    """Nothing when the file is not there, or empty: in an empty one is nothing to misread."""
    try:
        return read_json(machine.ids, VERSION) if machine.ids.stat().st_size else {}
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
        first = counters[kind]
        counters[kind] = first + count
        # Durable: a number given twice after a power failure would mix up two jobs' results.
        write_atomically(machine.ids, to_json({"version": VERSION, **counters}), durable=True)
    return range(first, first + count)
