"""How often are intervals and verdicts wrong? Simulated, with fixed seeds.

A rate is the share of simulated samples, in per cent: of intervals that miss the true value, of
comparisons that show a difference that there is not, or do not show one that there is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.measure import Row, Size
from snakemake_kochi.statistics import (
    bisection,
    changes,
    comparison,
    dependence,
    intervals,
    stopping,
)

Random = np.random.Generator
Sample = NDArray[np.float64]

UNTIL = 0.02
MOST = 60
NOISE = 0.02
DRIFT = 0.02
_SEED = 20260101


@dataclass(frozen=True)
class Family:
    """A distribution of run times around 100; `median` is its true one. `most_runs`: how many runs
    a point may take on average until its interval is within 2 %."""

    draw: Callable[[Random, int], Sample]
    median: float
    most_runs: float | None = None


def _normal(noise: float) -> Callable[[Random, int], Sample]:
    return lambda random, n: 100 * (1 + random.normal(0, noise, n))


def _two_modes(apart: float, share: float) -> Callable[[Random, int], Sample]:
    return lambda random, n: (
        100 * (1 + random.normal(0, 0.01, n) + apart * (random.random(n) < share))
    )


def _outliers(random: Random, n: int) -> Sample:
    return _normal(NOISE)(random, n) * np.where(random.random(n) < 0.05, 1.5, 1.0)


FAMILIES: Mapping[str, Family] = {
    "noise 1 %": Family(_normal(0.01), 100, 10.1),
    "noise 2 %": Family(_normal(0.02), 100, 15),
    "noise 5 %": Family(_normal(0.05), 100),
    "two modes 10 % apart, 70/30": Family(_two_modes(0.1, 0.3), 100.5653),
    "two modes 10 % apart, 50/50": Family(_two_modes(0.1, 0.5), 105),
    "two modes 5 % apart, 50/50": Family(_two_modes(0.05, 0.5), 102.5),
    "5 % outliers of 1.5 times": Family(_outliers, 100.1306),
    "an exponential tail of 5 %": Family(
        lambda random, n: 100 * (1 + random.exponential(0.05, n)), 100 * (1 + 0.05 * math.log(2))
    ),
    "whole numbers only, noise 2 %": Family(
        lambda random, n: np.round(_normal(NOISE)(random, n)), 100
    ),
}


def until_enough(family: Family, repetitions: int, drift: float = 0.0) -> tuple[float, float]:
    """The rate of misses, and the mean number of runs, when a point stops at 2 %. With a `drift`
    from the first of 60 rounds to the last one, the true median is that of the rounds so far."""
    random, missed, runs = np.random.default_rng(_SEED), 0, 0
    for _ in range(repetitions):
        values = family.draw(random, MOST) * (1 + drift * np.arange(MOST) / MOST)
        n = next(
            n
            for n in stopping.looks(10, MOST)
            if n == MOST or stopping.is_enough(values[:n], UNTIL)
        )
        runs += n
        median = family.median * (1 + drift * (n - 1) / 2 / MOST)
        missed += not _has(stopping.interval_so_far(values[:n]), median)
    return 100 * missed / repetitions, runs / repetitions


def fixed_number(n: int, repetitions: int) -> float:
    """The misses of the median of a fixed number of runs with two modes."""
    random, family = np.random.default_rng(_SEED), FAMILIES["two modes 10 % apart, 50/50"]
    found = (intervals.median_interval(family.draw(random, n)) for _ in range(repetitions))
    return _rate(not _has(each, family.median) for each in found)


def alike(r: float, repetitions: int, is_told: bool = True) -> float:
    """The misses of 20 points of 20 runs, where neighbours correlate by `r`; without those that
    have no interval, because their runs are too much alike."""
    random, missed = np.random.default_rng(_SEED), []
    for _ in range(repetitions // 20):
        points = _autoregressive(random, r, (20, 20))
        stretch = dependence.stretch(dependence.likeness(points)) if is_told else 1.0
        found = [intervals.median_interval(each, stretch=stretch) for each in points]
        missed += [not _has(each, 100) for each in found if each.lower is not None]
    return _rate(missed)


def _autoregressive(random: Random, r: float, shape: tuple[int, int]) -> Sample:
    values = random.normal(0, 1, shape)
    for index in range(1, shape[1]):
        values[:, index] = r * values[:, index - 1] + math.sqrt(1 - r * r) * values[:, index]
    return 100 * (1 + NOISE * values)


def allocations(count: int, runs: int, repetitions: int) -> float:
    """The misses where the effect of an allocation is 3 %, and that of a run 2 %."""
    random, missed = np.random.default_rng(_SEED), 0
    units = np.repeat(np.arange(count), runs)
    for _ in range(repetitions):
        offsets = random.normal(0, 0.03, count)[units]
        values = 100 * (1 + offsets + random.normal(0, NOISE, len(units)))
        missed += not _has(intervals.interval_of(values, [*units]), 100)
    return 100 * missed / repetitions


def compared(
    n: int, effect: float, repetitions: int, drift: float = 0.0, coin: bool = True
) -> float:
    """How often two sides of `n` runs with a noise of 2 % differ. With a `drift` over the whole,
    AAAABBBB, or within each round in random order."""
    random, shown = np.random.default_rng(_SEED), 0
    for _ in range(repetitions):
        when = np.arange(2 * n).reshape(n, 2) if coin else np.arange(2 * n).reshape(2, n).T
        when = random.permuted(when, axis=1) if coin else when
        factors = (1 + random.normal(0, NOISE, (n, 2))) * (1 + drift * when / (2 * n))
        found = comparison.paired(comparison.logs(factors[:, 0], factors[:, 1] * (1 + effect)))
        shown += not _has(found, 1)
    return 100 * shown / repetitions


def repeated_pairs(effect: float, repetitions: int) -> tuple[float, float]:
    """How often a difference is shown where pairs are repeated until their ratio is within 2 %, or
    decided; and the mean number of pairs."""
    random, shown, pairs = np.random.default_rng(_SEED), 0, 0
    level = stopping.ratio_confidence()
    for _ in range(repetitions):
        noise = np.log(1 + random.normal(0, NOISE, (2, MOST)))
        differences = noise[1] + math.log(1 + effect) - noise[0]
        for n in stopping.looks(10, MOST):
            found = comparison.paired(differences[:n], level)
            if found.half_width <= UNTIL or stopping.decision(differences[:n], 0.01):
                break
        pairs += n
        shown += found.p <= 1 - level
    return 100 * shown / repetitions, pairs / repetitions


def until_enough_allocations(runs: int, effect: float, repetitions: int) -> tuple[float, float]:
    """The rate of misses, and the mean number of runs, when a point stops at 2 % that has so many
    runs in each allocation, which have an effect of their own."""
    random, missed, taken = np.random.default_rng(_SEED), 0, 0
    units = np.repeat(np.arange(-(-MOST // runs)), runs)[:MOST]
    for _ in range(repetitions):
        offsets = random.normal(0, effect, units[-1] + 1)[units]
        values = 100 * (1 + offsets + random.normal(0, NOISE, MOST))
        for n in stopping.looks(10, MOST):
            if stopping.is_enough(values[:n], UNTIL, units=[*units[:n]]):
                break
        taken += n
        missed += not _has(stopping.interval_so_far(values[:n], units=[*units[:n]]), 100)
    return 100 * missed / repetitions, taken / repetitions


def measured_apart(n: int, repetitions: int, family: str = "noise 2 %") -> float:
    """The misses of the ratio of the medians of two sides of `n` runs without pairs."""
    random, draw = np.random.default_rng(_SEED), FAMILIES[family].draw
    sides = (
        [intervals.median_interval(draw(random, n)) for _ in range(2)] for _ in range(repetitions)
    )
    return _rate(not _has(comparison.of_medians(*each), 1) for each in sides)


def many_points(points: int, n: int, effect: float, repetitions: int) -> tuple[float, float]:
    """How often the first one of many points differs, or, without an effect, any of them; and how
    often the summary says that one does."""
    random, shown, said = np.random.default_rng(_SEED), 0, 0
    for _ in range(repetitions):
        noise = np.log(1 + random.normal(0, NOISE, (2, n, points)))
        differences = noise[1] - noise[0]
        differences[:, 0] += math.log(1 + effect)
        marks = comparison.marked([comparison.paired(each).p for each in differences.T])
        shown += marks[0] if effect else any(marks)
        said += comparison.of_rounds(differences)[1] <= 0.05
    return 100 * shown / repetitions, 100 * said / repetitions


def looked_again(n: int, effect: float, alpha: float, repetitions: int) -> float:
    """How often a difference is decided within `n` pairs, with a look after each."""
    random = np.random.default_rng(_SEED)
    draws = (random.normal(effect, NOISE * math.sqrt(2), n) for _ in range(repetitions))
    return _rate(stopping.decision(each, alpha) > 0 for each in draws)


def until_significant(n: int, repetitions: int) -> float:
    """How often p < 0.05 is seen at one of the looks, where there is no difference."""
    random = np.random.default_rng(_SEED)
    draws = (random.normal(0, NOISE, n) for _ in range(repetitions))
    return _rate(
        any(comparison.paired(each[:k]).p < 0.05 for k in range(6, n + 1)) for each in draws
    )


def flat(n: int, r: float, repetitions: int) -> float:
    """How often a series of `n` versions without a change shows one."""
    random = np.random.default_rng(_SEED)
    return _rate(
        bool(changes.changes(each)) for each in _autoregressive(random, r, (repetitions, n))
    )


def stepped(at: int, r: float, repetitions: int) -> float:
    """How often no change within 2 of a step of 5 % in 200 versions is shown."""
    random = np.random.default_rng(_SEED)
    series = _autoregressive(random, r, (repetitions, 200))
    series[:, at:] *= 1.05
    return _rate(all(abs(k - at) > 2 for k in changes.changes(each)) for each in series)


def bisected(levels: Sequence[float], noise: float, seed: int = _SEED) -> tuple[int, int]:
    """Which commit is named, 0 for none, and the number of runs; `levels`: those of the commits,
    around 0. What a session adds has a standard deviation of 3 %."""
    random, search, runs = np.random.default_rng(seed), bisection.Bisection(len(levels) - 1), 0
    while sessions := search.proposed():
        runs += sum(map(len, sessions))
        means = (np.array([levels[at] for at in each]) for each in sessions)
        search.take([random.normal(0, 0.03) + random.normal(each, noise) for each in means])
    return search.suspects[1] if search.verdict == bisection.COMMIT else 0, runs


def stepped_commits(commits: int, noise: float, repetitions: int) -> tuple[float, float, float]:
    """How often a step of 5 % at a random commit is not named, how often another commit is, and the
    mean number of runs."""
    random, missed, wrong, every = np.random.default_rng(_SEED), [], [], []
    for seed in range(repetitions):
        at = int(random.integers(1, commits + 1))
        levels = [math.log(1.05) * (k >= at) for k in range(commits + 1)]
        named, runs = bisected(levels, noise, seed)
        missed.append(named != at)
        wrong.append(named not in (0, at))
        every.append(runs)
    return _rate(missed), _rate(wrong), float(np.mean(every))


def unstepped_commits(effect: float, noise: float, repetitions: int) -> float:
    """How often a commit is named where all of 64 add the same part of an effect."""
    levels = np.linspace(0, math.log1p(effect), 65)
    return _rate(bisected([*levels], noise, seed)[0] > 0 for seed in range(repetitions))


def _has(interval: intervals.Interval, value: float) -> bool:
    if interval.lower is None or interval.upper is None:
        raise ValueError(interval.note)
    return interval.lower <= value <= interval.upper


def _rate(wrong: Iterable[bool]) -> float:
    return 100 * float(np.mean([*wrong]))


def _repetition(some: int, many: int) -> list[Row]:
    missed, runs = until_enough(FAMILIES["noise 2 %"], some, DRIFT)
    drifting = "until 2 %, a drift of 2 % over 60 rounds"
    rows = [Row(f"{drifting}: misses", [missed], "%", limit=5.0)]
    rows.append(Row(f"{drifting}: runs", [runs], ""))
    for effect in (0.01, 0.03):
        missed, runs = until_enough_allocations(5, effect, some)
        what = f"until 2 %, 5 runs in each allocation, {100 * effect:.0f} % apart"
        rows.append(Row(f"{what}: misses", [missed], "%", limit=5.0))
        rows.append(Row(f"{what}: runs", [runs], ""))
    for effect in (0.0, 0.03, 0.05):
        shown, runs = repeated_pairs(effect, many if not effect else some)
        what = f"pairs until within 2 %, {f'{100 * effect:.0f} %' if effect else 'no difference'}"
        if effect:
            rows.append(Row(f"{what}: not shown", [100 - shown], "%"))
        else:
            rows.append(Row(f"{what}: shown", [shown], "%", limit=5.2))
        rows.append(Row(f"{what}: pairs", [runs], ""))
    return rows


def _since_a_commit(some: int) -> list[Row]:
    rows = []
    for n in (6, 10, 30):
        missed = measured_apart(n, some)
        rows.append(Row(f"{n} runs since a commit: misses", [missed], "%", limit=5.0))
        missed = measured_apart(n, some, "two modes 10 % apart, 50/50")
        rows.append(Row("the same, two modes: misses", [missed], "%", limit=5.0))
    return rows


def measure(directory: Path, size: Size) -> list[Row]:
    """Intervals are of 95 %; a point has 10 to 60 runs, until its interval is within 2 %; runs have
    a noise of 2 % where nothing else is said."""
    some, many = size.number(4_000, 40), 5 * size.number(4_000, 40)
    rows = []

    def rate(what: str, value: float, limit: float | None = None) -> None:
        rows.append(Row(what, [value], "%", limit=limit))

    for name, family in FAMILIES.items():
        missed, runs = until_enough(family, some)
        rate(f"until 2 %, {name}: misses", missed, 5.0)
        rows.append(Row(f"until 2 %, {name}: runs", [runs], "", limit=family.most_runs))
    for n in (6, 10, 30):
        rate(f"{n} runs, two modes: misses", fixed_number(n, some), 5.0)
    for r, limit in ((0.0, 5.0), (0.3, 5.0), (0.6, 8.0)):
        rate(f"20 points, neighbours alike (r = {r}): misses", alike(r, many), limit)
        rate("the same without asking whether they are", alike(r, many, is_told=False))
    rate("30 runs in one of many allocations: misses", allocations(1, 30, some))
    rate("5 runs in each of 6 allocations: misses", allocations(6, 5, some), 5.0)
    rows += _repetition(some, many)
    for n in (6, 10, 15, 30):
        rate(f"{n} pairs, no difference: shown", compared(n, 0.0, many), 5.2)
    for effect in (0.02, 0.03, 0.05):
        for n in (6, 10, 15, 30):
            limit = 1.0 if effect == 0.05 and n >= 10 else None
            missed = 100 - compared(n, effect, some)
            rate(f"{n} pairs, {100 * effect:.0f} %: not shown", missed, limit)
    rate("30 pairs in rounds, 2 % drift: shown", compared(30, 0.0, some, 0.02), 5.2)
    rate("the same, all of one side first: shown", compared(30, 0.0, some, 0.02, coin=False))
    rows += _since_a_commit(some)
    shown, said = many_points(20, 10, 0.0, some)
    rate("20 points of 10 pairs, no difference: one is shown", shown, 5.2)
    rate("the same: the summary says so", said, 5.2)
    shown, said = many_points(20, 10, 0.08, some)
    rate("20 points of 10 pairs, one differs by 8 %: not shown", 100 - shown)
    rate("the same: the summary does not say so", 100 - said)
    rate("100 looks, no difference: decided at 0.05", looked_again(100, 0.0, 0.05, some), 5.0)
    rate("60 looks, 5 %: not decided at 0.01", 100 - looked_again(60, 0.05, 0.01, some), 1.0)
    rate(
        "6 to 60 pairs, a look after each, no difference: p < 0.05",
        until_significant(60, some // 4),
    )
    for n in (30, 60, 200):
        for r in (0.0, 0.3):
            rate(f"{n} flat versions, r = {r}: a change", flat(n, r, some // 8), None if r else 6.0)
    for at, r, limit in ((100, 0.0, 4.0), (190, 0.0, None), (100, 0.3, None)):
        missed = stepped(at, r, some // 8)
        rate(f"5 % since version {at} of 200, r = {r}: not within 2", missed, limit)
    for commits in (64, 200):
        for noise, limit in ((0.02, 1.0), (0.05, 6.0)):
            missed, wrong, runs = stepped_commits(commits, noise, some // 8)
            what = f"bisect {commits} commits, 5 %, noise {100 * noise:.0f} %"
            rate(f"{what}: not named", missed, limit)
            rate(f"{what}: another one is named", wrong, 1.0)
            rows.append(Row(f"{what}: runs", [runs], ""))
    for effect, limit in ((0.0, 0.0), (0.05, 2.0)):
        named = unstepped_commits(effect, NOISE, some // 8)
        rate(f"bisect 64 commits, {100 * effect:.0f} % in all: one is named", named, limit)
    return rows
