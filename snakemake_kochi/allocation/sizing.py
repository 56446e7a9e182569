"""How many workers to ask for, and how large, so that the jobs that wait can run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from humanfriendly.text import pluralize

from snakemake_kochi.queue.capacity import Capacity
from snakemake_kochi.queue.ticket import Resources
from snakemake_kochi.worker.memory import OWN_MB
from snakemake_kochi.worker.walltime import START_AND_END


@dataclass(frozen=True)
class Limits:
    """What may be asked for: at most `workers` at the same time, each with at most `node`, for at
    most `seconds` (None: nothing limits them). Where `takes_nodes`, each has all of a node.

    `nodes`: where they are of several kinds, the largest ones; `node` is then the most of each
    amount, which none may have together. Where jobs do not say how long they take, workers are
    asked for `usual` seconds or, without that, for `seconds` if it `asks_for_all`, else for as long
    as the scheduler gives by default.
    """

    workers: int
    node: Capacity
    seconds: float | None = None
    takes_nodes: bool = False
    nodes: tuple[Capacity, ...] = ()
    asks_for_all: bool = True
    usual: float | None = None

    @property
    def usual_seconds(self) -> float | None:
        """For how long a worker is asked for whose jobs do not say how long they take."""
        return self.seconds if self.usual is None and self.asks_for_all else self.usual


@dataclass(frozen=True)
class Supply:
    """What a worker that is there, or was asked for, has left for jobs that wait; for how many
    seconds it can run them (None: nothing limits it), and whether it has no job now."""

    capacity: Capacity
    seconds_left: float | None = None
    is_empty: bool = True

    def obstacle(self, kind: Resources) -> str | None:
        """Why it is too little for a job, for people, or None."""
        return self.capacity.obstacle(kind, self.seconds_left)


@dataclass(frozen=True)
class Shape:
    """What a worker is to have; `seconds`: for how long, None for as long as the scheduler gives;
    `whole_node`: with no other's jobs beside it."""

    capacity: Capacity
    seconds: float | None = None
    whole_node: bool = False


def obstacle(wanted: Resources, limits: Limits) -> str | None:
    """Why no worker that may be asked for can run a job, for people, or None."""
    if why := limits.node.obstacle(wanted, limits.seconds):
        return why
    if limits.nodes and all(node.obstacle(wanted) for node in limits.nodes):
        return (
            f"{wanted.cores} cores, {wanted.memory_mb or 0} MiB of memory and "
            f"{pluralize(wanted.gpus, 'GPU')} needed on one node, and none has all of that"
        )
    return None


def _for_one_kind_of_node(
    left: dict[Resources, int], limits: Limits
) -> tuple[dict[Resources, int], Limits]:
    """The largest kind of job, and all that fit on the same node, which is then the limit: one
    worker for all would be one that no node can have. The others come next time."""
    if len(limits.nodes) < 2:
        return left, limits
    largest = max(left, key=_size)
    node = max(
        (node for node in limits.nodes if node.obstacle(largest) is None),
        key=lambda node: (node.cores, node.memory_mb),
    )
    fitting = {kind: count for kind, count in left.items() if node.obstacle(kind) is None}
    return fitting, replace(limits, node=node)


def workers_to_ask_for(
    waiting: Mapping[Resources, int], supply: Sequence[Supply], limits: Limits
) -> tuple[Shape, int] | None:
    """The shape of the workers that are wanted besides those of `supply`, and their number; None
    when no more are.

    `waiting`: how many jobs of a kind have not begun; those with an `obstacle` do not count. All
    that wait are to run at the same time, if the limits allow it: with fewer workers than that,
    each has what is the most, and the jobs come one after the other.
    """
    kinds = {kind: count for kind, count in waiting.items() if obstacle(kind, limits) is None}
    left = _not_held(kinds, supply)
    room = limits.workers - len(supply)
    if room <= 0 or not left:
        return None
    left, limits = _for_one_kind_of_node(left, limits)
    shape = _shape(left, room, limits)
    lacking, count = left, 0
    while left and count < room:
        count += 1
        left = _after(left, Supply(shape.capacity))
    if any(kind.runtime_seconds is None for kind in lacking):
        return replace(shape, seconds=limits.usual_seconds), count
    return replace(shape, seconds=_seconds(kinds, len(supply) + count, shape, limits)), count


def _not_held(kinds: Mapping[Resources, int], supply: Iterable[Supply]) -> dict[Resources, int]:
    """What is left of the jobs when each worker of the supply is full of them."""
    left = dict(kinds)
    for worker in supply:
        left = _after(left, worker)
    return left


def not_wanted(
    waiting: Mapping[Resources, int], supply: Sequence[Supply], coming: Sequence[Supply]
) -> list[int]:
    """Which of the workers that were asked for get no job, because those of the `supply`, and those
    `coming` before them, can have all that wait and fit: their indices."""
    left = _not_held(waiting, supply)
    found = []
    for index, worker in enumerate(coming):
        rest = _after(left, worker)
        if rest == left:
            found.append(index)
        left = rest
    return found


def free(
    capacity: Capacity, begun: Iterable[Resources], seconds_left: float | None = None
) -> Supply:
    """A worker that has begun some jobs."""
    cores, memory, gpus = capacity.cores, capacity.memory_mb, capacity.gpus
    is_empty = True
    for job in begun:
        is_empty = False
        if job.exclusive:
            cores = memory = gpus = 0
        cores -= job.cores
        memory -= job.memory_mb or 0
        gpus -= job.gpus
    return Supply(Capacity(max(0, cores), max(0, memory), max(0, gpus)), seconds_left, is_empty)


def _after(left: Mapping[Resources, int], worker: Supply) -> dict[Resources, int]:
    """What is left of the jobs when a worker has taken what fits into it, the largest first."""
    capacity = worker.capacity
    cores, memory, gpus = capacity.cores, capacity.memory_mb, capacity.gpus
    is_empty = worker.is_empty
    remaining = {}
    for kind in sorted(left, key=_size, reverse=True):
        taken = 0
        if worker.obstacle(kind) is None:
            if kind.exclusive:
                taken = 1 if is_empty else 0
            else:
                taken = min(
                    left[kind],
                    cores // kind.cores,
                    memory // kind.memory_mb if kind.memory_mb else left[kind],
                    gpus // kind.gpus if kind.gpus else left[kind],
                )
        if taken:
            is_empty = False
            cores -= taken * kind.cores
            memory -= taken * (kind.memory_mb or 0)
            gpus -= taken * kind.gpus
            if kind.exclusive:
                cores = memory = gpus = 0
        if left[kind] > taken:
            remaining[kind] = left[kind] - taken
    return remaining


def _size(kind: Resources) -> tuple[bool, int, int, int]:
    return kind.exclusive, kind.gpus, kind.cores, kind.memory_mb or 0


def _shape(left: Mapping[Resources, int], room: int, limits: Limits) -> Shape:
    """One into which each kind fits, and with `room` of which there is place for all."""
    is_whole = limits.takes_nodes or any(kind.exclusive for kind in left)
    # Beside the worker, but where a job takes all of a node.
    most = max(limits.node.memory_mb - OWN_MB, *(kind.memory_mb or 0 for kind in left))
    if is_whole:
        return Shape(replace(limits.node, memory_mb=most), whole_node=True)

    def of_each(most: int, amounts: Mapping[Resources, int]) -> int:
        total = sum(amounts[kind] * count for kind, count in left.items())
        return min(most, max(max(amounts.values()), math.ceil(total / room)))

    node = limits.node
    cores = of_each(node.cores, {kind: kind.cores for kind in left})
    memory = min(most, _at_once(left, room, cores))
    gpus = of_each(node.gpus, {kind: kind.gpus for kind in left})
    return Shape(Capacity(cores, memory, gpus))


def _at_once(left: Mapping[Resources, int], room: int, cores: int) -> int:
    """The memory in MiB of what one of `room` workers runs at the same time on so many cores: not
    of all jobs that come one after the other."""
    memory = {kind: kind.memory_mb or 0 for kind in left}
    total = 0
    for kind in sorted(left, key=lambda kind: memory[kind] / kind.cores, reverse=True):
        running = min(math.ceil(left[kind] / room), cores // kind.cores)
        cores -= running * kind.cores
        total += running * memory[kind]
    return max(total, *memory.values())


def _seconds(
    kinds: Mapping[Resources, int], workers: int, shape: Shape, limits: Limits
) -> float | None:
    """Until all jobs have run that say how long they take, one after the other where they have
    to. Those that do not are in workers that are there."""
    longest = max(kind.runtime_seconds or 0 for kind in kinds)
    work = sum(
        count * (kind.runtime_seconds or 0) * _share(kind, shape.capacity)
        for kind, count in kinds.items()
    )
    # No order that leaves no worker idle while a job waits takes longer (Graham 1969).
    wanted = longest + work / workers + START_AND_END
    return wanted if limits.seconds is None else min(wanted, limits.seconds)


def _share(kind: Resources, capacity: Capacity) -> float:
    """How much of a worker a job takes, from 0 to 1."""
    if kind.exclusive:
        return 1.0
    shares = [kind.cores / capacity.cores]
    if kind.memory_mb and capacity.memory_mb:
        shares.append(kind.memory_mb / capacity.memory_mb)
    if kind.gpus and capacity.gpus:
        shares.append(kind.gpus / capacity.gpus)
    return min(1.0, max(shares))
