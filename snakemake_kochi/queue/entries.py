"""The entries of a queue, its lock, and the allocation of job and worker numbers.

An entry is a ticket as a name in a directory; names are listed without opening a file. Numbers are
taken in ranges, and only one process can take each range: a range is a file,
`numbers/<kind>/<shard>/<first>.json`, and the next range begins where it ends. So two processes
that believe the same number to be free try to link the same file, and one of them fails, even if
their locks do not exclude. The counter in ids.json only tells where to begin.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import shlex
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import (
    answered,
    is_name,
    is_there,
    list_names,
    make_directory,
    parse_json,
    read_json,
    to_json,
    write_atomically,
    write_exclusively,
)
from snakemake_kochi.locks import Held, find_lock_settings
from snakemake_kochi.paths import MachinePaths, QueuePaths
from snakemake_kochi.queue.waiting import in_order, in_reverse_order, span_of

_WAITING = re.compile(r"(\d+)-([1-9]\d*)\.json")
_RUNNING = re.compile(r"(\d+)-([1-9]\d*)-(\d+)\.json")


@dataclass(frozen=True)
class Entry:
    """The file of a ticket, and the numbers in its name. `worker` is None while it waits."""

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
    names: Iterable[str] | None = None,
) -> Iterator[Entry]:
    names = _list(directory) if names is None else names
    # Names are padded, and matched one by one, so the first entry costs no match of the others.
    for name in sorted(names, reverse=newest_first):
        if (match := pattern.fullmatch(name)) and int(match[1]) not in skip:
            yield Entry(directory / name, *map(int, match.groups()))


def waiting_directories(queue: QueuePaths) -> list[str]:
    """The names of the directories of waiting tickets, in the order of the tickets."""
    return sorted(_list(queue.waiting))


def directory_entries(
    directory: Path, skip: Container[int] = (), names: Iterable[str] | None = None
) -> Iterator[Entry]:
    """The waiting tickets of one directory by job, except those of the jobs in `skip`."""
    return _entries(directory, _WAITING, skip=skip, names=names)


def waiting_entries(queue: QueuePaths, newest_first: bool = False) -> Iterator[Entry]:
    """The waiting tickets by job, one directory at a time.

    The first ticket costs the same however many there are.
    """

    def look_into(name: str) -> Iterator[Entry]:
        return _entries(queue.waiting / name, _WAITING, newest_first)

    names = waiting_directories(queue)
    return (in_reverse_order if newest_first else in_order)(names, look_into)


def running_entries(queue: QueuePaths, names: Iterable[str] | None = None) -> list[Entry]:
    """The claims of a queue; `names`: the names in their directory, if they are known."""
    return list(_entries(queue.running, _RUNNING, names=names))


def find_entry(queue: QueuePaths, job: int) -> Entry | None:
    """The ticket of a job, if this queue has it. See `find_entries`."""
    return find_entries(queue, (job,)).get(job)


def find_entries(queue: QueuePaths, jobs: Collection[int] | None = None) -> dict[int, Entry]:
    """The tickets of these jobs that this queue has, or of all its jobs (None).

    The call lists the claims twice, the directories of waiting tickets, and those of them that may
    have one of these jobs; it opens no file. Without the queue's lock, a ticket may be missed only
    if it moves twice meanwhile.
    """
    # Running tickets are listed before and after: a ticket that is requeued or claimed between two
    # listings is in one of the three.
    before = running_entries(queue)
    directories = [queue.waiting / name for name in _directories_of(queue, jobs)]
    waiting = [entry for each in directories for entry in directory_entries(each)]
    found = {entry.job: entry for entry in (*before, *waiting, *running_entries(queue))}
    return found if jobs is None else {job: found[job] for job in jobs if job in found}


def _directories_of(queue: QueuePaths, jobs: Collection[int] | None) -> list[str]:
    names = waiting_directories(queue)
    if jobs is None:
        return names
    wanted = sorted(jobs)
    return [name for name in names if (span := span_of(name)) is not None and span.has_some(wanted)]


def count_waiting(queue: QueuePaths) -> int:
    return sum(len(_list(queue.waiting / name)) for name in waiting_directories(queue))


def count_before(queue: QueuePaths, job: int) -> int:
    """How many tickets wait in front of that of a job. Reads names and opens no file."""
    count = 0
    for name in waiting_directories(queue):
        span, directory = span_of(name), queue.waiting / name
        if span is None or span.first >= job:
            continue
        if span.last < job:
            count += len(_list(directory))
        else:
            count += sum(entry.job < job for entry in directory_entries(directory))
    return count


def remove_empty(directories: Iterable[Path]) -> None:
    """Remove those of the directories of waiting tickets that are empty.

    Otherwise every claim would list them. Call with the queue's lock held, unless they are those of
    one submission each: others make a directory and then move a ticket into it.
    """
    for directory in directories:
        with contextlib.suppress(OSError):
            directory.rmdir()


def queue_names(machine: MachinePaths) -> list[str]:
    return sorted(filter(is_name, _list(machine.queues)))


def worker_numbers(machine: MachinePaths) -> list[int]:
    return sorted(int(name) for name in _list(machine.workers) if name.isdecimal())


def controller_names(machine: MachinePaths) -> list[str]:
    return sorted(filter(is_name, _list(machine.controllers)))


def ended_job_numbers(machine: MachinePaths) -> Iterator[int]:
    """The jobs that have a directory, newest first; a directory alone does not mean an end."""
    for shard in sorted(_list(machine.jobs), reverse=True):
        numbers = (int(name) for name in _list(machine.jobs / shard) if name.isdecimal())
        yield from sorted(numbers, reverse=True)


class QueueRemovedError(KochiError):
    """The queue does not exist, or not any more: its controller removed it."""


@contextlib.contextmanager
def queue_lock(machine: MachinePaths, queue: str, complain_after: float = 30.0) -> Iterator[None]:
    """Hold the lock of a queue, whose directory must exist.

    Waits as long as another process holds it, and logs that every `complain_after` seconds. The
    lock is not reentrant, and a process must not hold two queue locks, because queues share locks.
    Raises QueueRemovedError when the queue's directory does not exist, also when it was removed
    during the wait. Raises KochiError when locking is not possible.
    """
    directory = machine.queue(queue).directory
    _require(directory)
    with claim_lock(machine, queue, complain_after):
        # A queue is removed under this lock.
        _require(directory)
        yield


def claim_lock(
    machine: MachinePaths, queue: str, complain_after: float = 30.0
) -> contextlib.AbstractContextManager[Held]:
    """Hold the lock of a queue as `queue_lock`, but also that of a queue that is gone.

    A process that only moves tickets which it finds there need not ask: such a queue has none.
    """
    settings = find_lock_settings(machine)
    return settings.hold(settings.paths.queue(queue), complain_after)


@contextlib.contextmanager
def ids_lock(machine: MachinePaths, complain_after: float = 30.0) -> Iterator[None]:
    """Hold the lock of the machine's counters. Waits and raises as `queue_lock` does."""
    settings = find_lock_settings(machine)
    with settings.hold(settings.paths.ids, complain_after):
        yield


def _require(directory: Path) -> None:
    if not is_there(directory):
        raise QueueRemovedError(f"the directory of the queue does not exist: {directory}")


VERSION = 1
Kind = Literal["job", "worker"]


def read_next(machine: MachinePaths, kind: Kind) -> int:
    """The next number, according to the counter. Raises DamagedFileError if it is damaged."""
    return max(_counted(machine, kind, _read_counters(machine)), _floor(machine, kind))


def _counted(machine: MachinePaths, kind: Kind, counters: Mapping[str, Any]) -> int:
    number = counters.get(kind)
    if number is None:
        newest = _newest_range(machine, kind)
        return max(_largest_in_use(machine, kind) + 1, 0 if newest is None else _end_of(newest))
    if not isinstance(number, int) or number < 0:
        raise DamagedFileError(
            f"{machine.ids}: key '{kind}': a number from 0 was expected",
            _restart(machine),
        )
    return number


def _restart(machine: MachinePaths) -> str:
    path = shlex.quote(str(machine.ids))
    return f"To continue with the number after the largest one in use, type: rm {path}"


def _read_counters(machine: MachinePaths) -> dict[str, Any]:
    """The counters; none when the file is missing or empty.

    An empty file cannot be misread, so it is not damaged. Raises DamagedFileError.
    """
    try:
        content = answered(machine.ids.read_bytes)
    except FileNotFoundError:
        return {}
    try:
        return parse_json(content, machine.ids, VERSION) if content else {}
    except DamagedFileError as error:
        raise DamagedFileError(error.message, _restart(machine)) from error


def _largest_in_use(machine: MachinePaths, kind: Kind) -> int:
    """The largest number in use, or -1.

    A reused number would meet the files of its first owner: the result of a job, the state of a
    worker.
    """
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


def _floor(machine: MachinePaths, kind: Kind) -> int:
    try:
        return int(read_json(machine.number_floor(kind), VERSION)["next"])
    except FileNotFoundError:
        return 0
    except (KeyError, TypeError, ValueError) as error:
        path = machine.number_floor(kind)
        raise DamagedFileError(f"{path}: key 'next': a number was expected") from error


def old_ranges(machine: MachinePaths, kind: Kind) -> list[Path]:
    """All ranges of numbers but the newest one, in their order."""
    directory, found = machine.number_ranges(kind), []
    for shard in list_names(directory):
        names = (name.removesuffix(".json") for name in list_names(directory / shard))
        found += [int(name) for name in names if name.isdecimal()]
    return [machine.number_range(kind, first) for first in sorted(found)[:-1]]


def raise_floor(machine: MachinePaths, kind: Kind, ranges: Sequence[Path]) -> None:
    """Note that no number below the end of these ranges is free; then they may be deleted.

    A counter may be behind, after a power failure for example. Then the range that begins with it
    prevents that numbers are given again, or this note.
    """
    with ids_lock(machine):
        floor = _floor(machine, kind)
        # A range below the floor may have been made again by a process that was killed before it
        # saw the floor (see `_take_range`). Such a range ends among numbers of others.
        ends = (_end_of(path) for path in ranges if int(path.stem) >= floor)
        following = max((floor, *ends))
        content = to_json({"version": VERSION, "next": following})
        write_atomically(machine.number_floor(kind), content, durable=True)


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
    """The first number after that range. Raises FileNotFoundError or DamagedFileError."""
    following, first = read_json(path, VERSION).get("next"), int(path.stem)
    if not isinstance(following, int) or following <= first:
        raise DamagedFileError(f"{path}: key 'next': a number above {first} was expected")
    return following


def allocate_ids(machine: MachinePaths, kind: Kind, count: int) -> range:
    """Take `count` consecutive numbers that no other process gets; the first number is 0.

    Raises KochiError when the counter cannot be written.
    """
    try:
        return _allocate_ids(machine, kind, count)
    except OSError as error:
        raise KochiError(
            f"cannot take a {kind} number: cannot write {machine.ids}: {error.strerror}"
        ) from error


def _allocate_ids(machine: MachinePaths, kind: Kind, count: int) -> range:
    make_directory(machine.directory)
    with ids_lock(machine):
        found = _read_counters(machine)
        counters = {name: _counted(machine, name, found) for name in get_args(Kind)}
        numbers = _take_range(machine, kind, counters[kind], count)
        counters[kind] = numbers.stop
        write_atomically(machine.ids, to_json({"version": VERSION, **counters}))
    return numbers


def _take_range(machine: MachinePaths, kind: Kind, first: int, count: int) -> range:
    """Take the first free range from `first` on."""
    while True:
        path = machine.number_range(kind, first)
        content = to_json({"version": VERSION, "next": first + count})
        # Its content must be durable: a number given twice after a power failure would mix up the
        # results of two jobs. Of the names that a power failure takes, those of the tickets are
        # later ones.
        write = partial(write_exclusively, path, content, durable=True)
        try:
            is_taken = write()
        except FileNotFoundError:  # the first range of its shard
            make_directory(path.parent)
            is_taken = write()
        if is_taken:
            if first >= (floor := _floor(machine, kind)):
                return range(first, first + count)
            # These numbers were taken, and their range was deleted after the floor was raised.
            path.unlink(missing_ok=True)
            first = floor
            continue
        # The counter was behind: its lock does not exclude others, or it dates from before a power
        # failure.
        if first < (floor := _floor(machine, kind)):
            # A process made this range as above, and was killed before it could remove it. Where
            # that range ends, numbers may be taken.
            first = floor
            continue
        with contextlib.suppress(FileNotFoundError):  # removed since
            first = _end_of(path)
