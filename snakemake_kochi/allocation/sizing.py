"""How many workers to ask for, and how large, so that the jobs that wait can run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from snakemake_kochi.queue.capacity import Capacity
from snakemake_kochi.queue.ticket import Resources

# Seconds that a worker needs of its allocation besides its jobs: to start, and to end in order.
MARGIN = 60.0


@dataclass(frozen=True)
class Limits:
    """What may be asked for: at most `workers` at the same time, each with at most `node`, for at
    most `seconds` (None: nothing limits them). Where `takes_nodes`, each has all of a node."""

    workers: int
    node: Capacity
    seconds: float | None = None
    takes_nodes: bool = False


@dataclass(frozen=True)
class Supply:
    """A worker that is there or was asked for: what it has, whether jobs may begin beside those it
    has now, and for how long it will be there."""

    capacity: Capacity
    seconds_left: float | None = None


@dataclass(frozen=True)
class Shape:
    """What a worker is to have; `seconds`: for how long, None for as long as the scheduler gives;
    `whole_node`: with no other's jobs beside it."""

    capacity: Capacity
    seconds: float | None = None
    whole_node: bool = False


def obstacle(wanted: Resources, limits: Limits) -> str | None:
    """Why no worker that may be asked for can run a job, for people, or None."""
    seconds = None if limits.seconds is None else limits.seconds - MARGIN
    return limits.node.obstacle(wanted, seconds)


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
    shape = _shape(left, room, limits)
    count = 0
    while left and count < room:
        count += 1
        left = _after(left, shape.capacity)
    return replace(shape, seconds=_seconds(kinds, len(supply) + count, shape, limits)), count


def _not_held(kinds: Mapping[Resources, int], supply: Iterable[Supply]) -> dict[Resources, int]:
    """What is left of the jobs when each worker of the supply is full of them."""
    left = dict(kinds)
    for worker in supply:
        left = _after(left, worker.capacity, worker.seconds_left)
    return left


def _after(
    left: Mapping[Resources, int], capacity: Capacity, seconds: float | None = None
) -> dict[Resources, int]:
    """What is left of the jobs when a worker has taken what fits into it, the largest first."""
    cores, memory, gpus = capacity.cores, capacity.memory_mb, capacity.gpus
    is_empty = True
    remaining = {}
    for kind in sorted(left, key=_size, reverse=True):
        taken = 0
        if capacity.obstacle(kind, seconds) is None:
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
    if is_whole:
        return Shape(limits.node, whole_node=True)

    def of_each(most: int, amounts: Mapping[Resources, int]) -> int:
        total = sum(amounts[kind] * count for kind, count in left.items())
        return min(most, max(max(amounts.values()), math.ceil(total / room)))

    node = limits.node
    cores = of_each(node.cores, {kind: kind.cores for kind in left})
    memory = of_each(node.memory_mb, {kind: kind.memory_mb or 0 for kind in left})
    gpus = of_each(node.gpus, {kind: kind.gpus for kind in left})
    return Shape(Capacity(cores, memory, gpus))


def _seconds(
    kinds: Mapping[Resources, int], workers: int, shape: Shape, limits: Limits
) -> float | None:
    """For how long, where each job says how long it takes: until all have run, one after the
    other where they have to."""
    if any(kind.runtime_seconds is None for kind in kinds):
        return limits.seconds
    longest = max(kind.runtime_seconds or 0 for kind in kinds)
    work = sum(
        count * (kind.runtime_seconds or 0) * _share(kind, shape.capacity)
        for kind, count in kinds.items()
    )
    # No order that leaves no worker idle while a job waits takes longer (Graham 1969).
    wanted = longest + work / workers + MARGIN
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
