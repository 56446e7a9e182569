"""What people see of jobs, queues and workers.

What it says may be outdated when it is read. A job is named as in `tickets.history.JobId`.
"""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from snakemake_kochi.base import files
from snakemake_kochi.errors import KochiError, NameNotFoundError, nearest
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import Node, ProcessIdentity, this_node
from snakemake_kochi.quantities import format_duration, seconds_since
from snakemake_kochi.queue.paused import PausedBatch, pause_of
from snakemake_kochi.tickets import hand, history
from snakemake_kochi.tickets.capacity import Capacity
from snakemake_kochi.tickets.history import HAND_JOB, JobId, View, key_of
from snakemake_kochi.tickets.moving import is_listed, listing
from snakemake_kochi.tickets.names import SERVE, SERVING, Layout, Name, RunPaths, numbers_in
from snakemake_kochi.tickets.run import ENDED
from snakemake_kochi.tickets.ticket import Resources, Ticket
from snakemake_kochi.tickets.watching import facts_in

# Sentences for each of hundreds of workers would hide the useful one.
_MOST_NAMED = 3
# Seconds without a heartbeat after which nobody expects another one; the clock of the file server
# may differ by minutes.
SILENT = 600.0
_WORDS = {"success": "succeeded", "cancelled": "cancelled"}  # the other ends are failures
_FAILURES = ("failed", "signal", "memory", "timeout", "node", "lost")
_REASONS = {"memory": "out of memory", "node": "node failed"}


def _was_used(machine: MachinePaths) -> bool:
    """Whether there is a directory for it: else nothing is missing that it lacks."""
    return machine.directory.is_dir()


# ---- jobs


@dataclass(frozen=True)
class Attempt:
    """An attempt of a job, or its end; with a `cause`, it went back to the queue.

    `end` is as in the names of tickets; "" while it lasts. `worker` is None if none had it.
    """

    attempt: int
    worker: int | None
    end: str
    node: str = ""
    started: str | None = None
    ended: str | None = None
    exit_status: int | None = None
    signal: int | None = None
    detail: str = ""
    cause: str = ""
    runner: str = ""
    skipped_runners: str = ""
    cpu_seconds: float | None = None
    peak_memory_mb: int | None = None

    @classmethod
    def of_line(cls, line: Mapping[str, Any], attempt: int, worker: str, end: str) -> Attempt:
        """From what a worker wrote at its end."""
        details = line.get("details") or {}
        known = {field.name: details[field.name] for field in fields(cls) if field.name in details}
        number = int(worker) if worker.isdecimal() else None
        cause = details.get("reason", "")
        return cls(**{**known, "attempt": attempt, "worker": number, "end": end, "cause": cause})

    @property
    def ok(self) -> bool:
        return self.end == "success"

    @property
    def state(self) -> str:
        """The end of a job in a word: succeeded, failed or cancelled."""
        return _WORDS.get(self.end, "failed")

    @property
    def reason(self) -> str:
        return self.cause or _REASONS.get(self.end, self.end)

    @property
    def seconds(self) -> float | None:
        since, until = seconds_since(self.started), seconds_since(self.ended)
        return None if since is None else max(0.0, since - (until or 0.0))

    @property
    def counts(self) -> bool:
        return not self.cause

    @property
    def ending(self) -> str | None:
        """In a few words: "succeeded", "exit status 1", "killed by SIGKILL"; None: it lasts."""
        if self.end == "failed" and self.exit_status is not None:
            text = f"exit status {self.exit_status}"
        elif self.end == "signal" and self.signal is not None:
            text = f"killed by {_name_of_signal(self.signal)}"
        else:
            text = _WORDS.get(self.end, self.reason)
        return f"{text}: {self.detail}" if self.detail else text or None

    def describe(self) -> str:
        return self.ending or "running"


def _name_of_signal(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


class JobView:
    """One job at one moment. `ticket` is None if it is damaged, `result` until it has ended."""

    def __init__(self, machine: MachinePaths, view: View) -> None:
        self._machine, self._view, self._layout = machine, view, machine.layout
        self.name = view.name
        self.kept = view.ticket
        self.queue = view.queue
        self.job = view.job
        self.attempt = view.name.attempt
        self.state = "ended" if view.name.state else view.state
        self.worker = int(view.name.worker) if view.name.worker.isdecimal() else None
        self.log = Path(self._layout.run(view.name.run).log(view.name))

    @cached_property
    def ticket(self) -> Ticket | None:
        data = self.kept
        with suppress(KochiError, KeyError, TypeError):
            command = data["command"]
            return Ticket(
                name=data["name"],
                command=("bash", "-c", command) if isinstance(command, str) else tuple(command),
                directory=data["directory"],
                submitted=data["submitted"],
                resources=Resources(**data["resources"]),
                labels=data["labels"],
                queue=self.queue,
                machine=self._machine.name,
            )
        return None

    @cached_property
    def result(self) -> Attempt | None:
        name = self.name
        if not name.state:
            return None
        return Attempt.of_line(self._view.line, name.attempt, name.worker, name.state)

    @property
    def attempts(self) -> list[Attempt]:
        """All of which something is known: a dead worker wrote nothing."""
        found = [
            Attempt.of_line(line, line["attempt"], line["worker"], "waiting")
            for line in self._view.line.get("earlier", ())
        ]
        if self.result is not None:
            return found if self.worker is None else [*found, self.result]
        if self.worker is None:
            return found
        now = Attempt(self.attempt, self.worker, "", self.node or "", self.started)
        return [*found, now]

    @cached_property
    def started(self) -> str | None:
        if self.result is not None:
            return self.result.started
        return claimed_at(f"{self._layout.queue(self.queue).running}/{self.name}")

    @cached_property
    def node(self) -> str | None:
        if self.result is not None:
            return self.result.node
        worker = None if self.worker is None else read_worker(self._layout, self.worker)
        return None if worker is None else worker.node.host

    @cached_property
    def cancelling(self) -> bool:
        path = self._layout.worker(self.name.worker).cancel(self.name)
        return self.state == "running" and os.path.exists(path)

    @property
    def output(self) -> bytes:
        """What its attempts have printed."""
        return b"".join(map(self.output_of, range(1, self.attempt + 1)))

    def output_of(self, attempt: int) -> bytes:
        own = self._layout.run(self.name.run), replace(self.name, attempt=attempt)
        # Where `by_hand.tidy` puts it.
        joined = RunPaths(self._layout.history), Name(0, self.name.run, attempt)
        for paths, name in (own, joined, own):
            if is_listed(paths.directory) and (found := history.log_of(paths, name)) is not None:
                return found
        return b""


def claimed_at(path: str) -> str | None:
    """When a ticket was claimed; None if it is not at this path."""
    with suppress(OSError):  # the rename of its claim has set this time
        return datetime.fromtimestamp(os.stat(path).st_ctime, UTC).isoformat()
    return None


@dataclass(frozen=True)
class JobFilter:
    """Which jobs a person wants to see. An empty tuple and None exclude no job.

    `project`, a directory: jobs that have its label, or that work below it.
    """

    names: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    project: Path | None = None

    def accepts(self, view: JobView) -> bool:
        return (
            (not self.names or view.kept.get("name") in self.names)
            and (not self.queues or view.queue in self.queues)
            and (not self.states or state_name(view) in self.states)
            and (self.project is None or self._is_of_project(self.project, view.kept))
        )

    @staticmethod
    def _is_of_project(project: Path, kept: Mapping[str, Any]) -> bool:
        if label := (kept.get("labels") or {}).get("project"):
            return Path(label) == project
        return Path(kept.get("directory") or "/").is_relative_to(project)


_ALL = JobFilter()


def list_jobs(
    machine: MachinePaths, ended: bool = False, limit: int = 100, wanted: JobFilter = _ALL
) -> list[JobView]:
    """The newest `limit` jobs: those that wait and run, then, with `ended`, those that ended."""
    layout = machine.layout
    if not _was_used(machine):
        return []
    views: Iterator[View] = history.living(layout)
    if ended:
        # In the order in which a job moves: none is missed.
        states = _FAILURES if wanted.states == ("failed",) else ()
        found = history.ended(layout, states=states, names=wanted.names)
        views = chain(views, uncollected(layout), found)
    unique: dict[tuple[int, int], JobView] = {}
    for each in views:
        if len(unique) == limit:
            break
        view = JobView(machine, each)
        if each.name.key not in unique and wanted.accepts(view):
            unique[each.name.key] = view
    return list(unique.values())


def uncollected(layout: Layout) -> Iterator[View]:
    """The ended jobs that their runs have not collected, the newest first; folds those by hand."""
    for run in reversed(numbers_in(listing(layout.runs))):
        texts = listing(layout.run(run).directory)
        if hand.HAND in texts:
            with suppress(OSError):
                hand.fold(layout, run)
        elif ENDED not in texts:
            yield from history.in_inbox(layout, run)


def find_job(machine: MachinePaths, job: JobId) -> JobView:
    """Raises NameNotFoundError."""
    layout = machine.layout
    if not machine.directory.exists():  # or no listing would say so: it might be a lost mount
        message = f"there is no job {job} on machine {machine.name}; there are none"
        raise NameNotFoundError(message, "List them with: kochi show jobs -t")
    run, number = key_of(job)
    view = history.find(layout, run, number)
    # 17 is the first job of a run only if a person submitted it.
    if view is None or not (view.is_by_hand or isinstance(job, str)):
        raise _unknown(machine, layout, run, number, job)
    if view.is_by_hand and view.name.state and not view.queue:  # in its inbox
        with suppress(OSError):
            hand.fold(layout, run)
        view = history.find(layout, run, number) or view
    return JobView(machine, view)


def _unknown(
    machine: MachinePaths, layout: Layout, run: int, number: int, job: JobId
) -> NameNotFoundError:
    runs = numbers_in(listing(layout.runs))
    message = f"there is no job {job} on machine {machine.name}"
    if run not in runs:
        last = max(runs, default=0)
        known = f"the newest is of number {last}" if last else "there are none"
        if run < last:
            known += ", and `kochi clean` deletes the files of old ones"
    elif history.was_by_hand(layout, run):
        known = "its submission was not finished" if number == HAND_JOB else f"{run} is one job"
    else:
        facts = facts_in(layout.run(run).facts) or {}
        where = facts.get("directory", "a directory that its damaged file does not tell")
        last = 0
        for line in history.lines_backwards(layout.run(run).journal, [b'"keys": ["']):
            last = max(last, line["submitted"] + len(line["keys"]) - 1)
            break
        jobs = f"with the jobs {run}.1 to {run}.{last}" if last else "without jobs"
        known = f"{run} is a run in {where}, {jobs}"
    return NameNotFoundError(f"{message}; {known}", "List them with: kochi show jobs -t")


def has_ended(machine: MachinePaths, job: JobId) -> bool:
    """Raises OSError when that is not known now."""
    try:
        return hand.is_over(machine.layout, *key_of(job))
    except FileNotFoundError:
        return find_job(machine, job).state == "ended"


def state_name(view: JobView) -> str:
    """The state in a word: waiting, running, cancelling, succeeded, failed or cancelled."""
    if view.result is not None:
        return view.result.state
    return "cancelling" if view.cancelling else view.state


def state_of(view: JobView) -> str:
    """The state in a word, with further facts: "failed: exit status 1"."""
    name = state_name(view)
    said = name if view.result is None else view.result.describe()
    return said if said.startswith(name) else f"{name}: {said}"


# ---- why


def reasons(machine: MachinePaths, view: JobView, to_start: Callable[[str], str]) -> list[str]:
    """Why a job is in its present state, the most important reason first."""
    if view.result is not None:
        if view.result.worker is None:
            return [f"{view.result.describe()}; no worker had it"]
        where = f"worker {view.worker}" + (f" on {view.node}" if view.node else "")
        return [f"{view.result.describe()}, attempt {view.attempt} on {where}"]
    if view.ticket is None:
        return ["its ticket is damaged: the job fails when a worker has claimed it"]
    if view.worker is not None:
        said = [_why_running(machine, view)]
    elif (paused := pause_of(machine, view.ticket)) is not None:
        said = [why_paused(paused)]
    elif servers := serving(machine.layout, view.queue, view.name.run):
        said = list(_why_waiting(machine, view, view.ticket, servers))
    elif coming := _coming(machine, view.queue):
        said = [f"no worker serves queue {view.queue} yet; {', '.join(coming[:_MOST_NAMED])}"]
    else:
        start = to_start(view.queue)
        said = [f"no worker serves queue {view.queue}; start one with: {start}"]
    said += [
        f"attempt {each.attempt}, worker {each.worker} on {each.node}: {each.ending}"
        for each in view.attempts
        if each.cause
    ]
    return said


def _coming(machine: MachinePaths, queue: str) -> list[str]:
    return [
        f"worker {each.worker} waits for its allocation {each.allocation}"
        for each in requested_workers(machine).values()
        if queue in each.queues
    ]


def why_paused(paused: PausedBatch) -> str:
    """A sentence about a paused batch, with what to type."""
    words = shlex.join(["kochi", "batch", paused.experiment, paused.batch, "--resume"])
    what = f"batch {paused.batch} of {paused.experiment} has been paused{_for(paused.since)}"
    return f"{what}; to resume it, type in {paused.directory}: {words}"


def _why_running(machine: MachinePaths, view: JobView) -> str:
    assert view.worker is not None
    worker = read_worker(machine.layout, view.worker)
    name = f"worker {view.worker}" + (f" on {worker.node.host}" if worker else "")
    if worker is not None and worker.is_lost:
        return f"{name} died: the next worker or run that notices requeues the job"
    if view.cancelling:
        return f"{name} is ending its processes"
    if worker is not None and worker.waits:
        return f"{name} has it; {worker.waits}"
    return f"{name} runs it{_for(view.started)}"


def _why_waiting(
    machine: MachinePaths, view: JobView, ticket: Ticket, servers: Sequence[WorkerView]
) -> Iterator[str]:
    obstacles = obstacles_of(servers, ticket.resources)
    open_ = [each for each in servers if each.state in ("running", "leaving")]
    able = [each for each in open_ if obstacles[each.worker] is None]
    if not able:
        never = "can ever run it" if open_ else "claims further jobs"
        yield f"no worker of queue {view.queue} {never}"
    places = history.places(machine.layout)
    before = sum(
        queue == view.queue and not name.worker and name.key < view.name.key
        for name, queue, _ in places
    )
    if able and before:
        yield f"{before} {'other job waits' if before == 1 else 'other jobs wait'} before it"
    held: dict[str, list[tuple[Name, str, str]]] = {}
    for place in places:
        held.setdefault(place[0].worker, []).append(place)
    for each in servers[:_MOST_NAMED]:
        if each not in open_:
            yield f"worker {each.worker} is being stopped"
        elif each not in able:
            yield f"worker {each.worker}: {obstacles[each.worker]}"
        elif jobs := held.get(str(each.worker)):
            yield f"worker {each.worker} runs {_named(machine, jobs)}"
        else:
            yield f"worker {each.worker} is idle: it claims it soon, unless another one does"
    if len(servers) > _MOST_NAMED:
        yield f"and {len(servers) - _MOST_NAMED} more workers"


def _named(machine: MachinePaths, jobs: Sequence[tuple[Name, str, str]]) -> str:
    """As in "job 17 (exclusive) for 3 minutes and 2 more": the oldest is the one of interest."""
    layout = machine.layout
    name, queue, path = min(jobs)
    kept: dict[str, Any] = {}
    with suppress(OSError):  # it has just ended
        kept = history.kept(files.read(path))
    by_hand = history.was_by_hand(layout, name.run)
    view = JobView(machine, View(name, queue, kept, is_by_hand=by_hand))
    is_exclusive = view.ticket is not None and view.ticket.resources.exclusive
    text = f"job {view.job}{' (exclusive)' if is_exclusive else ''}{_for(view.started)}"
    return f"{text} and {len(jobs) - 1} more" if len(jobs) > 1 else text


def _for(moment: str | None) -> str:
    """The time since then, as in " for 3 minutes"; the clocks of two nodes differ."""
    seconds = seconds_since(moment)
    return f" for {format_duration(seconds)}" if seconds is not None and seconds >= 1 else ""


# ---- workers and queues


@dataclass(frozen=True)
class WorkerView:
    """A worker; `state` is running, finishing, draining, leaving, left or lost, `reason` why.

    `running` has its jobs, with the times of their claims, as far as that was asked for.
    """

    worker: int
    state: str
    reason: str
    process: ProcessIdentity
    node: Node
    queues: tuple[str, ...]
    capacity: Capacity
    started: str
    updated: str
    until: str | None
    controller: str | None
    allocation: str | None
    running: Mapping[JobId, str | None]

    began: str | None = None  # its allocation
    waits: str = ""  # why a job that it has claimed does not begin

    @property
    def is_lost(self) -> bool:
        return self.state == "lost"

    @property
    def is_gone(self) -> bool:
        return self.state in ("left", "lost")

    @property
    def is_on_this_node(self) -> bool:
        return this_node().can_see(self.node)


def read_worker(
    layout: Layout, number: int, running: Mapping[JobId, str | None] | None = None
) -> WorkerView | None:
    """None if there is none, or if its file is damaged."""
    paths = layout.worker(str(number))
    with suppress(FileNotFoundError, KeyError, TypeError, ValueError):
        facts = facts_in(paths.facts)
        node = Node.from_dict(facts["node"])
        process = ProcessIdentity.from_dict(facts["process"])
        updated = os.stat(paths.alive).st_mtime
        texts = listing(paths.directory)
        silent = time.time() - updated
        state, reason = _state_of_worker(layout, number, texts, process, node, silent)
        queues = [*facts["queues"]]
        queues += [text.removeprefix(SERVE) for text in texts if text.startswith(SERVE)]
        waits = ""
        if state not in ("left", "lost"):
            with suppress(FileNotFoundError):
                waits = files.read(paths.waits).decode("utf-8", "replace").partition("\n")[0]
        return WorkerView(
            *(number, state, reason, process, node, tuple(dict.fromkeys(queues))),
            Capacity(**facts["capacity"]),
            facts["started"],
            datetime.fromtimestamp(updated, UTC).isoformat(),
            *(facts["until"], facts["controller"], facts["allocation"], running or {}),
            *(facts["began"], waits),
        )
    return None


def _state_of_worker(
    layout: Layout,
    number: int,
    texts: Sequence[str],
    process: ProcessIdentity,
    node: Node,
    silent: float,
) -> tuple[str, str]:
    paths, here = layout.worker(str(number)), this_node()
    left: dict[str, str] = {}
    with suppress(FileNotFoundError):  # it has not left, or goes on
        left = facts_in(paths.left) or {}
    if "ended" in left:
        return "left", left["reason"]
    if here.has_rebooted_since(node):
        return "lost", "its node was restarted"
    if here.can_see(node) and not process.is_alive():
        return "lost", "its process is gone"
    if "dead" in texts or (silent > SILENT and not here.can_see(node)):
        return "lost", f"no heartbeat for {format_duration(silent)}"
    if "release" in texts:
        how, _, why = files.read(paths.release).decode().partition("\n")
        reason = why.strip() or "released by kochi release"
        return "draining" if how.strip() == "now" else "finishing", reason
    return ("leaving" if left else "running"), ""


def list_workers(machine: MachinePaths) -> list[WorkerView]:
    """All workers, by number."""
    layout = machine.layout
    if not _was_used(machine):
        return []
    running: dict[str, dict[JobId, str | None]] = {}
    for name, queue, _ in history.places(layout):
        if name.worker:
            view = View(name, queue, {}, is_by_hand=history.was_by_hand(layout, name.run))
            job = JobView(machine, view)
            running.setdefault(name.worker, {})[job.job] = job.started
    numbers = numbers_in(listing(layout.workers))
    found = (read_worker(layout, number, running.get(str(number))) for number in numbers)
    return [worker for worker in found if worker is not None]


def find_worker(machine: MachinePaths, number: int) -> WorkerView:
    """Raises NameNotFoundError."""
    workers = list_workers(machine)
    for worker in workers:
        if worker.worker == number:
            return worker
    if number in (requested := requested_workers(machine)):
        raise NameNotFoundError(
            f"worker {number} on machine {machine.name} has not started yet: its allocation "
            f"{requested[number].allocation} is requested"
        )
    known = nearest(str(number), [str(worker.worker) for worker in workers])
    raise NameNotFoundError(
        f"there is no worker {number} on machine {machine.name}; {known}",
        "List them with: kochi show workers -a",
    )


def seconds_left(worker: WorkerView) -> float | None:
    """How long a job may take that a worker starts now; None when nothing limits it."""
    since = seconds_since(worker.until)
    return None if since is None else max(0.0, -since)


def obstacles_of(workers: Sequence[WorkerView], wanted: Resources) -> dict[int, str | None]:
    """By worker: why it can never run a job that needs this; see `Capacity.obstacle`."""
    return {each.worker: each.capacity.obstacle(wanted, seconds_left(each)) for each in workers}


def serving(layout: Layout, queue: str, run: int | None = None) -> list[WorkerView]:
    """The living workers of a queue; with `run`, those that may take its tickets."""
    if queue not in listing(layout.queues):
        return []
    texts = listing(layout.queue(queue).directory)
    numbers = numbers_in(text.removeprefix(SERVING) for text in texts if text.startswith(SERVING))
    found = (read_worker(layout, number) for number in numbers)
    living = [worker for worker in found if worker is not None and not worker.is_gone]
    return [each for each in living if run is None or each.controller in (None, str(run))]


def shared_workers(machine: MachinePaths, queue: str) -> list[WorkerView]:
    """The workers that serve a queue, take further jobs, and were started by no run."""
    if not _was_used(machine):
        return []
    return [
        each
        for each in serving(machine.layout, queue)
        if each.controller is None and each.state in ("running", "leaving")
    ]


@dataclass(frozen=True)
class RequestedWorker:
    """A worker that a person has requested.

    `allocation` is the scheduler's name of the allocation in which it will run, and `owner` is the
    name of that allocation as a job of the scheduler.
    """

    worker: int
    queues: Sequence[str]
    allocation: str
    owner: str


def requested_workers(machine: MachinePaths) -> dict[int, RequestedWorker]:
    """Those that have not started and were not released meanwhile."""
    found: dict[int, RequestedWorker] = {}
    if not _was_used(machine):
        return found
    layout = machine.layout
    for number in numbers_in(listing(layout.workers)):
        texts = listing(layout.worker(number).directory)
        if "asked.json" in texts and not {"worker.json", "release"} & {*texts}:
            with suppress(TypeError, ValueError):  # damaged
                found[number] = RequestedWorker(
                    **files.parse(files.read(layout.worker(number).asked))
                )
    return found


@dataclass(frozen=True)
class QueueView:
    name: str
    waiting: int
    running: int
    workers: tuple[int, ...]


def list_queues(machine: MachinePaths) -> list[QueueView]:
    layout = machine.layout
    if not _was_used(machine):
        return []
    waiting: Counter[str] = Counter()
    running: Counter[str] = Counter()
    for name, queue, _ in history.places(layout):
        (running if name.worker else waiting)[queue] += 1
    return [
        QueueView(
            *(queue, waiting[queue], running[queue]),
            tuple(worker.worker for worker in serving(layout, queue)),
        )
        for queue in sorted(listing(layout.queues))
    ]
