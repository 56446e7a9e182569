"""Submission of tickets to a queue: they are written aside, and come into waiting/ by renames."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from snakemake_kochi.files import make_directory, move, to_json, write_new
from snakemake_kochi.files.together import Together
from snakemake_kochi.paths import QueuePaths
from snakemake_kochi.queue.ticket import Ticket

# Seconds. No submission takes that long; an older file was left by a process that was killed.
_LEFTOVER_AGE = 24 * 3600.0
# So many tickets, if they are of one shard, come one by one: a directory of their own costs as many
# operations. Ten thousand submissions of one ticket would leave as many directories to look into.
_FEW = 2


@dataclass(frozen=True)
class _Step:
    """A rename that submits one ticket, or a directory of tickets with these names."""

    source: Path
    target: Path
    names: tuple[str, ...] = ()


class TicketsAside:
    """Tickets in the order of their numbers that are not in the queue yet."""

    def __init__(self, queue: QueuePaths, nonce: str, tickets: Sequence[Ticket]) -> None:
        self._queue = queue
        self._nonce = nonce
        shards = itertools.groupby(tickets, lambda ticket: queue.shard_name(ticket.job))
        self._shards = [list(group) for _, group in shards]
        self._steps: list[_Step] = []
        self._moved: list[_Step] = []

    def write(self) -> None:
        """Write the tickets aside. No lock is needed: no other process looks there."""
        together = Together()
        if len(self._shards) == 1 and len(self._shards[0]) <= _FEW:
            (few,) = self._shards
            targets = [self._queue.waiting_ticket(each.job, each.attempt) for each in few]
            self._steps = [_Step(self._aside(target.name), target) for target in targets]
            _write(together, [os.fspath(step.source) for step in self._steps], few)
            return
        for shard in self._shards:
            name = self._queue.submitted_shard(shard[0].job, shard[-1].job)
            names = tuple(self._queue.ticket_name(each.job, each.attempt) for each in shard)
            step = _Step(self._aside(name), self._queue.waiting / name, names)
            self._steps.append(step)
            make_directory(step.source)
            # Paths are strings: with ten thousand tickets pathlib takes as long as the disk.
            _write(together, [f"{step.source}/{each}" for each in names], shard)

    def _aside(self, name: str) -> Path:
        return self._queue.submission(f"{self._nonce}-{name}")

    def move_in(self) -> None:
        """Move the tickets to waiting/, all or none. Raises OSError.

        Call with the queue's lock held.
        """
        try:
            for step in self._steps:
                self._move(step)
        except BaseException:
            # No process can have claimed one of them, because this one holds the lock.
            while self._moved:
                step = self._moved.pop()
                move(step.target, step.source)
            raise

    def _move(self, step: _Step) -> None:
        """Make a step. A whole directory is one rename: the lock is held for milliseconds."""
        try:
            move(step.source, step.target)
        except OSError as error:
            if not step.names and error.errno == errno.ENOENT:
                # No ticket of its shard waits that came one by one.
                make_directory(step.target.parent)
                move(step.source, step.target)
            elif step.names and error.errno == errno.EXDEV:
                # The filesystem cannot rename directories.
                for name in step.names:
                    shard = self._queue.waiting / step.target.name.partition("-")[0]
                    self._move(_Step(step.source / name, shard / name))
                return
            else:
                raise
        self._moved.append(step)

    def discard(self) -> None:
        """Remove what is still aside."""
        moved = set(self._moved)
        for step in self._steps:
            if step in moved:
                continue
            if step.names:
                shutil.rmtree(step.source, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    step.source.unlink(missing_ok=True)


@contextlib.contextmanager
def written_aside(
    queue: QueuePaths, nonce: str, tickets: Sequence[Ticket]
) -> Iterator[TicketsAside]:
    """Tickets that are written, to be moved in; what is left of them goes at the end.

    Raises OSError.
    """
    written = TicketsAside(queue, nonce, tickets)
    try:
        written.write()
        yield written
    finally:
        written.discard()


def _write(together: Together, paths: Sequence[str], tickets: Sequence[Ticket]) -> None:
    pairs = zip(paths, tickets, strict=True)
    together.all([partial(_write_ticket, path, ticket) for path, ticket in pairs])


def _write_ticket(path: str, ticket: Ticket) -> None:
    content = to_json(ticket.to_dict())
    try:
        write_new(path, content)
    except FileNotFoundError:  # the first tickets of the queue
        make_directory(Path(path).parent)
        write_new(path, content)


def remove_leftovers(queue: QueuePaths) -> None:
    """Remove the files of submissions that were killed; call after another one was written.

    All times come from the file server, so the clock of a node does not matter.
    """
    with contextlib.suppress(OSError):
        newest = queue.submissions.stat().st_mtime
        for other in queue.submissions.iterdir():
            with contextlib.suppress(OSError):  # it was just handed over, for example
                _remove_if_old(other, newest)


def _remove_if_old(other: Path, newest: float) -> None:
    if other.lstat().st_mtime >= newest - _LEFTOVER_AGE:
        return
    if other.is_dir():
        shutil.rmtree(other, ignore_errors=True)
    else:
        other.unlink(missing_ok=True)
