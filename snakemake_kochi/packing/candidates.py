"""Which jobs of a shard may be packed: nothing waits for them, and nothing is about to write there.

The order of the looks is that of a clean-up (`cleaning/jobs.py`): first the results, then the
queues under their locks for jobs without a ticket beside the result, then the controllers. So no
ticket of such a job comes back, and no run will ask for its end.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import answered, list_names, modified, parse_json
from snakemake_kochi.packs import Summary
from snakemake_kochi.paths import DRAFT, JobPaths, MachinePaths, original_path
from snakemake_kochi.queue import Result, Ticket, summary_of
from snakemake_kochi.queue import result as results
from snakemake_kochi.queue import ticket as tickets
from snakemake_kochi.queue.entries import controller_names
from snakemake_kochi.queue.jobs import jobs_with_tickets

# So many of the jobs that a person may look for keep their directories for a day.
_KEPT = 32
DAY = 24 * 3600.0  # seconds
# Bytes. A job with a larger file stays as it is: its log is read from the end, and followed.
_LARGEST = 4 << 20
# Bytes. Larger files are read when they are packed.
_READ_NOW = 1 << 16
# Seconds. An older temporary file was left by a process that was killed.
_LEFTOVER_AGE = 3600.0


@dataclass(frozen=True)
class JobFile:
    """A file of a job. `content` is None for a large one."""

    path: Path
    size: int
    modified_ns: int
    content: bytes | None


@dataclass(frozen=True)
class Candidate:
    """An ended job, with its files in its directory.

    `result` and `ticket` are None if they are packed, missing or damaged.
    """

    directory: Path
    files: Mapping[str, JobFile]
    leftovers: tuple[Path, ...]
    result: Result | None
    ticket: Ticket | None

    @property
    def job(self) -> int:
        return JobPaths(self.directory).number

    @property
    def summary(self) -> Summary:
        # A result that cannot be read counts as failed.
        return summary_of(self.ticket, self.result.state if self.result else "failed")

    @property
    def ended(self) -> float:
        """When the last of its files was written, in seconds since the epoch."""
        return max((file.modified_ns for file in self.files.values()), default=0) / 1e9

    @property
    def is_sought(self) -> bool:
        """Whether a person may look for its log by the path in a message, or a process that was
        presumed dead may still write it."""
        result = self.result
        return result is not None and (result.state == "failed" or result.attempt > 1)


@dataclass
class Keeping:
    """Which jobs keep their directories for a while: the newest sought ones. `now`: the time of
    the file server, in seconds since the epoch."""

    now: float
    left: int = _KEPT

    def keeps(self, candidate: Candidate) -> bool:
        if not candidate.is_sought or candidate.ended < self.now - DAY or not self.left:
            return False
        self.left -= 1
        return True

    def is_old(self, candidate: Candidate) -> bool:
        return candidate.ended < self.now - DAY


@dataclass(frozen=True)
class Selection:
    """The jobs of a shard to pack now, and whether other jobs with a directory go on."""

    chosen: tuple[Candidate, ...]
    has_others: bool


def select(
    machine: MachinePaths,
    directory: Path,
    packed: Collection[int],
    keeping: Keeping,
    executor: Executor,
) -> Selection:
    """The jobs in the directory of a shard that may be packed; `packed` are in a pack already.

    Raises OSError and KochiError.
    """
    numbers = sorted((int(n) for n in list_names(directory) if n.isdecimal()), reverse=True)
    look = partial(_look_at, directory, packed, keeping.now)
    found = [candidate for candidate in executor.map(look, numbers) if candidate is not None]
    without = [each.job for each in found if "ticket.json" not in each.files]
    live = jobs_with_tickets(machine, [job for job in without if job not in packed])
    controllers = {*controller_names(machine), *_moved_aside(machine.controllers)}
    over = [each for each in found if each.job not in live]
    ended = [
        each
        for each in over
        if not _is_awaited(each, packed, controllers) and not _is_ending(each, packed, keeping.now)
    ]
    chosen = tuple(each for each in ended if not keeping.keeps(each))
    return Selection(chosen, has_others=len(ended) < len(numbers))


def _moved_aside(directory: Path) -> Iterator[str]:
    """The names of what a clean-up has moved aside, which it may put back."""
    for name in list_names(directory):
        if (original := original_path(directory / name)) is not None:
            yield original.name


def _is_ending(candidate: Candidate, packed: Collection[int], now: float) -> bool:
    """Whether the ticket of a job may just be on its way from its queue into the directory."""
    is_complete = candidate.ticket is not None or candidate.job in packed
    return not is_complete and candidate.ended > now - _LEFTOVER_AGE


def _is_awaited(
    candidate: Candidate, packed: Collection[int], controllers: Collection[str]
) -> bool:
    """Whether a controller, or the next one of its directory, may want to know how it ended."""
    if candidate.ticket is None:
        return candidate.job not in packed and bool(controllers)
    return candidate.ticket.controller in controllers


def _look_at(directory: Path, packed: Collection[int], now: float, job: int) -> Candidate | None:
    """A job that has ended; None for another one, and for one that stays as it is."""
    paths = JobPaths(directory / str(job))
    names = list_names(paths.directory)
    if paths.result.name not in names and job not in packed:
        return None
    files: dict[str, JobFile] = {}
    leftovers = []
    try:
        for name in sorted(names):
            file = _read(paths.directory / name)
            if not name.startswith("."):
                files[name] = file
            elif _is_temporary(name) and file.modified_ns / 1e9 < now - _LEFTOVER_AGE:
                leftovers.append(file.path)
            elif not name.startswith(".nfs"):  # a file that a process of this node has open
                return None
    except (FileNotFoundError, _UnusualFileError):
        return None
    result = ticket = None
    if (content := _content(files, paths.result)) is not None:
        with contextlib.suppress(DamagedFileError):
            data = parse_json(content, paths.result, results.VERSION)
            result = Result.from_dict(data, paths.result)
        is_new = result is None and modified(paths.directory) > now - _LEFTOVER_AGE
        if is_new and results.is_of_attempt(content):
            return None  # this node may not see yet what its worker has added
    if (content := _content(files, paths.ticket)) is not None:
        with contextlib.suppress(DamagedFileError):
            data = parse_json(content, paths.ticket, tickets.VERSION)
            ticket = Ticket.from_dict(data, paths.ticket)
    return Candidate(paths.directory, files, tuple(leftovers), result, ticket)


def _is_temporary(name: str) -> bool:
    """Whether only the process that wrote a file needs it: no other one reads a draft."""
    return name.endswith(".tmp") or name.startswith(DRAFT)


def _content(files: Mapping[str, JobFile], path: Path) -> bytes | None:
    file = files.get(path.name)
    if file is None or file.content is not None or file.size > _LARGEST:
        return None if file is None else file.content
    return answered(path.read_bytes)


class _UnusualFileError(Exception):
    """A file that is not packed."""


def _read(path: Path) -> JobFile:
    """Look at a file; its content comes with it if it is small. Raises OSError."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = answered(partial(os.open, path, flags))
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise _UnusualFileError from error  # a link, a socket
    with open(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            raise _UnusualFileError
        content = stream.read() if status.st_size <= _READ_NOW else None
    size = status.st_size if content is None else len(content)
    return JobFile(path, size, status.st_mtime_ns, content)


def in_order(candidates: Collection[Candidate]) -> Iterator[tuple[Candidate, str, JobFile]]:
    """Each file of these jobs, by number and name."""
    for candidate in sorted(candidates, key=lambda each: each.job):
        for name, file in sorted(candidate.files.items()):
            yield candidate, name, file
