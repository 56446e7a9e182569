"""A run as trace events, for Perfetto and for Chrome's tracing page.

The format is "Trace Event Format" (Google, in the form of a JSON object): complete events (ph "X"),
instants ("i") and names of processes and threads ("M"); times in microseconds, here from the first
event.

A worker is a process of the trace, and each of its slots a thread. No file records the slot of a
job: a job gets the first slot that was free when it started.
"""

from __future__ import annotations

import heapq
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import IO, Any

from snakemake_kochi.queue.views import Attempt, WorkerView
from snakemake_kochi.trace.history import JobHistory, RunHistory

Event = dict[str, Any]

# The processes of the trace: the run itself, and from _WORKERS on the workers by their numbers.
_RUN = 1
_WORKERS = 10
# The threads of a worker: its own life, and from _SLOTS on its slots. The threads of the run: the
# jobs of which no attempt began, and from _ALLOCATIONS on the allocations.
_LIFE = _UNBEGUN = 1
_SLOTS = _ALLOCATIONS = 2

# Reserved names of colours. A successful job has the colour of its rule.
_COLOURS = {
    "failed": "terrible",
    "signal": "terrible",
    "out of memory": "terrible",
    "timeout": "terrible",
    "node failed": "bad",
    "lost": "bad",
    "drained": "yellow",
    "out of time": "yellow",
    "cancelled": "grey",
    "too late": "grey",
}
# Ends of attempts that get a mark: their jobs had to run again.
_MARKED = frozenset({"lost", "drained", "out of time", "node failed"})
_DRAINS = ("drained", "out of time")


@dataclass(frozen=True)
class _Slice:
    """An attempt that began: its job, and its time in microseconds since 1970."""

    job: JobHistory
    attempt: Attempt
    start: int
    end: int

    @property
    def outcome(self) -> str:
        """One word: "success", a reason of a result or of an ended attempt, or "running"."""
        attempt, result = self.attempt, self.job.view.result
        if attempt.ending is None:
            return "running"
        if attempt.counts and result is not None:
            return result.reason
        # As "drained (told by SIGUSR1)" or "drained: told by SIGUSR1".
        said = re.split(r" \(|: ", attempt.ending)[0]
        return "too late" if said.startswith("ignored") else said


def trace_of(history: RunHistory) -> list[Event]:
    """All events of a run: names first, then the others in order of time."""
    return _Trace(history).events()


def write_trace(history: RunHistory, stream: IO[str]) -> None:
    """Write the JSON object, with one event per line."""
    run = history.run
    about = {"run": run.controller, "directory": run.directory, "began": run.started}
    stream.write('{"displayTimeUnit": "ms",\n')
    stream.write(f'"otherData": {json.dumps(about)},\n"traceEvents": [\n')
    stream.write(",\n".join(map(json.dumps, trace_of(history))))
    stream.write("\n]}\n")


class _Trace:
    def __init__(self, history: RunHistory) -> None:
        self._history = history
        self._slices: dict[int, list[_Slice]] = defaultdict(list)
        self._unbegun: list[JobHistory] = []
        self._over = _microseconds(history.run.ended or history.moment) or 0
        self._last = {worker.worker: self._last_sign(worker) for worker in history.workers}
        for job in history.jobs:
            self._take(job)

    def events(self) -> list[Event]:
        named = [*_process(_RUN, f"run {self._history.run.controller}", 0)]
        timed = [*self._unbegun_jobs()]
        if timed:
            named.append(_thread(_RUN, _UNBEGUN, "jobs that did not begin"))
        for worker in self._history.workers:
            slots = list(_in_slots(self._slices[worker.worker]))
            named += self._names(worker, 1 + max((slot for slot, _ in slots), default=-1))
            timed += self._life(worker)
            for slot, found in slots:
                timed += _events_of(found, _WORKERS + worker.worker, _SLOTS + slot)
        for number, (name, events) in enumerate(self._allocations()):
            named.append(_thread(_RUN, _ALLOCATIONS + number, name))
            timed += [{**event, "tid": _ALLOCATIONS + number} for event in events]
        timed.sort(key=lambda event: event["ts"])
        first = timed[0]["ts"] if timed else 0
        return [*named, *({**event, "ts": event["ts"] - first} for event in timed)]

    def _take(self, job: JobHistory) -> None:
        begun = False
        for attempt in job.attempts:
            start = _microseconds(attempt.started)
            if attempt.worker is None or start is None or attempt.worker not in self._last:
                continue
            begun = True
            end = _microseconds(attempt.ended)
            if end is None:
                end = self._last[attempt.worker]
            # The end of a lost attempt is by the clock of another node.
            self._slices[attempt.worker].append(_Slice(job, attempt, start, max(start, end)))
        if not begun:
            self._unbegun.append(job)

    def _last_sign(self, worker: WorkerView) -> int:
        """When a worker left or gave its last known sign of life."""
        is_there = self._history.goes_on and not worker.is_gone
        return _microseconds(self._history.moment if is_there else worker.updated) or 0

    def _unbegun_jobs(self) -> Iterator[Event]:
        for job in self._unbegun:
            view, ticket = job.view, job.view.ticket
            assert ticket is not None
            result = view.result
            when = _microseconds(ticket.submitted if result is None else result.ended)
            if when is not None:
                said = view.state if result is None else result.describe()
                arguments = {"job": view.job, "state": said, **_told(ticket.labels)}
                yield _instant(_rule(job), when, _RUN, _UNBEGUN, arguments)

    def _names(self, worker: WorkerView, slots: int) -> Iterator[Event]:
        where = worker.node.host
        if worker.allocation is not None:
            where += f", allocation {worker.allocation}"
        pid = _WORKERS + worker.worker
        yield from _process(pid, f"worker {worker.worker} ({where})", pid)
        yield _thread(pid, _LIFE, "worker")
        yield from (_thread(pid, _SLOTS + slot, f"slot {slot + 1}") for slot in range(slots))

    def _life(self, worker: WorkerView) -> Iterator[Event]:
        pid = _WORKERS + worker.worker
        slices = self._slices[worker.worker]
        start = _microseconds(worker.started) or 0
        end = self._last[worker.worker]
        if worker.controller != self._history.run.controller:
            # The worker may live for weeks before and after the run.
            start = max(start, _microseconds(self._history.run.started) or 0)
            end = min(end, self._over)
        start = min((start, *(found.start for found in slices)))
        end = max((start, end, *(found.end for found in slices)))
        arguments = {
            "state": worker.state,
            "reason": worker.reason,
            "cores": worker.capacity.cores,
            "memory_mb": worker.capacity.memory_mb,
            "gpus": worker.capacity.gpus,
            "until": worker.until,
        }
        yield _complete(f"worker {worker.worker}", start, end, pid, _LIFE, arguments)
        drained = [found.end for found in slices if found.outcome in _DRAINS]
        if drained or worker.state == "draining":
            yield _instant("drain", min(drained, default=end), pid, _LIFE, {"why": worker.reason})
        elif worker.state == "lost":
            yield _instant("lost", end, pid, _LIFE, {})

    def _allocations(self) -> Iterator[tuple[str, list[Event]]]:
        """The name and the events of each allocation: its wait, and its time with a worker."""
        workers = _by_allocation(self._history.workers)
        notes = {note.allocation: note for note in self._history.allocations}
        for name in sorted({*workers, *notes}, key=lambda name: (len(name), name)):
            events = []
            spans = [self._span(worker) for worker in workers.get(name, ())]
            after = 0
            if name in notes and (requested := _microseconds(notes[name].submitted)) is not None:
                after = max(requested, min((start for start, _, _ in spans), default=self._over))
                arguments = {"requested": notes[name].wanted}
                events.append(_complete("waits", requested, after, _RUN, 0, arguments))
            for start, end, arguments in sorted(spans, key=lambda span: span[:2]):
                # An allocation that the scheduler requeued began again; an allocation of several
                # nodes has several workers at a time.
                start = max(start, after)
                if end >= start:
                    events.append(_complete("allocation", start, end, _RUN, 0, arguments))
                    after = end
            yield f"allocation {name}", events

    def _span(self, worker: WorkerView) -> tuple[int, int, dict[str, str]]:
        """From the beginning of a worker's allocation to the worker's end."""
        start = _microseconds(worker.began or worker.started) or 0
        about = {"node": worker.node.host, "worker": str(worker.worker)}
        return start, self._last[worker.worker], about


def _by_allocation(workers: Sequence[WorkerView]) -> dict[str, list[WorkerView]]:
    found: dict[str, list[WorkerView]] = defaultdict(list)
    for worker in workers:
        if worker.allocation is not None:
            found[worker.allocation].append(worker)
    return found


def _in_slots(slices: Sequence[_Slice]) -> Iterator[tuple[int, _Slice]]:
    """Each slice with its slot, the first free one: slices that overlap have different slots."""
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    slots = 0
    for found in sorted(slices, key=lambda found: (found.start, found.end)):
        while busy and busy[0][0] <= found.start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            slot = heapq.heappop(free)
        else:
            slot, slots = slots, slots + 1
        heapq.heappush(busy, (found.end, slot))
        yield slot, found


def _events_of(found: _Slice, pid: int, tid: int) -> Iterator[Event]:
    view, attempt, outcome = found.job.view, found.attempt, found.outcome
    ticket = view.ticket
    assert ticket is not None
    arguments: dict[str, object] = {
        "job": view.job,
        "attempt": attempt.attempt,
        "outcome": attempt.ending or "running",
        **_told(ticket.labels),
        "log": str(view.log),
        "runner": attempt.runner,
        "cores": ticket.resources.cores,
        "submitted": ticket.submitted,
    }
    if attempt.counts and view.result is not None:
        arguments["cpu_seconds"] = view.result.cpu_seconds
        arguments["peak_memory_mb"] = view.result.peak_memory_mb
    event = _complete(_rule(found.job), found.start, found.end, pid, tid, arguments)
    event["cat"] = outcome
    if outcome in _COLOURS:
        event["cname"] = _COLOURS[outcome]
    yield event
    if outcome in _MARKED:
        told = {"job": view.job, "attempt": attempt.attempt, "outcome": attempt.ending}
        yield _instant(outcome, found.end, pid, tid, told)


def _rule(job: JobHistory) -> str:
    ticket = job.view.ticket
    assert ticket is not None
    return ticket.labels.get("rule", ticket.name)


def _told(labels: Mapping[str, str]) -> dict[str, str]:
    return {name: labels[name] for name in ("wildcards",) if name in labels}


def _microseconds(time: str | None) -> int | None:
    """Microseconds since 1970; None if the text is no time."""
    try:
        return round(datetime.fromisoformat(time or "").timestamp() * 1e6)
    except ValueError:
        return None


def _complete(
    name: str, start: int, end: int, pid: int, tid: int, arguments: Mapping[str, Any]
) -> Event:
    duration = max(0, end - start)
    about = {"ts": start, "dur": duration, "pid": pid, "tid": tid}
    return {"ph": "X", "name": name, **about, "args": dict(arguments)}


def _instant(name: str, when: int, pid: int, tid: int, arguments: Mapping[str, Any]) -> Event:
    where = {"ts": when, "pid": pid, "tid": tid, "s": "t"}
    return {"ph": "i", "name": name, **where, "args": dict(arguments)}


def _process(pid: int, name: str, position: int) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
    order = {"sort_index": position}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": order}


def _thread(pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
