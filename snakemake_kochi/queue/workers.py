"""Workers: their capacity, their state files, their remaining time, and their requests."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from snakemake_kochi.errors import DamagedFileError, NameNotFoundError, nearest
from snakemake_kochi.files import is_there, read_json, to_json, write_atomically
from snakemake_kochi.heartbeat import HEARTBEAT_INTERVAL
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import Node, ProcessIdentity, this_node
from snakemake_kochi.quantities import seconds_since
from snakemake_kochi.queue.entries import worker_numbers
from snakemake_kochi.tickets.capacity import Capacity

_log = logging.getLogger(__name__)

VERSION = 2
# Seconds by which two rounded times may differ.
ROUNDING = 2.0
State = Literal["running", "leaving", "finishing", "draining", "left"]


@dataclass(frozen=True)
class WorkerState:
    """A worker's own account of itself: worker.json, which only the worker writes.

    `state` is "running" (claims tickets), "leaving" (has found its queues empty and looks a last
    time), "finishing" (was released, claims no more and leaves when its jobs have ended),
    "draining" (claims no more and requeues its tickets) or "left" (has ended in good order).
    `running` maps job numbers to the times when the jobs started. `heartbeat` counts the signs of
    life, at least one in `heartbeat_interval` seconds, which are more while the worker rests; most
    of them only set the time of the file, and the counter there is behind. With `controller`, the
    worker claims only the tickets of that controller, which started it. `allocation` is the
    scheduler's name of the allocation in which the worker runs, and `allocation_began` is when that
    allocation began. `capacity` is the capacity that the worker hands out, `until` the time by
    which it must end, `idle_since` when it last became idle (None while it has jobs), and `reason`
    why it is draining or has left. `succeeded` and `failed` count its jobs; `by_queue` has the same
    counts for each queue. `ahead` are the jobs that it has claimed and will start when there is
    room; `waits` says which of them waits for the lock of its computer, and why. `fresh` means that
    it has just begun, and takes jobs as if it had the whole time of its allocation. `presumed_dead`
    is not part of its own account: it says whether there is a PresumedDead.
    """

    worker: int
    state: State
    process: ProcessIdentity
    node: Node
    queues: tuple[str, ...]
    capacity: Capacity
    started: str
    updated: str
    heartbeat: int = 0
    running: Mapping[int, str] = field(default_factory=dict)
    controller: str | None = None
    allocation: str | None = None
    allocation_began: str | None = None
    until: str | None = None
    idle_since: str | None = None
    reason: str = ""
    succeeded: int = 0
    failed: int = 0
    by_queue: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    ahead: tuple[int, ...] = ()
    waits: str = ""
    fresh: bool = False
    heartbeat_interval: float = HEARTBEAT_INTERVAL
    presumed_dead: bool = False

    def to_dict(self) -> dict[str, Any]:
        own = asdict(self)
        del own["presumed_dead"]
        if self.capacity.nodes == 1:  # which earlier releases do not know
            del own["capacity"]["nodes"]
        return {"version": VERSION, **own}

    @property
    def is_lost(self) -> bool:
        """Whether it died without leaving, or was presumed dead: it claims nothing any more.

        Its jobs may still be about to end. A process that requeues its tickets must ask an
        Observer.
        """
        return self.presumed_dead or self.has_died

    @property
    def has_died(self) -> bool:
        """Whether its process has certainly ended; known only of workers on this host."""
        return self.process.has_ended(self.node)

    @property
    def is_live(self) -> bool:
        """Whether it can be expected to claim tickets submitted now."""
        return self.state == "running" and not self.is_lost

    @property
    def is_gone(self) -> bool:
        """Whether it has left or is lost; otherwise jobs of it may be running."""
        return self.state == "left" or self.is_lost

    @property
    def is_on_this_node(self) -> bool:
        return this_node().can_see(self.node)

    def describe(self) -> str:
        """The state for people: as recorded, or "lost" when it died without recording that."""
        return "lost" if self.state != "left" and self.is_lost else self.state


def seconds_left(worker: WorkerState) -> float | None:
    """How long a worker will exist by its own account; None when nothing limits it."""
    since = seconds_since(worker.until)
    return None if since is None else max(0.0, -since)


def seconds_in_all(worker: WorkerState) -> float | None:
    """The whole duration of a worker's allocation; None when nothing limits it."""
    left = seconds_left(worker)
    if left is None:
        return None
    return left + (seconds_since(worker.allocation_began) or 0.0) + ROUNDING


def seconds_for_jobs(worker: WorkerState, reserve: float = 0.0) -> float | None:
    """The longest duration of a job that a worker may start now; None when nothing limits it.

    A fresh worker counts with the whole time of its allocation: the time that it took to start is
    no reason to refuse a job as long as an allocation may be. `reserve` is the part of their time
    that other workers in an allocation keep back.
    """
    left = seconds_left(worker)
    if left is None or worker.allocation is None:
        return left
    return seconds_in_all(worker) if worker.fresh else max(0.0, left - reserve)


def read_worker(machine: MachinePaths, worker: int) -> WorkerState:
    """Read a worker's state. Raises FileNotFoundError if it never started, or DamagedFileError."""
    path = machine.worker(worker).state
    data = read_json(path, VERSION)
    try:
        state = WorkerState(
            worker=int(data["worker"]),
            state=data["state"],
            process=ProcessIdentity.from_dict(data["process"]),
            node=Node.from_dict(data["node"]),
            queues=tuple(map(str, data["queues"])),
            capacity=_capacity(data),
            started=str(data["started"]),
            updated=str(data["updated"]),
            heartbeat=int(data["heartbeat"]),
            running={int(job): str(since) for job, since in data["running"].items()},
            controller=_text_or_none(data.get("controller")),
            allocation=_text_or_none(data.get("allocation")),
            allocation_began=_text_or_none(data.get("allocation_began")),
            until=_text_or_none(data.get("until")),
            idle_since=_text_or_none(data.get("idle_since")),
            reason=str(data.get("reason", "")),
            succeeded=int(data.get("succeeded", 0)),
            failed=int(data.get("failed", 0)),
            by_queue=_counts(data.get("by_queue", {})),
            ahead=tuple(map(int, data.get("ahead", ()))),
            waits=str(data.get("waits", "")),
            fresh=bool(data.get("fresh", False)),
            heartbeat_interval=float(data.get("heartbeat_interval", HEARTBEAT_INTERVAL)),
            presumed_dead=is_there(machine.worker(worker).presumed_dead),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedFileError(f"{path}: not a worker's state ({error!r})") from error
    if state.state not in get_args(State):
        expected = ", ".join(get_args(State))
        raise DamagedFileError(f"{path}: key 'state': {state.state!r} is not one of: {expected}")
    return state


def _capacity(data: Mapping[str, Any]) -> Capacity:
    if "capacity" not in data:  # version 1
        return Capacity(int(data["cores"]), 0)
    return Capacity(**{key: int(value) for key, value in data["capacity"].items()})


def _counts(data: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    return {str(queue): (int(good), int(bad)) for queue, (good, bad) in data.items()}


def _text_or_none(value: object) -> str | None:
    return None if value is None else str(value)


def list_workers(machine: MachinePaths) -> list[WorkerState]:
    """All workers that ever existed, by number.

    A worker whose file is damaged is left out with a warning.
    """
    workers = []
    for worker in worker_numbers(machine):
        try:
            workers.append(read_worker(machine, worker))
        except FileNotFoundError:
            continue  # the directory of a worker is made before the worker starts
        except DamagedFileError as error:
            _log.warning("%s", error.message)
    return workers


def find_worker(machine: MachinePaths, worker: int) -> WorkerState:
    """The state of a worker. Raises NameNotFoundError when no such worker was ever started."""
    try:
        return read_worker(machine, worker)
    except FileNotFoundError as error:
        if worker in (requested := requested_workers(machine)):
            raise NameNotFoundError(
                f"worker {worker} on machine {machine.name} has not started yet: its allocation "
                f"{requested[worker].allocation} is requested"
            ) from error
        known = nearest(str(worker), map(str, worker_numbers(machine)))
        raise NameNotFoundError(
            f"there is no worker {worker} on machine {machine.name}; {known}",
            "List them with: kochi show workers -a",
        ) from error


def find_lost(machine: MachinePaths, workers: Iterable[int]) -> dict[int, WorkerState]:
    """The lost workers among these.

    A worker registers before it claims. So if a worker has no readable file, the file was tampered
    with, and the worker does not count as lost.
    """
    lost = {}
    for worker in workers:
        # An unknown state proves nothing.
        with contextlib.suppress(OSError, DamagedFileError):
            state = read_worker(machine, worker)
            if state.is_lost:
                lost[worker] = state
    return lost


@dataclass(frozen=True)
class RequestedWorker:
    """asked.json: a worker that a person has requested.

    `allocation` is the scheduler's name of the allocation in which it will run, and `owner` is the
    name of that allocation as a job of the scheduler.
    """

    worker: int
    allocation: str
    owner: str


def note_requested(machine: MachinePaths, requested: RequestedWorker) -> None:
    """Record a requested worker, after `assign_queues` has set its queues."""
    content = to_json({"version": VERSION, **asdict(requested)})
    write_atomically(machine.worker(requested.worker).requested, content)


def requested_workers(
    machine: MachinePaths, among: Iterable[int] | None = None
) -> dict[int, RequestedWorker]:
    """The requested workers that have not started and were not released meanwhile, all or those
    `among` some."""
    found = {}
    for worker in worker_numbers(machine) if among is None else among:
        paths = machine.worker(worker)
        if not is_there(paths.requested) or is_there(paths.state) or is_there(paths.release):
            continue
        with contextlib.suppress(DamagedFileError, KeyError, FileNotFoundError):
            data = read_json(paths.requested, VERSION)
            found[worker] = RequestedWorker(worker, str(data["allocation"]), str(data["owner"]))
    return found
