"""What people do with jobs and workers by hand: submit, cancel, release."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from snakemake_kochi.base import files
from snakemake_kochi.base.wake import wake
from snakemake_kochi.errors import KochiError
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import is_gone, this_node
from snakemake_kochi.queue.views import (
    RequestedWorker,
    find_job,
    state_name,
    uncollected,
)
from snakemake_kochi.tickets import hand, history
from snakemake_kochi.tickets.history import JobId, key_of
from snakemake_kochi.tickets.moving import listing, removed
from snakemake_kochi.tickets.names import Layout, Name, RunPaths, nonce, numbers_in, wake_workers
from snakemake_kochi.tickets.run import SHARD
from snakemake_kochi.tickets.ticket import Ticket
from snakemake_kochi.tickets.watching import Watch, facts_in

_OLD = 3600.0  # seconds after which nobody still moves the ticket of an ended job
_PATIENCE = 10.0  # seconds in which a worker is to end a job that is cancelled
_PAUSE = 0.1  # seconds


class UnknownSubmissionError(KochiError):
    """Nobody knows whether a job was submitted."""

    exit_status = 75  # EX_TEMPFAIL


def submit(
    machine: MachinePaths,
    queue: str,
    ticket: Ticket,
    tell: Callable[[int], None] = lambda number: None,
) -> Ticket:
    """Submit a job by hand; its ticket then has its number, which `tell` gets before the decision.

    Raises KochiError and OSError: it was not submitted; UnknownSubmissionError.
    """
    layout = machine.layout
    given = ticket.handed_over(0, queue, machine.name)
    content = json.dumps(given.to_dict()).encode()
    try:
        number = hand.submit_by_hand(layout, queue, content, tell)
    except hand.NotSubmittedError as error:
        reason = error.__cause__
        raise KochiError(f"job {error} was not submitted: {reason}") from error
    except hand.UnknownError as error:
        raise UnknownSubmissionError(
            f"whether job {error} was submitted is not known: {error.__cause__}",
            f"When the filesystem answers, type: kochi show job {error}",
        ) from error
    wake_workers(layout, queue)
    if number % SHARD == 0:  # now and then
        with suppress(OSError):
            tidy(layout)
    return ticket.handed_over(number, queue, machine.name)


def tidy(layout: Layout) -> None:
    """Note ends, and join what is left of the jobs by hand that ended an hour ago, if it is much.

    The logs and the lines of 256 of them become two files, and their directories go; that of the
    highest number stays. Raises OSError: call it again.
    """
    for _ in uncollected(layout):  # which notes ends
        pass
    highest = max(numbers_in(listing(layout.runs)))
    old: dict[int, str] = {}
    for text in listing(layout.history):
        first, _, last = text.partition(".")[0].partition("-")
        path = f"{layout.history}/{text}"
        if first.isdecimal() and first == last and int(first) < highest:
            with suppress(FileNotFoundError):
                if time.time() - os.stat(path).st_mtime > _OLD:
                    old[int(first)] = path
    numbers = sorted(old)
    for start in range(0, len(numbers) - SHARD + 1, SHARD):
        _join(layout, {number: old[number] for number in numbers[start : start + SHARD]})


def _join(layout: Layout, old: dict[int, str]) -> None:
    paths = RunPaths(layout.history)
    files.make_below(layout.history, "logs")
    lines, logs = [], []
    for number, path in old.items():
        lines.append(data := files.read(path))
        name = Name.parse(files.parse(data)["ended"])
        assert name is not None
        for attempt in range(1, name.attempt + 1):
            logs.append(Name(0, number, attempt))
            with suppress(FileNotFoundError):
                log = layout.run(number).log(replace(name, attempt=attempt))
                files.move(log, paths.log(logs[-1]))
    history.fold(paths, logs)
    path = f"{layout.history}/{min(old)}-{max(old)}.{nonce()}.jsonl"
    files.write_new(path, b"".join(lines), sync=True)
    for number, path in old.items():
        gone = f"{layout.runs}/gone.{nonce()}"
        with suppress(FileNotFoundError):
            files.move(layout.run(number).directory, gone)
            removed(gone)
        files.unlink(path)


# ---- ending


def cancel_all(
    machine: MachinePaths, jobs: Iterable[JobId], patience: float = _PATIENCE
) -> dict[JobId, str | Exception]:
    """Cancel jobs: "cancelled", "cancelling" (its worker still does that), "ended", or an error."""
    layout = machine.layout
    places = history.places(layout) if machine.directory.exists() else []
    known = {name.key: (name, queue) for name, queue, _ in places}
    outcomes: dict[JobId, str | Exception] = {}
    left = list(dict.fromkeys(jobs))
    until = time.monotonic() + patience
    while left:
        for job in list(left):
            try:
                outcomes[job] = _cancel(machine, layout, job, known)
            except (KochiError, OSError) as error:
                outcomes[job] = error
            if outcomes[job] != "cancelling":
                left.remove(job)
        if time.monotonic() >= until:
            break
        time.sleep(_PAUSE if left else 0.0)
    return outcomes


def _cancel(
    machine: MachinePaths, layout: Layout, job: JobId, known: dict[tuple[int, int], Any]
) -> str:
    key = key_of(job)
    if key not in known or not (isinstance(job, str) or history.was_by_hand(layout, key[0])):
        view = find_job(machine, job)
        if view.state == "ended":
            return "ended"
        known[key] = view.name, view.queue
    name, queue = known[key]
    if name.worker:  # nobody else may look after the jobs of a dead worker
        Watch(layout, lambda each: each.key == key, is_gone).look([queue])
    if not hand.cancel(layout, queue, *key):
        return "cancelling"
    wake(layout.run(key[0]).wake)
    is_cancelled = not name.worker or state_name(find_job(machine, job)) == "cancelled"
    return "cancelled" if is_cancelled else "ended"


def cancel(machine: MachinePaths, job: JobId, patience: float = 0.0) -> str:
    """As `cancel_all`. Raises KochiError and OSError."""
    outcome = cancel_all(machine, [job], patience)[job]
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def order_release(machine: MachinePaths, worker: int, how: str) -> None:
    """Have a worker leave: "finish" its jobs, or "now". Raises OSError."""
    paths = machine.layout.worker(str(worker))
    # Of one length: it is written over an earlier order.
    files.overwrite(paths.release, f"{how:8}\n".encode())
    wake(paths.wake)


# ---- workers


def worker_of_process(layout: Layout, pid: int) -> int | None:
    """The newest worker whose supervisor has this number; None before it has its directory."""
    here = asdict(this_node())
    for number in reversed(numbers_in(listing(layout.workers))):
        with suppress(FileNotFoundError):
            facts = facts_in(layout.worker(str(number)).facts)
            if facts and facts["process"]["pid"] == pid and facts["node"] == here:
                return number
    return None


def reserve_workers(machine: MachinePaths, count: int) -> range:
    """Numbers that no other worker gets. Raises OSError."""
    layout = machine.layout
    files.make_below(layout.directory, "workers")
    last = max(numbers_in(listing(layout.workers)), default=0)
    made = 0
    while made < count:
        try:
            files.make(layout.worker(str(last + made + 1)).directory)
            made += 1
        except FileExistsError:
            for number in range(last + 1, last + 1 + made):
                removed(layout.worker(str(number)).directory)
            last, made = last + made + 1, 0
    return range(last + 1, last + 1 + count)


def note_requested(machine: MachinePaths, requested: RequestedWorker) -> None:
    path = machine.layout.worker(requested.worker).asked
    files.write_new(path, json.dumps(asdict(requested)).encode())
