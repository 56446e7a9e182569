"""Sizes the workers to request, by number and shape, so that the waiting jobs can run."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from snakemake_kochi.allocation.packing import (
    EPSILON,
    PATIENCE,
    Supply,
    at_the_same_time,
    few_kinds,
    grouped,
    jobs_in_turn,
    kinds_of,
    largest_first,
    left_by,
    left_over,
    not_done,
    obstacle,
    shared_out,
    size,
)
from snakemake_kochi.schedulers.interface import Limits
from snakemake_kochi.tickets.capacity import Capacity
from snakemake_kochi.tickets.ticket import Kind, Resources
from snakemake_kochi.worker.node.capacity import OWN_MB
from snakemake_kochi.worker.settings import START_AND_END

# The number of kinds of workers that are requested at a time, each by a submission of its own.
_MOST_SUBMISSIONS = 5
# Up to this number of jobs, a schedule of them is made to find their total time. With more, their
# order matters little.
_MOST_SCHEDULED = 500
# Up to this number of kinds of jobs, several groupings of them are compared.
_FEW_KINDS = 50


@dataclass(frozen=True)
class Shape:
    """The resources of a worker to request.

    `seconds`: the time, None for as long as the scheduler gives. `whole_node`: no other user's jobs
    are beside it. `first`: the jobs for which it is requested, and which it begins before others.
    """

    capacity: Capacity
    seconds: float | None = None
    whole_node: bool = False
    first: tuple[Kind, ...] = field(default=(), compare=False)


def workers_to_request(
    waiting: Mapping[Resources, int], supply: Sequence[Supply], limits: Limits
) -> list[tuple[Shape, int]]:
    """The wanted workers besides those of `supply`: each shape with its number, largest work first.

    `waiting`: the number of jobs of a kind that have not begun; jobs with an `obstacle` do not
    count. Jobs that take about as much of everything share workers, so that few workers request the
    needs of one job. All waiting jobs should run at the same time, if the limits allow it. Only
    short jobs run one after the other, for as long as PATIENCE.
    """
    lacking = _lacking(waiting, supply, limits)
    if not lacking:
        return []

    alike = few_kinds(lacking)
    left = {kind: sum(lacking[each] for each in found) for kind, found in alike.items()}
    room = limits.workers - len(supply)
    later = not_done(left, supply)
    found = []
    for most in range(min(room, _MOST_SUBMISSIONS), 0, -1):
        groups = grouped(left, partial(_cost, room=room, limits=limits), most)
        requested, has_room = _for_groups(groups, later, room, limits)
        found.append(requested)
        # If there is not room for all at once, fewer groups may leave fewer nodes half empty.
        if has_room or len(left) > _FEW_KINDS:
            break
    best = min(found, key=lambda each: sum(_cost_of(shape, n, limits) for shape, n in each))
    return [(_first_for_all(shape, alike), count) for shape, count in best]


def _first_for_all(shape: Shape, alike: Mapping[Resources, Sequence[Resources]]) -> Shape:
    """Name all jobs that one kind represented, and not only those that take the most."""
    if all(len(found) == 1 for found in alike.values()):
        return shape
    its_own = (found for kind, found in alike.items() if any(e.has(kind) for e in shape.first))
    return replace(shape, first=kinds_of({each: 1 for found in its_own for each in found}))


def is_lacking(waiting: Mapping[Resources, int], supply: Sequence[Supply], limits: Limits) -> bool:
    """Whether workers are wanted, of whatever size: cheaper to determine than their size."""
    return bool(_lacking(waiting, supply, limits))


def _lacking(
    waiting: Mapping[Resources, int], supply: Sequence[Supply], limits: Limits
) -> Mapping[Resources, int]:
    """The jobs for which workers must be requested, if there is room for any."""
    if limits.workers <= len(supply):
        return {}
    kinds = {kind: count for kind, count in waiting.items() if obstacle(kind, limits) is None}
    return left_over(kinds, supply)


def _for_groups(
    groups: Sequence[Mapping[Resources, int]],
    later: Mapping[Resources, int],
    room: int,
    limits: Limits,
) -> tuple[list[tuple[Shape, int]], bool]:
    """The workers for each group, and whether there is room for all that they need."""
    groups = sorted(groups, key=partial(_work, limits=limits), reverse=True)
    needed = [_workers(group, later, room, limits)[1] for group in groups]
    work = [_work(group, limits) for group in groups]
    rooms = shared_out(room, needed, work)
    # Workers that have finished their own work help the others.
    longest = sum(work) / room
    found = [_workers(group, later, own, limits) for group, own in zip(groups, rooms, strict=True)]
    return [(_no_longer(shape, longest), count) for shape, count in found], sum(needed) <= room


# ---- workers for one group of jobs


def _workers(
    kinds: Mapping[Resources, int], later: Mapping[Resources, int], room: int, limits: Limits
) -> tuple[Shape, int]:
    """At most `room` workers for these jobs.

    Of the jobs that come after the first ones, the workers are sized for no more than there are
    `later`.
    """
    fitting, own = _for_one_kind_of_node(kinds, limits)
    shape = _shape(fitting, room, own)
    rest = largest_first(fitting)
    count = 0
    while rest and count < room:
        count += 1
        rest = left_by(Supply(shape.capacity, limits.seconds), rest)
    left = dict(rest)
    at_once = {kind: fitting[kind] - left.get(kind, 0) for kind in fitting}
    to_do = {kind: max(n, min(later.get(kind, 0), fitting[kind])) for kind, n in at_once.items()}
    to_do = {kind: n for kind, n in to_do.items() if n} or dict(fitting)
    seconds = _seconds(to_do, count, to_do == at_once, shape, limits)
    return replace(shape, seconds=seconds, first=kinds_of(fitting)), count


def _no_longer(shape: Shape, seconds: float) -> Shape:
    """The shape with no more time than its longest job and `seconds` besides.

    It is the same shape if a job does not say how long it takes.
    """
    times = [kind.most.runtime_seconds for kind in shape.first]
    if shape.seconds is None or None in times:
        return shape
    most = max(filter(None, times)) + seconds + START_AND_END
    return replace(shape, seconds=min(shape.seconds, max(most, PATIENCE + START_AND_END)))


def _work(kinds: Mapping[Resources, int], limits: Limits) -> float:
    """The node-seconds that these jobs take."""
    usual = limits.usual_seconds or PATIENCE
    return sum(
        count * (kind.runtime_seconds or usual) / at_the_same_time(kind, limits.node)
        for kind, count in kinds.items()
    )


def _cost(kinds: Mapping[Resources, int], room: int, limits: Limits) -> float:
    """The approximate node-seconds that these workers take.

    Infinite for jobs that should not share workers unless they have to.
    """
    fitting, own = _for_one_kind_of_node(kinds, limits)
    times = {kind.runtime_seconds is None for kind in kinds}
    if len(fitting) < len(kinds) or len(times) > 1:
        return math.inf
    shape = _shape(fitting, room, own)
    workers = sum(
        count / jobs_in_turn(kind, limits.seconds) / at_the_same_time(kind, shape.capacity)
        for kind, count in kinds.items()
    )
    count = min(room, math.ceil(workers - EPSILON))
    seconds = _seconds(kinds, count, workers <= room, shape, limits)
    return _cost_of(replace(shape, seconds=seconds), count, limits)


def _cost_of(shape: Shape, count: int, limits: Limits) -> float:
    share = 1.0 if shape.whole_node else _share_of_node(shape.capacity, limits.node)
    return count * share * (shape.seconds or PATIENCE)


def _share_of_node(capacity: Capacity, node: Capacity) -> float:
    """The share of a node, from 0 to 1, that no other job can then have."""
    amounts = (
        (capacity.cores, node.cores),
        (capacity.memory_mb, node.memory_mb),
        (capacity.gpus, node.gpus),
    )
    return max(min(1.0, one / of) for one, of in amounts if of)


def _for_one_kind_of_node(
    left: Mapping[Resources, int], limits: Limits
) -> tuple[Mapping[Resources, int], Limits]:
    """The largest kind of job, and all that fit on the same node, whose resources become the limit.

    One worker for all jobs might fit on no node. The next call handles the other jobs.
    """
    if len(limits.nodes) < 2:
        return left, limits
    largest = max(left, key=size)
    node = max(
        (node for node in limits.nodes if node.obstacle(largest) is None),
        key=lambda node: (node.cores, node.memory_mb),
    )
    fitting = {kind: count for kind, count in left.items() if node.obstacle(kind) is None}
    return fitting, replace(limits, node=node)


# ---- the shape of a worker


def _shape(left: Mapping[Resources, int], room: int, limits: Limits) -> Shape:
    """A worker that each kind fits, `room` of which hold all jobs."""
    node = limits.node
    # The worker itself keeps some memory, unless a job needs all memory of a node.
    most = max(node.memory_mb - OWN_MB, *(kind.memory_mb or 0 for kind in left))
    if limits.takes_nodes or any(kind.exclusive for kind in left):
        return Shape(replace(node, memory_mb=most), whole_node=True)

    in_turn = {kind: jobs_in_turn(kind, limits.seconds) for kind in left}

    def of_each(most: int, amounts: Mapping[Resources, int]) -> int:
        total = sum(amounts[kind] * count / in_turn[kind] for kind, count in left.items())
        return min(most, max(max(amounts.values()), math.ceil(total / room - EPSILON)))

    cores = of_each(node.cores, {kind: kind.cores for kind in left})
    # A whole number of the largest kind, without cores that stay idle because memory or GPUs are
    # used up.
    largest = max(kind.cores for kind in left)
    in_use = _cores_in_use(left, in_turn, room, replace(node, memory_mb=most))
    cores = max(largest, min(math.ceil(cores / largest) * largest, in_use))
    memory = {kind: kind.memory_mb or 0 for kind in left}
    gpus = {kind: kind.gpus for kind in left}
    return Shape(
        Capacity(
            cores,
            min(most, _at_once(left, in_turn, room, cores, memory)),
            min(of_each(node.gpus, gpus), _at_once(left, in_turn, room, cores, gpus)),
        )
    )


def _cores_in_use(
    left: Mapping[Resources, int], in_turn: Mapping[Resources, int], room: int, node: Capacity
) -> int:
    """The cores in use when one of `room` workers runs as many of these jobs as fit on a node.

    The order is the lightest first or the largest first, whichever uses more cores.
    """

    def fill(kinds: Iterable[Resources]) -> int:
        free = [node.cores, node.memory_mb, node.gpus]
        for kind in kinds:
            amounts = (kind.cores, kind.memory_mb or 0, kind.gpus)
            fits = [have // one for have, one in zip(free, amounts, strict=True) if one]
            running = min(math.ceil(left[kind] / room / in_turn[kind]), *fits)
            free = [have - running * one for have, one in zip(free, amounts, strict=True)]
        return node.cores - free[0]

    lightest = sorted(
        left, key=lambda kind: (kind.gpus, (kind.memory_mb or 0) / kind.cores, -kind.cores)
    )
    return max(fill(lightest), fill(sorted(left, key=size, reverse=True)))


def _at_once(
    left: Mapping[Resources, int],
    in_turn: Mapping[Resources, int],
    room: int,
    cores: int,
    amounts: Mapping[Resources, int],
) -> int:
    """The amount of memory or GPUs of the jobs that one of `room` workers runs at the same time.

    The worker has this number of cores. Jobs that run one after the other do not add up.
    """
    total = 0
    for kind in sorted(left, key=lambda kind: amounts[kind] / kind.cores, reverse=True):
        running = min(math.ceil(left[kind] / room / in_turn[kind]), cores // kind.cores)
        cores -= running * kind.cores
        total += running * amounts[kind]
    return max(total, *amounts.values())


# ---- for how long


def _seconds(
    kinds: Mapping[Resources, int], workers: int, all_at_once: bool, shape: Shape, limits: Limits
) -> float | None:
    """The seconds until all jobs with a known time have run, one after the other if necessary.

    For other jobs, the usual time. `all_at_once`: whether there are slots for all.
    """
    usual = limits.usual_seconds
    if usual is None and any(kind.runtime_seconds is None for kind in kinds):
        return None
    longest = max(kind.runtime_seconds or 0 for kind in kinds)
    at_once = {kind: at_the_same_time(kind, shape.capacity) for kind in kinds}
    shares = {kind: (kind.runtime_seconds or 0) / at_once[kind] for kind in kinds}
    work = sum(count * shares[kind] for kind, count in kinds.items())
    # Bounds for any order that leaves no slot idle while a job waits: the number of rounds times
    # the longest job, and the longest job after all others (Graham 1969).
    slots = workers * min(at_once.values())
    rounds = math.ceil(sum(kinds.values()) / slots) * longest
    wanted = min(rounds, longest + (work - max(shares.values())) / workers)
    if all_at_once:
        packed = [longest, *(PATIENCE for kind in kinds if jobs_in_turn(kind) > 1)]
        wanted = min(wanted, max(packed))
    elif sum(kinds.values()) <= _MOST_SCHEDULED:
        wanted = min(wanted, _scheduled(kinds, workers, at_once))
    wanted += START_AND_END
    if any(kind.runtime_seconds is None for kind in kinds):
        wanted = max(wanted if longest else 0.0, usual or 0.0)
    return wanted if limits.seconds is None else min(wanted, limits.seconds)


def _scheduled(
    kinds: Mapping[Resources, int], workers: int, at_once: Mapping[Resources, int]
) -> float:
    """The seconds for which these jobs occupy some workers, the longest first."""
    free = [1.0] * workers
    ends: list[tuple[float, int, float]] = []
    now = 0.0
    for kind in sorted(kinds, key=lambda kind: (-(kind.runtime_seconds or 0), at_once[kind])):
        share = 1.0 / at_once[kind]
        for _ in range(kinds[kind]):
            while (most := max(range(workers), key=free.__getitem__)) is not None:
                if free[most] >= share - EPSILON:
                    break
                now, index, freed = heapq.heappop(ends)
                free[index] += freed
            free[most] -= share
            heapq.heappush(ends, (now + (kind.runtime_seconds or 0), most, share))
    return max(end for end, _, _ in ends)
