"""Groups of jobs that share workers: jobs that take about as much of everything.

A worker for jobs of a minute and one of ten hours would be requested for ten hours, on as many
cores as the short ones need. One job that needs much memory would have it requested for all others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

from snakemake_kochi.queue.ticket import Kind, Resources

Counts = dict[Resources, int]

# The number of classes of jobs to begin with, and the factor above which they are not merged.
_MOST_CLASSES = 12
_MOST_FACTOR = 1e9
# Jobs below these amounts are alike: MiB for each core, seconds.
_LITTLE_MB = 256
_LITTLE_SECONDS = 30
# Up to this number of kinds, each is sized by itself.
_MOST_KINDS = 200
_STEP = 1.1


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
        alike.setdefault((kind.exclusive, kind.cores, kind.gpus, memory, time), []).append(kind)
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
        kind.gpus > 0,
        seconds and _level(seconds, _LITTLE_SECONDS, factor),
        _level((kind.memory_mb or 0) / kind.cores, _LITTLE_MB, factor),
        _level(kind.cores, 1, factor),
    )


def _level(amount: float, least: float, factor: float) -> int:
    return math.ceil(math.log(max(amount, least) / least, factor))
