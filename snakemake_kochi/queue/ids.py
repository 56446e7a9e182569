"""Numbers for jobs and workers: one counter each per machine."""

from __future__ import annotations

from typing import Literal, get_args

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import make_directory, read_json, to_json, write_atomically
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.lock import queue_lock

VERSION = 1
Kind = Literal["job", "worker"]


def read_next(machine: MachinePaths, kind: Kind) -> int:
    """The number that will be given next. Raises DamagedFileError when the counter is damaged."""
    try:
        counters = read_json(machine.ids, VERSION)
    except FileNotFoundError:
        return 0
    number = counters.get(kind, 0)
    if not isinstance(number, int) or number < 0:
        raise DamagedFileError(f"{machine.ids}: key '{kind}': a number from 0 was expected")
    return number


def allocate_ids(machine: MachinePaths, kind: Kind, count: int) -> range:
    """Take `count` consecutive numbers that nobody else gets, counted from 0."""
    make_directory(machine.directory)
    with queue_lock(machine.ids_lock):
        counters = {name: read_next(machine, name) for name in get_args(Kind)}
        first = counters[kind]
        counters[kind] = first + count
        # Durable: a number given twice after a power failure would mix up two jobs' results.
        write_atomically(machine.ids, to_json({"version": VERSION, **counters}), durable=True)
    return range(first, first + count)
