"""Claims of tickets that are read afterwards, so that nobody waits for the lock meanwhile.

A claim is a rename, and needs no look into the ticket. Where the last tickets of a queue were all
taken, the next ones are probably like them. A ticket that is not taken after all goes back to its
place, as a claim that did not begin.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import is_there, list_names, make_directory, move
from snakemake_kochi.files.together import Together
from snakemake_kochi.paths import MachinePaths, QueuePaths
from snakemake_kochi.queue.ending import (
    complete,
    end_ticket,
    set_aside,
    unexecuted_result,
)
from snakemake_kochi.queue.entries import (
    Entry,
    directory_entries,
    queue_lock,
    remove_empty,
    waiting_directories,
)
from snakemake_kochi.queue.recovery import give_up
from snakemake_kochi.queue.ticket import Ticket, read_ticket
from snakemake_kochi.queue.waiting import in_order, span_of
from snakemake_kochi.queue.wakeup import notify_subscribers, subscribers

_log = logging.getLogger(__name__)

# Waiting tickets that are counted, to leave others their share of the last ones.
_COUNTED = 128
# Seconds until a new submission, or a ticket that another process has put back, is seen while there
# are others.
_LIST_INTERVAL = 1.0
_SERVING_INTERVAL = 5.0  # seconds between two looks at who serves the queue


class BegunJobs:
    """The jobs that have a directory: only they can have a result, or an order to cancel them.

    Lists the directories of a shard once, instead of two questions for each ticket.
    """

    def __init__(self, machine: MachinePaths) -> None:
        self._machine = machine
        self._shards: dict[Path, frozenset[str]] = {}

    def has(self, job: int) -> bool:
        """Whether there was a directory at the first call for a job of that shard."""
        directory = self._machine.job(job).directory
        shard = directory.parent
        if shard not in self._shards:
            self._shards[shard] = frozenset(list_names(shard))
        return directory.name in self._shards[shard]


def read_open(machine: MachinePaths, entry: Entry, begun: BegunJobs) -> Ticket | None:
    """Read a ticket that waits or is claimed; None if it is gone, has ended, or is ended here.

    It has ended if a process was killed while it ended the ticket, and is ended if it was
    cancelled. Call with the queue's lock held. Raises OSError or DamagedFileError.
    """
    ticket = read_entry(entry)
    if ticket is None or not begun.has(entry.job):
        return ticket
    if complete(machine, entry.path, ticket):
        return None
    if is_there(machine.job(entry.job).cancel):
        result = unexecuted_result(machine, entry, "cancelled")
        end_ticket(machine, entry.path, ticket, result)
        return None
    return ticket


def read_entry(entry: Entry) -> Ticket | None:
    """Read a ticket; None if it is gone. Raises OSError or DamagedFileError."""
    try:
        ticket = read_ticket(entry.path).with_attempt(entry.attempt)
    except FileNotFoundError:
        return None
    if ticket.job != entry.job:
        raise DamagedFileError(f"{entry.path}: key 'job': {ticket.job} instead of {entry.job}")
    return ticket


class UnreadClaims:
    """Claims tickets of one queue for one worker before they are read."""

    def __init__(
        self, machine: MachinePaths, queue: QueuePaths, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._machine = machine
        self._queue = queue
        self._clock = clock
        self._serving = 1
        self._directories: list[str] = []  # those that may have a ticket, in their order
        self._list_due = 0.0
        self._look_due = 0.0
        self._together = Together()

    def has_some(self) -> bool:
        """Whether a ticket may wait; looks again at what waits and who serves if that is due."""
        if self._clock() >= self._look_due:
            self._look_due = self._clock() + _SERVING_INTERVAL
            with contextlib.suppress(OSError):
                self._serving = max(1, len(subscribers(self._queue)))
        if not self._directories or self._clock() >= self._list_due:
            self._list_due = self._clock() + _LIST_INTERVAL
            self._directories = waiting_directories(self._queue)
        return bool(self._directories)

    def look_again(self) -> None:
        """List the directories before the next claim: tickets have come back, perhaps to a new one.

        Tickets behind them would otherwise overtake them until the next listing is due.
        """
        self._list_due = 0.0

    def move(
        self, wanted: Callable[[Entry], bool], worker: int, at_once: int, ahead: int
    ) -> list[Entry]:
        """Claim the first waiting tickets that are wanted; call with the queue's lock held.

        These are `at_once` tickets, and `ahead` more if the other workers of the queue still find
        as many for each of them.
        """
        listed: dict[str, list[Entry]] = {}

        def look_into(name: str) -> list[Entry]:
            listed[name] = list(directory_entries(self._queue.waiting / name))
            return listed[name]

        in_turn = filter(wanted, in_order(self._directories, look_into))
        waiting = list(itertools.islice(in_turn, at_once + ahead))
        if (left := self._count(listed)) < _COUNTED:
            share = -(-left // self._serving)
            waiting = waiting[: max(at_once, min(at_once + ahead, share))]
        moved = list(self._move(waiting, worker))
        gone = {entry.job for entry in moved}
        self._forget([name for name, had in listed.items() if gone.issuperset(e.job for e in had)])
        return moved

    def _count(self, listed: Mapping[str, Sequence[Entry]]) -> int:
        """How many tickets wait, at most, if that is known to be few; else `_COUNTED`.

        The name of a directory that was not listed tells how many it can have.
        """
        count = sum(map(len, listed.values()))
        for name in self._directories:
            if count >= _COUNTED:
                break
            if name not in listed and (span := span_of(name)) is not None:
                count += span.most
        return min(count, _COUNTED)

    def _forget(self, emptied: Sequence[str]) -> None:
        for name in emptied:
            self._directories.remove(name)
        remove_empty(self._queue.waiting / name for name in emptied)

    def _move(self, waiting: Iterable[Entry], worker: int) -> Iterator[Entry]:
        for entry in waiting:
            target = self._queue.running_ticket(entry.job, entry.attempt, worker)
            try:
                move(entry.path, target)
            except FileNotFoundError:
                continue  # only where the lock does not exclude others; the rename still does
            except OSError as error:
                # The worker finds the claims that it does not know about.
                _log.warning(
                    "queue %s: cannot claim job %d: %s", self._queue.name, entry.job, error
                )
                return
            yield Entry(target, entry.job, entry.attempt, worker)

    def read(
        self,
        entries: Iterable[Entry],
        over: list[tuple[Entry, Ticket]],
        damaged: list[Entry],
    ) -> Iterator[tuple[Entry, Ticket]]:
        """Read these claims, without the lock.

        Tickets that have a result or are cancelled go to `over`: without the lock, nobody may end
        them. Those that cannot be read go to `damaged`.
        """
        begun = BegunJobs(self._machine)
        claimed = list(entries)
        found = self._together([partial(read_entry, entry) for entry in claimed])
        for entry, ticket in zip(claimed, found, strict=True):
            paths = self._machine.job(entry.job)
            try:
                if ticket is None:
                    continue
                if isinstance(ticket, Exception):
                    raise ticket
                if begun.has(entry.job) and (is_there(paths.result) or is_there(paths.cancel)):
                    over.append((entry, ticket))
                    continue
            except (OSError, DamagedFileError):
                damaged.append(entry)
                continue
            yield entry, ticket

    def put_back(self, claimed: Iterable[tuple[Entry, Ticket]], damaged: Iterable[Entry]) -> None:
        """Undo claims that have not begun; a damaged ticket is set aside.

        Claims that others have taken from this worker meanwhile, as from a dead one, are left to
        them. What cannot be put back now, its worker finds among its own claims.
        """
        self.look_again()
        with queue_lock(self._machine, self._queue.name):
            for entry, ticket in claimed:
                with _tolerating(entry):
                    give_up(self._machine, self._queue, entry, ticket)
            for entry in damaged:
                with _tolerating(entry):
                    self._put_back_unread(entry)
        notify_subscribers(self._machine, self._queue)

    def _put_back_unread(self, entry: Entry) -> None:
        try:
            read_ticket(entry.path)
        except DamagedFileError as error:
            set_aside(self._machine, self._queue, entry, error.message)
            return
        except FileNotFoundError:
            return
        except OSError as error:
            _log.warning("job %d goes back to its queue: %s", entry.job, error)
        target = self._queue.waiting_ticket(entry.job, entry.attempt)
        make_directory(target.parent)
        move(entry.path, target)


@contextlib.contextmanager
def _tolerating(entry: Entry) -> Iterator[None]:
    try:
        yield
    except (OSError, KochiError) as error:
        _log.warning("job %d does not go back to its queue now: %s", entry.job, error)
