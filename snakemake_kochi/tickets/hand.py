"""Jobs that a person submits, without a run that waits for them; and cancelling."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection

from snakemake_kochi.base import files
from snakemake_kochi.base.wake import wake
from snakemake_kochi.tickets.history import (
    HAND_JOB,
    kept,
    last_line,
    lines_of_end,
    places,
    tickets_in,
)
from snakemake_kochi.tickets.moving import is_listed, listing, moved, removed
from snakemake_kochi.tickets.names import Layout, Name, Shard, make_queue, nonce, numbers_in
from snakemake_kochi.tickets.run import ENDED, OWN, make_run, written_aside
from snakemake_kochi.tickets.watching import facts_in

HAND = "hand"
_PATIENCE = 30.0


class NotSubmittedError(Exception):
    """The ticket was not submitted, and will not be."""


class UnknownError(Exception):
    """Whether the ticket was submitted is not known: `kochi show job` tells later."""


def submit_by_hand(layout: Layout, queue: str, content: bytes, tell: Callable[[int], None]) -> int:
    """Submit one ticket and return its number, which `tell` gets before it is decided.

    Raises OSError before that; then NotSubmittedError, or UnknownError.
    """
    paths = layout.queue(queue)
    make_queue(layout, queue)
    number = make_run(layout, "", HAND, {"queue": queue})
    token = layout.run(number).token(HAND)
    aside = written_aside(token, HAND_JOB, [content])
    tell(number)
    try:
        # Whoever is not at the source any more has been submitted: nobody else moves it.
        moved(aside, f"{paths.waiting}/{number}.{HAND_JOB}-{HAND_JOB}", _PATIENCE)
    except OSError as error:
        try:
            if not moved(aside, f"{token}/withdrawn.{nonce()}", _PATIENCE):
                return number
        except OSError:
            raise UnknownError(number) from error
        raise NotSubmittedError(number) from error
    files.sync(paths.waiting)
    return number


def is_by_hand(layout: Layout, number: int) -> bool:
    """Whether no run waits for this job: any worker watches the one that holds it."""
    return HAND in listing(layout.run(number).directory)


def fold(layout: Layout, number: int) -> Name | None:
    """Write the end of a job by hand into a new file of the history, and free its inbox.

    None: it has not ended, or that was done before: `is_over` tells. Several may do this at a time.
    Raises OSError: do it again.
    """
    paths = layout.run(number)
    name = next(iter(Name.parse_all(files.names(paths.inbox))), None)
    if name is not None:
        data = files.read(f"{paths.inbox}/{name}")
        facts = (facts_in(paths.facts) or {}).get("facts") or {}  # its file may be damaged
        about = {"ticket": kept(data), "queue": facts.get("queue", "")}
        # In the order of the journal of a run: `history.ended` searches for a state before a key.
        line = {**last_line(data, name), **about, "ended": str(name), "key": ""}
        files.make_below(layout.directory, "history")
        path = f"{layout.history}/{number}-{number}.{nonce()}.jsonl"
        files.write_new(path, f"{json.dumps(line)}\n".encode(), sync=True)
        moved(paths.token(HAND), paths.token(ENDED), _PATIENCE)
        files.unlink(f"{paths.inbox}/{name}")
    return name


def remove_queue(layout: Layout, queue: str) -> None:
    """Cancel what waits in a queue to which nobody submits any more, and remove it if nothing runs.

    Raises OSError: do it again.
    """
    paths = layout.queue(queue)
    for name, of_queue, path in places(layout):
        if of_queue == queue and not name.worker:
            inbox = layout.run(name.run).inbox
            moved(path, f"{inbox}/{name.ended('cancelled', 'c')}", _PATIENCE)
    if is_listed(paths.directory) and not listing(paths.running):
        removed(paths.directory)


def is_over(layout: Layout, run: int, job: int) -> bool:
    """Whether a job has ended, and whoever waits for it can learn it. Raises OSError."""
    paths = layout.run(run)
    texts = files.names(paths.directory)
    if ENDED in texts:
        return True
    if any(name.job == job for name in Name.parse_all(files.names(paths.inbox))):
        return True
    # An end is in the journal of whoever collected it: the run, or one that took over from it.
    owners = [int(text.partition(".")[2]) for text in texts if text.startswith(f"{OWN}.")]
    last = max([run, *owners])
    journals = [n for n in numbers_in(files.names(layout.runs)) if run <= n <= last]
    return any(True for _ in lines_of_end(layout, run, job, journals))


def cancel(layout: Layout, queue: str, run: int, job: int) -> bool:
    """Cancel a job, or have its worker do so; True when it has ended, however.

    To be repeated until then: its ticket may move meanwhile. Raises OSError.
    """
    jobs = {(run, job)}
    if withdraw(layout, queue, jobs):
        return True
    interrupt(layout, queue, jobs)
    return is_over(layout, run, job)


def withdraw(layout: Layout, queue: str, jobs: Collection[tuple[int, int]]) -> int:
    """Cancel those of these jobs, by run and number, that wait; how many. Raises OSError."""

    def has_one(shard: Shard) -> bool:
        return any((shard.run, job) in jobs for job in range(shard.first, shard.last + 1))

    count = 0
    for name, path in tickets_in(layout.queue(queue).waiting, has_one):
        if name.key in jobs:
            ended = name.ended("cancelled", "c")
            count += moved(path, f"{layout.run(name.run).inbox}/{ended}", _PATIENCE)
    return count


def interrupt(layout: Layout, queue: str, jobs: Collection[tuple[int, int]]) -> None:
    """Have the workers cancel those of these jobs that they hold. Raises OSError."""
    for ticket in Name.parse_all(listing(layout.queue(queue).running)):
        if ticket.key in jobs:
            worker = layout.worker(ticket.worker)
            files.overwrite(worker.cancel(ticket), b"cancel\n")
            wake(worker.wake)
