"""How jobs pack into workers: which jobs a worker can take, what is left, and which share workers.

Jobs that take about as much of everything share workers. A worker for jobs of a minute and one of
ten hours would be requested for ten hours, on as many cores as the short ones need. One job that
needs much memory would have it requested for all others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from humanfriendly.text import pluralize

from snakemake_kochi.quantities import format_duration
from snakemake_kochi.schedulers.interface import Limits
from snakemake_kochi.tickets.capacity import Capacity
from snakemake_kochi.tickets.ticket import Kind, Resources
from snakemake_kochi.worker.settings import START_AND_END

Counts = dict[Resources, int]

# Seconds that short jobs may take one after the other, instead of a worker each. With fewer
# seconds, the start and the end of a worker would take more than a quarter of its time.
PATIENCE = 4 * START_AND_END
EPSILON = 1e-9
# The number of classes of jobs to begin with, and the factor above which they are not merged.
_MOST_CLASSES = 12
_MOST_FACTOR = 1e9
# Jobs below these amounts are alike: MiB for each core, seconds.
_LITTLE_MB = 256
_LITTLE_SECONDS = 30
# Up to this number of kinds, each is sized by itself.
_MOST_KINDS = 200
_STEP = 1.1


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


# ---- which jobs workers can take


def obstacle(wanted: Resources, limits: Limits) -> str | None:
    """The reason, for people, why no worker that may be requested can run a job, or None."""
    if why := limits.node.obstacle(wanted):
        return why
    if limits.seconds is not None and (wanted.runtime_seconds or 0) > limits.seconds:
        needed, most = map(format_duration, (wanted.runtime_seconds or 0, limits.seconds))
        return f"{needed} needed, {most} available"
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
        "nodes": wanted.nodes > node.nodes,
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


# ---- groups of jobs that share workers


def grouped(
    kinds: Mapping[Resources, int], cost: Callable[[Mapping[Resources, int]], float], most: int
) -> list[Counts]:
    """At most `most` groups of all these jobs.

    Groups are merged if that costs no more and, if there are too many, where it adds least.
    """
    groups = dict(enumerate(_classes(kinds)))
    costs = {name: cost(group) for name, group in groups.items()}
    added: dict[tuple[int, int], float] = {}
    for new in itertools.count(len(groups)):
        for pair in itertools.combinations(groups, 2):
            if pair not in added:
                both = cost(_union(groups[pair[0]], groups[pair[1]]))
                added[pair] = both - costs[pair[0]] - costs[pair[1]] if both < math.inf else both
        if len(groups) == 1:
            break
        pair = min(itertools.combinations(groups, 2), key=added.__getitem__)
        if len(groups) <= most and added[pair] > 0:
            break
        groups[new] = _union(groups.pop(pair[0]), groups.pop(pair[1]))
        costs[new] = cost(groups[new])
    return list(groups.values())


def kinds_of(counts: Mapping[Resources, int]) -> tuple[Kind, ...]:
    """The kinds of these jobs, as few as distinguish them from those of other groups."""
    return tuple(_kind(list(each)) for each in _classes(counts))


def _kind(every: Sequence[Resources]) -> Kind:
    def of_all(choose: Callable[[Iterable[int]], int]) -> Resources:
        return replace(
            every[0],
            cores=choose(kind.cores for kind in every),
            memory_mb=choose(kind.memory_mb or 0 for kind in every),
            gpus=choose(kind.gpus for kind in every),
            runtime_seconds=choose(kind.runtime_seconds or 0 for kind in every) or None,
        )

    return Kind(of_all(min), of_all(max))


def shared_out(room: int, needed: Sequence[int], work: Sequence[float]) -> list[int]:
    """The number of workers that each group may have.

    As many as it needs, if there is room. Otherwise at least one, and in proportion to its work:
    all groups then end at about the same time.
    """
    if sum(needed) <= room:
        return list(needed)
    shares = [1] * len(needed)
    for _ in range(room - len(needed)):
        lacking = [index for index, share in enumerate(shares) if share < needed[index]]
        shares[max(lacking, key=lambda index: work[index] / shares[index])] += 1
    return shares


def _union(one: Counts, other: Counts) -> Counts:
    return {**one, **{kind: count + one.get(kind, 0) for kind, count in other.items()}}


def few_kinds(kinds: Iterable[Resources]) -> dict[Resources, list[Resources]]:
    """If there are too many kinds, merge similar ones into a kind with the maximum of each amount.

    Thousands of jobs may each request something different. Cores and GPUs stay as they are: a
    merged kind must fit on each node on which one of those jobs does.
    """
    found, step = {kind: [kind] for kind in kinds}, _STEP
    while len(found) > _MOST_KINDS and step < _MOST_FACTOR:
        found = _coarser(found, step)
        step **= 1.5
    return found


def _coarser(
    kinds: Mapping[Resources, list[Resources]], step: float
) -> dict[Resources, list[Resources]]:
    alike: dict[Hashable, list[Resources]] = {}
    for kind in kinds:
        memory = _level(kind.memory_mb or 0, 1, step)
        time = kind.runtime_seconds and _level(kind.runtime_seconds, 1, step)
        amounts = (kind.nodes, kind.cores, kind.gpus, memory, time)
        alike.setdefault((kind.exclusive, *amounts), []).append(kind)
    return {
        replace(
            found[0],
            memory_mb=max(kind.memory_mb or 0 for kind in found),
            runtime_seconds=max(kind.runtime_seconds or 0 for kind in found) or None,
        ): [each for kind in found for each in kinds[kind]]
        for found in alike.values()
    }


def _classes(kinds: Mapping[Resources, int]) -> list[Counts]:
    """Classes of jobs that differ by less than a factor: the smallest one that makes few enough."""
    factor = 2.0
    while True:
        classes: dict[Hashable, Counts] = {}
        for kind, count in kinds.items():
            classes.setdefault(_class(kind, factor), {})[kind] = count
        if len(classes) <= _MOST_CLASSES or factor > _MOST_FACTOR:
            return list(classes.values())
        factor *= factor


def _class(kind: Resources, factor: float) -> Hashable:
    seconds = kind.runtime_seconds
    return (
        kind.exclusive,
        kind.nodes,
        kind.gpus > 0,
        seconds and _level(seconds, _LITTLE_SECONDS, factor),
        _level((kind.memory_mb or 0) / kind.cores, _LITTLE_MB, factor),
        _level(kind.cores, 1, factor),
    )


def _level(amount: float, least: float, factor: float) -> int:
    return math.ceil(math.log(max(amount, least) / least, factor))
