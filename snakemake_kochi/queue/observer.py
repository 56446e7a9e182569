"""Which workers of a queue are dead: whom a process watches, how often, and at what cost.

Every busy worker watches others. The file server must not notice how many they are: a look costs
one call, a worker watches few others, and who the others are is listed more rarely the more they
are. So the calls of all workers together grow with their number and not with its square.
"""

from __future__ import annotations

import bisect
import contextlib
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import answered
from snakemake_kochi.heartbeat import LOST_AFTER, Stillness
from snakemake_kochi.paths import MachinePaths, QueuePaths
from snakemake_kochi.queue.entries import Entry
from snakemake_kochi.queue.heartbeat import SETTLING, presume_dead
from snakemake_kochi.queue.kept import KeptQueue
from snakemake_kochi.queue.skipped import Postponed
from snakemake_kochi.queue.workers import WorkerState, read_worker

# Up to so many workers, a worker watches all others, and a controller looks at each call at those
# of other nodes.
_FEW = 8
# How many others a worker watches if there are more, unless some of these are silent.
_SUCCESSORS = 2
# Seconds between two listings of a queue's workers: at least the first, and the second for each
# worker. So all workers together list five times a second at most.
_LISTING = 5.0
_LISTING_PER_WORKER = 0.2
# A worker lists those that only serve the queue less often: they have no ticket that would wait.
_LISTING_SERVING = 30.0
# Seconds between two looks at a worker of another node, or one of its heartbeat intervals if that
# is shorter.
_LOOK = 5.0
# Heartbeat intervals after which a watched worker without a heartbeat counts as silent.
_SILENT_AFTER = 2


@dataclass(frozen=True)
class _Roster:
    """The other workers that have tickets of a queue or serve it, those that serve it, and when to
    list them, and those that serve it, again."""

    workers: tuple[int, ...]
    serving: tuple[int, ...]
    due: float
    serving_due: float


@dataclass(frozen=True)
class _File:
    """A worker's file: its time in nanoseconds, and what shows that it was written, as far as the
    two are not the same by chance."""

    modified: int
    content: tuple[int, int]


@dataclass(frozen=True)
class _Seen:
    """A watched worker: its state when its file was last read, which file that was, and when to
    look again."""

    state: WorkerState
    file: _File
    due: float


class Observer:
    """Remembers the heartbeats of workers, to find the dead ones.

    Each process that requeues the tickets of dead workers has one: an observer without a past sees
    only deaths that need no earlier look. `postponed` are the tickets of dead workers that could
    not be requeued.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        worker: int | None = None,
        kill_patience: float = 5.0,
    ) -> None:
        """Make an observer without a past.

        `worker` is the number of the observing worker; None if a controller observes.
        `kill_patience` is the number of seconds after which killed processes must be gone.
        """
        self.kill_patience = kill_patience
        self._clock = clock
        self._worker = worker
        self._stillness = Stillness(clock)
        self._kept: dict[str, KeptQueue] = {}  # by the name of the queue
        self._rosters: dict[str, _Roster] = {}  # in the same way
        self._seen: dict[int, _Seen] = {}
        self._silent: set[int] = set()
        self.postponed = Postponed(clock)

    def find_dead(
        self, machine: MachinePaths, queue: QueuePaths, running: Sequence[Entry] | None = None
    ) -> dict[int, WorkerState]:
        """The workers of a queue that are dead, so that they can no longer change a ticket.

        They had tickets, or only served the queue: otherwise a worker that died idle would count as
        serving it for ever. Workers on other nodes whose heartbeat stood still for LOST_AFTER
        intervals are also presumed dead here (`presumed-dead.json`). A worker registers before it
        claims. So if a worker has no readable file, the file was tampered with, and the worker is
        not included. `running` are the claims of the queue, if they were listed just now. Raises
        OSError when the workers cannot be listed.
        """
        workers = self._workers_of(queue, running)
        is_eager = self._is_eager(workers)
        dead = {}
        for worker in self.share_of(workers):
            # A filesystem that answers with an error proves nothing.
            with contextlib.suppress(OSError, DamagedFileError):
                found = self._look_if_due(machine, worker, is_eager)
                if found is not None and self._is_dead(machine, *found):
                    dead[worker] = found[0]
        if dead:
            # As long as one of them has a ticket that cannot be requeued, it is found again.
            self._rosters.pop(queue.name)
        return dead

    def sees_only_this_node(self, queues: Iterable[str]) -> bool:
        """Whether all workers of these queues are on this node, as far as they were seen."""
        rosters = [self._rosters.get(queue) for queue in queues]
        workers = {worker for roster in rosters if roster for worker in roster.workers}
        seen = [self._seen.get(worker) for worker in workers]
        return (
            bool(workers)
            and all(roster and roster.workers for roster in rosters)
            and all(each is not None and each.state.is_on_this_node for each in seen)
        )

    def kept(self, queue: QueuePaths) -> KeptQueue:
        """The claims and workers of a queue, as this process sees them again and again."""
        return self._kept.setdefault(queue.name, KeptQueue(queue))

    def _workers_of(self, queue: QueuePaths, running: Sequence[Entry] | None) -> tuple[int, ...]:
        """The other workers that have tickets of a queue, or serve it, as they were listed last."""
        known, now = self._rosters.get(queue.name), self._clock()
        if known is not None and now < known.due and not self._is_eager(known.workers):
            return known.workers
        running = self.kept(queue).running() if running is None else running
        found = {entry.worker for entry in running if entry.worker is not None}
        if known is not None and now < known.serving_due:
            serving, serving_due = known.serving, known.serving_due
        else:
            serving = tuple(self.kept(queue).subscribers())
            serving_due = now + (_LISTING if self._worker is None else _LISTING_SERVING)
        if known is not None and now < known.due:
            due = known.due
        else:
            most = len(found.union(serving))
            due = now + max(_LISTING, most * _LISTING_PER_WORKER)
        workers = tuple(sorted(found.union(serving) - {self._worker}))
        self._rosters[queue.name] = _Roster(workers, serving, due, serving_due)
        return workers

    def _is_eager(self, workers: Collection[int]) -> bool:
        return self._worker is None and len(workers) <= _FEW

    def share_of(self, workers: Iterable[int]) -> list[int]:
        """The workers that this observer watches.

        A worker watches the next ones by number; the first follows the last. So several workers
        watch each one. A worker goes on watching silent workers, and watches at least as many
        others in addition, because many may have died together. A controller watches all.
        """
        others = sorted(workers)
        if self._worker is None or len(others) <= _FEW:
            return others
        silent = self._silent.intersection(others)
        heard = [worker for worker in others if worker not in silent]
        first = bisect.bisect_right(heard, self._worker)
        further = max(_SUCCESSORS, len(silent))
        return sorted({*silent, *[*heard, *heard][first : first + further]})

    def _look_if_due(
        self, machine: MachinePaths, worker: int, is_eager: bool
    ) -> tuple[WorkerState, float] | None:
        """See `look`; None if it is not yet time to look, or if the worker has given a sign.

        Most looks cost one call: only the time of the file. It is read when the worker is new, has
        written it while it had no job, or is silent: the time may come from the cache of a
        network filesystem, which opening the file refreshes. An observer that `is_eager` looks now
        at those of other nodes, and reads each change.
        """
        seen = self._seen.get(worker)
        if seen is None or seen.state.presumed_dead or seen.state.has_died:
            return self.look(machine, worker)
        # Of a worker on this node the kernel tells whether it lives.
        if seen.state.is_on_this_node or (not is_eager and self._clock() < seen.due):
            return None
        began = self._clock()
        file = _file(machine, worker)
        has_changed = file.modified != seen.file.modified
        if has_changed and is_eager:
            return self.look(machine, worker)
        found = self._compare(machine, seen, file, began)
        return None if has_changed else found

    def glance(self, machine: MachinePaths, worker: int) -> tuple[WorkerState, float]:
        """See `look`; the state is that of the last look, unless the worker is silent or new.

        Most calls cost one call of the filesystem.
        """
        seen = self._seen.get(worker)
        if seen is None:
            return self.look(machine, worker)
        began = self._clock()
        return self._compare(machine, seen, _file(machine, worker), began)

    def _compare(
        self, machine: MachinePaths, seen: _Seen, file: _File, began: float
    ) -> tuple[WorkerState, float]:
        if file.content != seen.file.content and seen.state.idle_since is not None:
            # It may have a job again, and so no longer rest.
            return self.look(machine, seen.state.worker)
        still = self._note(seen.state, file, began)
        if still >= _SILENT_AFTER * seen.state.heartbeat_interval:
            return self.look(machine, seen.state.worker)
        return seen.state, still

    def look(self, machine: MachinePaths, worker: int) -> tuple[WorkerState, float]:
        """A worker's state, and for how many seconds at least its heartbeat has stood still.

        Raises OSError or DamagedFileError when its file cannot be read.
        """
        began = self._clock()
        state = read_worker(machine, worker)
        return state, self._note(state, _file(machine, worker), began)

    def _note(self, state: WorkerState, file: _File, began: float) -> float:
        """Note what was seen of a worker; return for how many seconds that has not changed."""
        sign: Hashable = (state.process, state.heartbeat, file.modified)
        if state.presumed_dead:
            sign = "lost"
        interval = state.heartbeat_interval
        still = self._stillness.note(state.worker, sign, interval, began)
        if still >= _SILENT_AFTER * interval:
            self._silent.add(state.worker)
        else:
            self._silent.discard(state.worker)
        self._seen[state.worker] = _Seen(state, file, began + min(_LOOK, interval))
        return still

    def _is_dead(self, machine: MachinePaths, state: WorkerState, still: float) -> bool:
        if state.state == "left" or state.has_died:
            return True
        if state.is_on_this_node:
            return False  # it may be stopped; then its supervisor will end it
        if state.presumed_dead:
            return still >= SETTLING * state.heartbeat_interval
        if still >= LOST_AFTER * state.heartbeat_interval:
            presume_dead(machine, state, still)
        return False


def _file(machine: MachinePaths, worker: int) -> _File:
    """A worker's file; on a full disk, its time is the only sign of life."""
    found = answered(machine.worker(worker).state.stat)
    return _File(found.st_mtime_ns, (found.st_ino, found.st_size))
