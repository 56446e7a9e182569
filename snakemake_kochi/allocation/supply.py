"""The capacity of workers: which jobs fit one, and which are left when workers are full."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from humanfriendly.text import pluralize

from snakemake_kochi.queue import Capacity, Resources, WorkerState, seconds_for_jobs, seconds_in_all
from snakemake_kochi.schedulers.interface import Limits
from snakemake_kochi.worker.walltime import START_AND_END

# Seconds that short jobs may take one after the other, instead of a worker each. With fewer
# seconds, the start and the end of a worker would take more than a quarter of its time.
PATIENCE = 4 * START_AND_END
EPSILON = 1e-9


@dataclass(frozen=True)
class Supply:
    """A worker that exists or was requested: all its resources, its time and what it has begun.

    The time is the seconds for which it can run waiting jobs; None means no limit.
    """

    capacity: Capacity
    seconds_left: float | None = None
    begun: tuple[Resources, ...] = ()

    def obstacle(self, kind: Resources) -> str | None:
        """The reason, for people, why it could not run a job even if it had no other, or None."""
        return self.capacity.obstacle(kind, self.seconds_left)


def supply_of(worker: WorkerState, resources: Mapping[int, Resources], reserve: float) -> Supply:
    """What a worker can do now.

    `resources`: those of its jobs, by their numbers. `reserve`: seconds before the end of its time
    in which it begins no job.
    """
    begun = (resources[job] for job in (*worker.running, *worker.ahead) if job in resources)
    return Supply(worker.capacity, seconds_for_jobs(worker, reserve=reserve), tuple(begun))


def idle_supplies(workers: Iterable[WorkerState], reserve: float) -> dict[str, Supply]:
    """What each worker, by its allocation, could do if it were idle."""
    return {
        worker.allocation: supply_of(replace(worker, running={}, ahead=()), {}, reserve)
        for worker in workers
        if worker.is_live and worker.allocation is not None
    }


def initial_supplies(workers: Sequence[WorkerState], reserve: float) -> dict[str, Supply]:
    """The resources of each worker at its beginning, however late it is first seen."""
    seconds = {worker.allocation: seconds_in_all(worker) for worker in workers}
    return {
        name: replace(each, seconds_left=seconds[name])
        for name, each in idle_supplies(workers, reserve).items()
    }


# ---- which jobs workers can take


def obstacle(wanted: Resources, limits: Limits) -> str | None:
    """The reason, for people, why no worker that may be requested can run a job, or None."""
    if why := limits.node.obstacle(wanted, limits.seconds):
        return why
    if limits.nodes and all(node.obstacle(wanted) for node in limits.nodes):
        return (
            f"{wanted.cores} cores, {wanted.memory_mb or 0} MiB of memory and "
            f"{pluralize(wanted.gpus, 'GPU')} needed on one node, and none has all of that"
        )
    return None


def exceeded(wanted: Resources, limits: Limits) -> list[str]:
    """The keys of a machine's `allocation` whose limits a job with an `obstacle` exceeds."""
    node = limits.node
    is_more = {
        "cores": wanted.cores > node.cores,
        "memory": (wanted.memory_mb or 0) > node.memory_mb,
        "gpus": wanted.gpus > node.gpus,
        "time": limits.seconds is not None and (wanted.runtime_seconds or 0) > limits.seconds,
    }
    # None of them alone: no one node has all of it.
    return [key for key in is_more if is_more[key]] or ["cores", "memory", "gpus"]


def not_wanted(
    waiting: Mapping[Resources, int], supply: Sequence[Supply], coming: Sequence[Supply]
) -> list[int]:
    """The indices of the requested workers that get no job.

    The workers of `supply`, and those `coming` before them, can take all jobs that wait and fit.
    """
    left = largest_first(left_over(waiting, supply))
    found = []
    for index, worker in enumerate(coming):
        rest = left_by(worker, left)
        if rest == left:
            found.append(index)
        left = rest
    return found


def left_over(kinds: Mapping[Resources, int], supply: Iterable[Supply]) -> dict[Resources, int]:
    """The jobs that are left when each worker of the supply is full of them."""
    left = largest_first(kinds)
    for worker in supply:
        left = left_by(worker, left)
    return dict(left)


def left_by(worker: Supply, jobs: Sequence[tuple[Resources, int]]) -> list[tuple[Resources, int]]:
    """The jobs that are left when a worker has taken those that fit, in the given order.

    The order is the largest first. Jobs that run one after the other share the resources of a slot,
    so each takes only a part of them.
    """
    whole = worker.capacity
    free: list[float] = [whole.cores, whole.memory_mb, whole.gpus]

    def take(kind: Resources, count: int) -> None:
        share = count / jobs_in_turn(kind, worker.seconds_left)
        for index, amount in enumerate(_amounts(kind, whole)):
            free[index] -= share * amount

    for kind in worker.begun:
        take(kind, 1)
    remaining: list[tuple[Resources, int]] = []
    for index, (kind, count) in enumerate(jobs):
        if free[0] < EPSILON:
            return [*remaining, *jobs[index:]]
        taken = 0
        if worker.obstacle(kind) is None:
            in_turn = jobs_in_turn(kind, worker.seconds_left)
            amounts = _amounts(kind, whole)
            fits = [have * in_turn / one for have, one in zip(free, amounts, strict=True) if one]
            taken = max(0, min(count, math.floor(min(fits) + EPSILON)))
        if taken:
            take(kind, taken)
        if count > taken:
            remaining.append((kind, count - taken))
    return remaining


def not_done(left: Mapping[Resources, int], supply: Iterable[Supply]) -> dict[Resources, int]:
    """The jobs that are left when each worker has done as much as it can in its time.

    The longest jobs come first.
    """
    remaining = dict(left)
    for worker in supply:
        if worker.seconds_left is None:
            continue  # the duration is not known
        time = worker.seconds_left
        for kind in worker.begun:
            time -= (kind.runtime_seconds or 0) / at_the_same_time(kind, worker.capacity)
        for kind in sorted(remaining, key=lambda kind: -(kind.runtime_seconds or 0)):
            if kind.runtime_seconds is None or worker.obstacle(kind) is not None:
                continue
            one = kind.runtime_seconds / at_the_same_time(kind, worker.capacity)
            done = max(0, min(remaining[kind], math.floor(time / one)))
            time -= done * one
            remaining[kind] -= done
    return remaining


def jobs_in_turn(kind: Resources, seconds: float | None = None) -> int:
    """The number of jobs of a kind that may run one after the other in the same slot of a worker.

    The worker has this number of seconds.
    """
    if kind.runtime_seconds is None:
        return 1
    patience = PATIENCE if seconds is None else min(PATIENCE, seconds)
    return max(1, int(patience // kind.runtime_seconds))


def at_the_same_time(kind: Resources, whole: Capacity) -> int:
    """The number of jobs of a kind that a worker runs at the same time, at least one."""
    amounts = zip((whole.cores, whole.memory_mb, whole.gpus), _amounts(kind, whole), strict=True)
    return max(1, min(have // one for have, one in amounts if one))


def _amounts(kind: Resources, whole: Capacity) -> tuple[int, int, int]:
    if kind.exclusive:
        return whole.cores, whole.memory_mb, whole.gpus
    return kind.cores, kind.memory_mb or 0, kind.gpus


def largest_first(kinds: Mapping[Resources, int]) -> list[tuple[Resources, int]]:
    return sorted(kinds.items(), key=lambda item: size(item[0]), reverse=True)


def size(kind: Resources) -> tuple[bool, int, int, int, int]:
    """The sort key of kinds of jobs."""
    seconds = kind.runtime_seconds or 0
    return kind.exclusive, kind.gpus, kind.cores, kind.memory_mb or 0, seconds
