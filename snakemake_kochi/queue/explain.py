"""Explains the state of a job in sentences: what it waits for, which worker runs it, its attempts.

This module only reads, takes no lock, and opens few files. What it says may be outdated when it is
read.
"""

from __future__ import annotations

import contextlib
import itertools
import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from snakemake_kochi.errors import DamagedFileError, NameNotFoundError
from snakemake_kochi.files import list_names, read_json
from snakemake_kochi.packs import Packs
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.quantities import format_duration, seconds_since
from snakemake_kochi.queue.entries import count_before, worker_numbers
from snakemake_kochi.queue.jobs import JobView, find_job
from snakemake_kochi.queue.paused import PausedBatch, pause_of
from snakemake_kochi.queue.result import (
    Attempt,
    Reader,
    Result,
    find_attempt,
    read_attempt,
    read_ended_attempt,
    read_result,
)
from snakemake_kochi.queue.ticket import Ticket
from snakemake_kochi.queue.wakeup import read_queues, subscribers
from snakemake_kochi.queue.workers import (
    WorkerState,
    read_worker,
    requested_workers,
    seconds_for_jobs,
)

# A sentence for each of hundreds of workers would hide the useful one.
_MOST_NAMED = 3
# Of the workers of years, the newest: those before have started long ago.
_MOST_REQUESTED = 256


@dataclass(frozen=True)
class AttemptView:
    """One attempt of a job.

    `ending` describes how it ended, in a few words; None while it lasts. `counts` is False for an
    attempt that cost the ticket nothing, and for a result that came too late. `seconds` is how long
    it took, or has taken so far; None when that is unknown. `runner` is the runner that executed
    it; "" when that is unknown. `skipped_runners` is the reason why a faster runner that was chosen
    for the job was not used. `cpu_seconds` and `peak_memory_mb` are those of its `Result`, None
    without one.
    """

    attempt: int
    worker: int | None
    node: str
    started: str | None
    ended: str | None
    ending: str | None
    detail: str
    seconds: float | None
    runner: str = ""
    skipped_runners: str = ""
    counts: bool = True
    cpu_seconds: float | None = None
    peak_memory_mb: int | None = None


ToStart = Callable[[str], str]
"""What a person types to get a worker for a queue: see `Location.to_start_worker`."""


def explain(machine: MachinePaths, job: int, to_start: ToStart) -> str:
    """Why a job is in its present state, in one line. Raises NameNotFoundError."""
    return "; ".join(reasons(machine, find_job(machine, job), to_start))


def reasons(machine: MachinePaths, view: JobView, to_start: ToStart) -> list[str]:
    """Why a job is in its present state, as a list that is never empty.

    The most important reason comes first.
    """
    if view.result is not None:
        return [_how_it_ended(view)]
    if view.ticket is None:
        return ["its ticket is damaged: the job fails when a worker tries to claim it"]
    if view.state == "running":
        return list(_why_running(machine, view))
    start = f"start one with: {to_start(view.ticket.queue)}"
    return list(_why_waiting(machine, view, view.ticket, start))


def state_name(view: JobView) -> str:
    """The state or the end of a job in a word.

    "waiting", "running", "cancelling", "succeeded", "failed" or "cancelled".
    """
    if view.result is None:
        return "cancelling" if view.cancelling else view.state
    return view.result.state


def state_of(view: JobView) -> str:
    """The state in a word, with further facts: "failed: exit status 1"."""
    name = state_name(view)
    said = name if view.result is None else view.result.describe()
    return said if said.startswith(name) else f"{name}: {said}"


def _for(time: str | None) -> str:
    """The time since then, as in " for 3 minutes", or "" when the time is unknown.

    The clocks of two nodes differ, so less than a second is not reported.
    """
    seconds = seconds_since(time)
    return f" for {format_duration(seconds)}" if seconds is not None and seconds >= 1 else ""


def _how_it_ended(view: JobView) -> str:
    result = view.result
    assert result is not None
    if result.worker is None:
        return f"{result.describe()}; no worker had it"
    where = f"worker {result.worker}" + (f" on {result.node}" if result.node else "")
    return f"{result.describe()}, attempt {result.attempt} on {where}"


def _why_running(machine: MachinePaths, view: JobView) -> Iterator[str]:
    assert view.worker is not None
    worker = _read_worker_or_none(machine, view.worker)
    name = f"worker {view.worker}" + (f" on {worker.node.host}" if worker else "")
    if worker is not None and worker.is_lost:
        yield f"{name} died: the next worker or controller that notices requeues the job"
    elif view.cancelling:
        yield f"{name} is ending its processes"
    elif view.started is None:
        yield f"{name} has claimed it and starts it next"
        if worker is not None and worker.waits:
            yield worker.waits
        elif worker is not None and worker.running:
            yield _what_it_runs(machine, worker)
    elif worker is not None and worker.state == "draining":
        yield f"{name} is being stopped{_because(worker.reason)}: it ends the job and requeues it"
    else:
        yield f"{name} runs it{_for(view.started)}"
    yield from _earlier_attempts(machine, view)


def _why_waiting(machine: MachinePaths, view: JobView, ticket: Ticket, start: str) -> Iterator[str]:
    if view.cancelling:
        yield "it is being cancelled"
        return
    if (paused := pause_of(machine, ticket)) is not None:
        yield why_paused(paused)
        yield from _earlier_attempts(machine, view)
        return
    name = ticket.queue
    serving = [
        worker
        for number in subscribers(machine.queue(name))
        if (worker := _read_worker_or_none(machine, number)) is not None and worker.state != "left"
    ]
    theirs = [worker for worker in serving if worker.controller not in (None, ticket.controller)]
    lost = [worker for worker in serving if worker not in theirs and worker.is_lost]
    there = [worker for worker in serving if worker not in theirs and worker not in lost]
    if not there:
        if coming := list(_coming(machine, name)):
            yield f"no worker serves queue {name} yet; {', '.join(coming[:_MOST_NAMED])}"
        else:
            yield f"no worker serves queue {name}; {start}"
        yield from (f"worker {worker.worker} on {worker.node.host} died" for worker in lost)
        if theirs:
            which = "another run" if len(theirs) == 1 else "other runs"
            verb = "runs" if len(theirs) == 1 else "run"
            yield f"{_numbers(theirs)} of this queue {verb} only jobs of {which}"
    else:
        yield from _why_none_takes_it(machine, view, ticket, there, start)
    yield from _earlier_attempts(machine, view)


def _coming(machine: MachinePaths, queue: str) -> Iterator[str]:
    """The requested workers that will serve a queue."""
    newest = sorted(worker_numbers(machine))[-_MOST_REQUESTED:]
    for worker in requested_workers(machine, newest).values():
        with contextlib.suppress(FileNotFoundError, DamagedFileError):
            if queue in read_queues(machine, worker.worker):
                yield f"worker {worker.worker} waits for its allocation {worker.allocation}"


def why_paused(paused: PausedBatch) -> str:
    """A sentence about a paused batch, with what to type."""
    words = shlex.join(["kochi", "batch", paused.experiment, paused.batch, "--resume"])
    what = f"batch {paused.batch} of {paused.experiment} has been paused{_for(paused.since)}"
    return f"{what}; to resume it, type in {paused.directory}: {words}"


def _why_none_takes_it(
    machine: MachinePaths, view: JobView, ticket: Ticket, there: Sequence[WorkerState], start: str
) -> Iterator[str]:
    obstacles = {
        worker.worker: worker.capacity.obstacle(ticket.resources, seconds_for_jobs(worker))
        for worker in there
    }
    draining = [worker for worker in there if worker.state in ("draining", "finishing")]
    able = [w for w in there if w not in draining and obstacles[w.worker] is None]
    unable = [w for w in there if w not in draining and obstacles[w.worker] is not None]
    if not able:
        never = "can ever run it" if unable else f"claims further jobs; {start}"
        yield f"no worker of queue {ticket.queue} {never}"
    before = count_before(machine.queue(ticket.queue), view.job)
    if able and before:
        yield f"{before} {'other job waits' if before == 1 else 'other jobs wait'} before it"
    yield from (_what_it_runs(machine, worker) for worker in able[:_MOST_NAMED])
    yield from (f"worker {w.worker}: {obstacles[w.worker]}" for w in unable[:_MOST_NAMED])
    yield from (
        f"worker {w.worker} is being stopped{_because(w.reason)}" for w in draining[:_MOST_NAMED]
    )
    rest = sum(max(0, len(group) - _MOST_NAMED) for group in (able, unable, draining))
    if rest:
        yield f"and {rest} more workers"


def _what_it_runs(machine: MachinePaths, worker: WorkerState) -> str:
    """As in "worker 3 runs job 17 (exclusive) for 3 minutes and 2 more", or that it is idle."""
    named = f"worker {worker.worker}"
    if not worker.running:
        return f"{named} is idle{_for(worker.idle_since)} and claims it at its next look"
    # The oldest job is the one that a person asks about.
    job, since = min(worker.running.items(), key=lambda item: item[1])
    more = len(worker.running) - 1
    text = f"{named} runs job {job}{_exclusive(machine, job)}{_for(since)}"
    return f"{text} and {more} more" if more else text


def _exclusive(machine: MachinePaths, job: int) -> str:
    with contextlib.suppress(NameNotFoundError, DamagedFileError):
        ticket = find_job(machine, job).ticket
        if ticket is not None and ticket.resources.exclusive:
            return " (exclusive)"
    return ""


def _earlier_attempts(machine: MachinePaths, view: JobView) -> Iterator[str]:
    """Why this is not the first attempt."""
    for attempt in attempts_before(machine, view.job, view.attempt):
        yield f"attempt {attempt.attempt}, worker {attempt.worker} on {attempt.node}: " + (
            attempt.ending or ""
        )


def _because(reason: str) -> str:
    return f" ({reason})" if reason else ""


def _numbers(workers: Sequence[WorkerState]) -> str:
    named = ", ".join(str(worker.worker) for worker in workers[:_MOST_NAMED])
    return f"worker{'s' if len(workers) > 1 else ''} {named}"


def _read_worker_or_none(machine: MachinePaths, worker: int) -> WorkerState | None:
    with contextlib.suppress(FileNotFoundError, DamagedFileError):
        return read_worker(machine, worker)
    return None


def _duration(started: str | None, ended: str | None) -> float | None:
    since_start, since_end = seconds_since(started), seconds_since(ended)
    if since_start is None:
        return None
    return max(0.0, since_start - (since_end or 0.0))


def attempts_before(
    machine: MachinePaths, job: int, attempt: int, read: Reader = read_json
) -> list[AttemptView]:
    """The attempts before number `attempt`; their tickets went back to the queue."""
    ended = (_ended_attempt(machine, job, number, read) for number in range(1, attempt))
    return [view for view in ended if view is not None]


def attempts(machine: MachinePaths, view: JobView, packs: Packs | None = None) -> list[AttemptView]:
    """All attempts of a job in their order; each late result follows its own attempt.

    `packs` is what the caller uses for many jobs.
    """
    read, names = read_json, set(list_names(machine.job(view.job).directory))
    if view.result is not None:
        packs = packs or Packs(machine)
        read = packs.read_json
        with contextlib.suppress(DamagedFileError):
            names |= packs.files(view.job).keys()
    found = attempts_before(machine, view.job, view.attempt, read)
    last = _last_attempt(machine, view, read)
    late = _late_results(machine, view.job, names, read)
    both = itertools.chain(found, late, () if last is None else (last,))
    return sorted(both, key=lambda attempt: attempt.attempt)


def _ended_attempt(
    machine: MachinePaths, job: int, number: int, read: Reader
) -> AttemptView | None:
    paths = machine.job(job)
    try:
        ended = read_ended_attempt(paths.ended(number), read)
    except (FileNotFoundError, DamagedFileError):
        return None
    attempt = _read_attempt_or_none(machine, job, number, read)
    started = None if attempt is None else attempt.started
    return AttemptView(
        attempt=number,
        worker=ended.worker,
        node=ended.node,
        started=started,
        ended=ended.ended,
        ending=f"{ended.reason} ({ended.detail})" if ended.detail else ended.reason,
        detail=ended.detail,
        seconds=_duration(started, ended.ended),
        runner="" if attempt is None else attempt.runner,
        skipped_runners="" if attempt is None else attempt.skipped_runners,
        counts=False,
    )


def _read_attempt_or_none(
    machine: MachinePaths, job: int, number: int, read: Reader
) -> Attempt | None:
    with contextlib.suppress(FileNotFoundError, DamagedFileError):
        return find_attempt(machine.job(job), number, read)
    return None


def _last_attempt(machine: MachinePaths, view: JobView, read: Reader) -> AttemptView | None:
    """The last attempt of a job; None if the job has never begun."""
    result = view.result
    if result is not None and result.worker is not None:
        return _view_of_result(machine, result, result.describe(), read)
    if result is not None or view.started is None:
        return None
    with contextlib.suppress(FileNotFoundError, DamagedFileError):
        attempt = read_attempt(machine.job(view.job).attempt(view.attempt))
        return AttemptView(
            attempt=attempt.attempt,
            worker=attempt.worker,
            node=attempt.node.host,
            started=attempt.started,
            ended=None,
            ending=None,
            detail="",
            seconds=_duration(attempt.started, None),
            runner=attempt.runner,
            skipped_runners=attempt.skipped_runners,
        )
    return None


def _late_results(
    machine: MachinePaths, job: int, names: Collection[str], read: Reader
) -> Iterator[AttemptView]:
    for path in machine.job(job).late_results(names):
        with contextlib.suppress(FileNotFoundError, DamagedFileError):
            result = read_result(path, read)
            ending = f"ignored because it came too late: {result.describe()}"
            yield _view_of_result(machine, result, ending, read, counts=False)


def _view_of_result(
    machine: MachinePaths, result: Result, ending: str, read: Reader, counts: bool = True
) -> AttemptView:
    skipped_runners = ""
    # For the first there is no faster runner, and one file less to read.
    if result.runner not in ("", "phase"):
        attempt = _read_attempt_or_none(machine, result.job, result.attempt, read)
        skipped_runners = "" if attempt is None else attempt.skipped_runners
    return AttemptView(
        attempt=result.attempt,
        worker=result.worker,
        node=result.node,
        started=result.started,
        ended=result.ended,
        ending=ending,
        detail=result.detail,
        seconds=_duration(result.started, result.ended),
        runner=result.runner,
        skipped_runners=skipped_runners,
        counts=counts,
        cpu_seconds=result.cpu_seconds,
        peak_memory_mb=result.peak_memory_mb,
    )
