"""Handing tickets over: written aside, as long as it takes, then moved into the queue at once."""

from __future__ import annotations

import contextlib
import errno
import itertools
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from snakemake_kochi.files import make_directory, move, to_json, write_new
from snakemake_kochi.paths import QueuePaths
from snakemake_kochi.queue.ticket import Ticket

# Seconds. No submission takes that long; what is older was left by a process that was killed.
_LEFTOVER_AGE = 24 * 3600.0


@contextlib.contextmanager
def written_aside(queue: QueuePaths, nonce: str, tickets: Sequence[Ticket]) -> Iterator[Path]:
    """The tickets, in the order of their numbers, in shards of a directory of their own, which is
    removed at the end. Needs no lock: nobody looks there. Raises OSError."""
    aside = queue.submission(nonce)
    make_directory(aside)
    try:
        for shard, group in itertools.groupby(tickets, lambda ticket: queue.shard_name(ticket.job)):
            directory = make_directory(aside / shard)
            for ticket in group:
                # Texts: with ten thousand tickets pathlib takes as long as the disk.
                path = f"{directory}/{queue.ticket_name(ticket.job, ticket.attempt)}"
                write_new(path, to_json(ticket.to_dict()))
        yield aside
    finally:
        _remove_leftovers(queue, aside)
        shutil.rmtree(aside, ignore_errors=True)


def move_in(queue: QueuePaths, aside: Path) -> None:
    """Make the tickets wait, all or none; call with the queue's lock held. Raises OSError."""
    moved: list[tuple[Path, Path]] = []
    try:
        for source in sorted(aside.iterdir()):
            target = queue.waiting / source.name
            if _move_shard(source, target):
                moved.append((source, target))
                continue
            make_directory(target)
            for ticket in sorted(source.iterdir()):
                move(ticket, target / ticket.name)
                moved.append((ticket, target / ticket.name))
    except BaseException:
        # Nobody can have claimed one of them: the lock is held.
        for source, target in reversed(moved):
            move(target, source)
        raise


def _move_shard(source: Path, target: Path) -> bool:
    """A whole directory by one rename: so the lock is held for milliseconds, however many tickets
    there are. Not where there is one already with tickets in it, nor where a filesystem has no
    rename for directories (EXDEV)."""
    try:
        move(source, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EXDEV):
            raise
        return False
    return True


def _remove_leftovers(queue: QueuePaths, own: Path) -> None:
    """What submissions that were killed left behind. Both times are the file server's: no clock of
    a node comes into it."""
    with contextlib.suppress(OSError):
        newest = own.stat().st_mtime
        for other in queue.submissions.iterdir():
            if other.stat().st_mtime < newest - _LEFTOVER_AGE:
                shutil.rmtree(other, ignore_errors=True)
