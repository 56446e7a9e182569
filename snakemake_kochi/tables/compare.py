"""Two values of a parameter compared, point by point: from the report of a batch."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from snakemake_kochi.project.grid import Repeat
from snakemake_kochi.project.plots import DUPLICATE, MACHINE
from snakemake_kochi.quantities import percent
from snakemake_kochi.statistics import comparison, dependence, stopping
from snakemake_kochi.statistics.comparison import Ratio
from snakemake_kochi.statistics.intervals import FEWEST_UNITS, Interval, medians_of
from snakemake_kochi.tables.intervals import Measured
from snakemake_kochi.tables.records import RecordedRun
from snakemake_kochi.tables.report import Report

# What must be the same on both sides, beside the user's own facts.
_FACTS = ("machine", "cpu_model", "kernel", "governor", "isolation", "launcher")
_OF_MACHINE = frozenset(("machine", "cpu_model", "kernel", "governor"))
_OF_SCRIPT = frozenset(("isolation", "launcher"))  # a run need have none
_FACT = "fact."
_PREFIX, _SECONDS = "(n|u|µ|μ|m|nano|micro|milli)", "(s|secs?|seconds?)"
_TIMES = re.compile(
    rf"(.*[_ -])?{_PREFIX}?{_SECONDS}([_ /-].*)?"
    r"|.*(time(?![_ -]?step)|latency|duration).*",
    re.IGNORECASE,
)
_RATES = re.compile(r"throughput|bandwidth|flops?", re.IGNORECASE)
# `of`: what is counted per time, as in "ops_per_sec_avg", "ns/day" and "GB s-1"; no "max/min".
_PER_TIME = re.compile(
    r"(?P<of>.*?)[_ ]*("
    rf"(/|(?<![a-z])per[_ -]) ?({_PREFIX}?{_SECONDS}|(?<!max/)(?<!max / )min(utes?)?"
    r"|(?P<long>h|hours?|days?))"
    r"([_ /-].*)?|(?<![a-z])[nuµμm]?s(\^?-1|⁻¹))",
    re.IGNORECASE,
)
# What a simulation reaches in a day.
_SIMULATED = re.compile(rf"(.*[_ -])?({_PREFIX}{_SECONDS}|simulated[_ -]time)", re.IGNORECASE)
_SPEEDUP = re.compile("speed[_ -]?up", re.IGNORECASE)

FASTER, SLOWER, SAME = "faster", "slower", "the same"
NOT_SHOWN, TOO_FEW, NOT_COMPARABLE = "no difference shown", "too few pairs", "not comparable"


@dataclass(frozen=True)
class Compared:
    """A point. `sides` are the medians, in the unit of the metric, `ratio` that of the second one
    to the first one. `verdict`: SAME, NOT_SHOWN, TOO_FEW, NOT_COMPARABLE, or a word of `words`;
    `why` says more."""

    point: Mapping[str, str]
    sides: tuple[Interval, Interval]
    ratio: Ratio | None
    verdict: str
    why: str = ""


@dataclass(frozen=True)
class Comparison:
    """The second value of `by` compared with the first one. `confidence`: what intervals promise.
    `overall`: the ratio over all points, with `chance` (p) for "no point has a difference"; None if
    nothing could be compared. `differs`: whether at least one point does; None where even the
    smallest `chance` of so few rounds would not show it. `needed`: of what is `counted`."""

    metric: str
    unit: str
    by: str
    values: tuple[str, str]
    confidence: float
    points: Sequence[Compared]
    overall: Ratio | None
    chance: float
    differs: bool | None
    needed: int
    counted: str
    remarks: Sequence[str]


@dataclass(frozen=True)
class _Pairs:
    """The logarithms of what both sides of a point measured: of runs by duplicate, or of the median
    of each allocation, in the order in which they were measured."""

    first: Mapping[Hashable, float]
    second: Mapping[Hashable, float]
    is_by_duplicate: bool

    @property
    def differences(self) -> dict[Hashable, float]:
        """Those of the pairs; none where the sides have allocations of their own."""
        found = {k: self.second[k] - v for k, v in self.first.items() if k in self.second}
        return found if self.is_by_duplicate or len(found) >= FEWEST_UNITS else {}

    def ratio(self, stretch: float, confidence: float) -> Ratio:
        differences = [*self.differences.values()]
        if self.is_by_duplicate:
            return comparison.paired(differences, confidence, stretch)
        if differences:
            return comparison.of_units(differences, confidence)
        return comparison.unpaired([*self.first.values()], [*self.second.values()], confidence)


def compare(
    report: Report, by: str, metric: str, base: str, accepted: Collection[str], within: float
) -> list[Comparison]:
    """Each other value of `by`, a column, with the value `base` of it.

    `accepted`: facts that may differ. `within`: a difference that does not matter, as a fraction.
    Raises KochiError for a metric without numbers.
    """
    report.numbers(metric)
    others = [each for each in dict.fromkeys(report.runs[by].astype(str)) if each != base]
    return [
        _Sides(report, by, metric, (base, other), accepted).compared(within) for other in others
    ]


def facts_of(report: Report) -> list[str]:
    """What may be accepted: the facts of which one may differ."""
    own = (name for run in report.recorded for name in run.more if name.startswith(_FACT))
    return [*_FACTS, *dict.fromkeys(name.removeprefix(_FACT) for name in own)]


def unknown(report: Report, repeat: Repeat) -> dict[tuple[str, ...], tuple[float, str]]:
    """The points whose ratios to the first value of `repeat.by` are not known, by the values of the
    other columns that tell points apart: half of the width of the widest; and why there is none.

    A ratio is known if its interval is narrow enough, or if it is decided that it is not 1, which
    stays true whenever one looks. Facts may differ: what is compared may choose them.
    """
    first, *others = dict.fromkeys(report.runs[repeat.by].astype(str))
    found: dict[tuple[str, ...], tuple[float, str]] = {}
    for other in others:
        sides = _Sides(report, repeat.by, repeat.metric, (first, other), ())
        for point, (width, why) in sides.unknown(repeat).items():
            before = found.get(point, (0.0, ""))
            found[point] = (max(width, before[0]), why or before[1])
    return found


class _Sides:
    def __init__(
        self,
        report: Report,
        by: str,
        metric: str,
        values: tuple[str, str],
        accepted: Collection[str],
    ) -> None:
        self._report, self._by, self._metric, self._values = report, by, metric, values
        self._accepted = {*accepted, *(_OF_MACHINE if by == MACHINE else ())}
        repeat = report.repeat
        is_repeated = repeat is not None and repeat.by == by
        self._promised = level = report.points.confidence
        self._confidence = stopping.ratio_confidence(level) if is_repeated else level
        self._keys = [name for name in report.varying if name != by]
        runs = report.runs.sort_values("run_started", kind="stable")
        # Point -> side -> the rows, in the order in which they ran.
        self._points: dict[tuple[str, ...], tuple[list[int], list[int]]] = {}
        names = runs[self._keys].astype(str).itertuples(index=True, name=None)
        for (row, *point), value in zip(names, runs[by].astype(str), strict=True):
            if value in values:
                sides = self._points.setdefault(tuple(point), ([], []))
                sides[values.index(value)].append(int(row))
        self._points = {point: self._points[point] for point in self._in_order()}
        self._measured = report.runs[metric].astype(float).to_dict()
        self._duplicates = report.runs[DUPLICATE].to_dict()

    def _in_order(self) -> list[tuple[str, ...]]:
        names = self._report.runs[self._keys].astype(str).itertuples(index=False, name=None)
        return [point for point in dict.fromkeys(names) if point in self._points]

    def compared(self, within: float) -> Comparison:
        unit = self._report.unit(self._metric)
        medians = self._report.points.measured(self._report.numbers(self._metric))
        problems = {point: self._problem(*sides) for point, sides in self._points.items()}
        pairs = {p: self._pairs(*sides) for p, sides in self._points.items() if not problems[p]}
        pairs_alike = dependence.likeness([*each.differences.values()] for each in pairs.values())
        stretch = dependence.stretch(pairs_alike)
        ratios = {point: each.ratio(stretch, self._confidence) for point, each in pairs.items()}
        known = [point for point, ratio in ratios.items() if ratio.lower is not None]
        chances, level = [ratios[point].p for point in known], 1 - self._confidence
        marks = dict(zip(known, comparison.marked(chances, level), strict=True))
        words = words_of(self._metric, unit)
        needed, counted = comparison.pairs_needed(len(self._points), self._confidence), "pairs"
        if pairs and not any(each.is_by_duplicate for each in pairs.values()):
            needed, counted = FEWEST_UNITS, "allocations or nodes"
        points = []
        for point, (one, other) in self._points.items():
            found = (NOT_COMPARABLE, problems[point])
            if (ratio := ratios.get(point)) is not None:
                found = _verdict(ratio, marks.get(point, False), within, words)
                if found[0] == NOT_SHOWN:
                    found = (NOT_SHOWN, self._why_not_shown(ratio, pairs[point], needed))
            if found[0] in words and self._is_decided(pairs[point]):
                found = (found[0], "also under repeated looks")
            sides = (_median(medians, one), _median(medians, other))
            named = dict(zip(self._keys, point, strict=True))
            points.append(Compared(named, sides, ratio, *found))
        table = _by_round([pairs[point].differences for point in known])
        overall, chance, differs = None, 1.0, None
        if table.size:
            overall, chance = comparison.of_rounds(table, stretch, self._confidence)
            if len(known) == 1:
                chance = chances[0]  # a line about one point has the p of its row
            if len(known) == 1 or comparison.least_chance(len(table), stretch) <= level:
                differs = chance <= level
        return Comparison(
            *(self._metric, unit, self._by, self._values, self._promised, points, overall, chance),
            *(differs, needed, counted),
            [*self._remarks(pairs, medians.alike, pairs_alike)],
        )

    def unknown(self, repeat: Repeat) -> dict[tuple[str, ...], tuple[float, str]]:
        problems = {point: self._obstacle(*sides) for point, sides in self._points.items()}
        found = {p: (math.inf, f"{NOT_COMPARABLE}: {why}") for p, why in problems.items() if why}
        pairs = {p: self._pairs(*s) for p, s in self._points.items() if p not in found}
        alpha = stopping.ratio_alpha(repeat.confidence)
        series = [[*each.differences.values()] for each in pairs.values()]
        stretch = dependence.stretch(dependence.likeness(series))
        for (point, each), differences in zip(pairs.items(), series, strict=True):
            ratio = each.ratio(stretch, self._confidence)
            is_narrow = ratio.half_width <= repeat.until
            if not each.is_by_duplicate:
                is_narrow &= ratio.n >= stopping.FEWEST_UNITS_TO_STOP
            # Where neighbours are alike, the first pairs may be too few for any interval.
            is_decided = ratio.lower is not None and stopping.decision(differences, alpha) > 0
            if not is_narrow and not is_decided:
                found[point] = (ratio.half_width, "")
        return found

    def _is_decided(self, pairs: _Pairs) -> bool:
        """Whether the verdict holds although one has compared after fewer runs before."""
        alpha = (1 - self._promised) / len(self._points)
        return stopping.decision([*pairs.differences.values()], alpha) > 0

    def _why_not_shown(self, ratio: Ratio, pairs: _Pairs, needed: int) -> str:
        """Which difference would have been shown; or, where the interval is without 1 or any
        difference needs more pairs, why that of one point among many does not count."""
        count = len(self._points)
        among = f" among {count} points" if count > 1 else ""
        if pairs.is_by_duplicate and ratio.n < needed:
            return f"{needed} pairs are needed{among}"
        lower, upper = ratio.lower, ratio.upper
        if lower is not None and upper is not None and not lower <= 1 <= upper:
            return f"p = {ratio.p:.2g} is too large{among}"
        return f"{percent(ratio.detectable)} would have been"

    def _series(self) -> list[list[float]]:
        """The values of each side of each point, in the order in which they were measured."""
        every = (side for sides in self._points.values() for side in sides)
        return [[self._measured[row] for row in side] for side in every]

    def _run(self, row: int) -> RecordedRun:
        return self._report.recorded[row]

    def _problem(self, first: Sequence[int], second: Sequence[int]) -> str:
        """Why the sides of a point cannot be compared, or nothing."""
        is_whole = first and second
        return (self._differing(first, second) if is_whole else "") or self._obstacle(first, second)

    def _differing(self, first: Sequence[int], second: Sequence[int]) -> str:
        """The first fact that ought not to differ, or nothing."""
        facts: tuple[dict[str, set[str]], dict[str, set[str]]] = ({}, {})
        for found, side in zip(facts, (first, second), strict=True):
            for row in side:
                run = self._run(row)
                own = {name: run.machine if name == "machine" else run[name] for name in _FACTS}
                own |= {
                    k.removeprefix(_FACT): v for k, v in run.more.items() if k.startswith(_FACT)
                }
                for name, value in own.items():
                    without = "none" if name in _OF_SCRIPT else "unknown"
                    found.setdefault(name, set()).add(str(value or without))
        for name in dict.fromkeys([*facts[0], *facts[1]]):
            one, other = (sorted(each.get(name, {"unknown"})) for each in facts)
            if one != other and name not in self._accepted:
                said = " and ".join(", ".join(map(_first_line, each)) for each in (one, other))
                return f"{name} differs: {said}; to compare all the same: --accept {name}"
        return ""

    def _obstacle(self, first: Sequence[int], second: Sequence[int]) -> str:
        """Why there is no ratio, whatever is accepted, or nothing."""
        if not first or not second:
            return f"no run with {self._by} = {self._values[bool(first)]}"
        try:
            for side in (first, second):
                values = [self._measured[row] for row in side]
                comparison.logs(values, values)
        except ValueError as error:
            return str(error)
        return ""

    def _pairs(self, first: Sequence[int], second: Sequence[int]) -> _Pairs:
        sides = [(side, [math.log(self._measured[r]) for r in side]) for side in (first, second)]
        medians = [
            medians_of(values, [self._run(row).unit for row in side]) for side, values in sides
        ]
        # Of two machines, units are what is compared; with one of each, their runs count.
        is_one_each = self._by == MACHINE and len(medians[0]) == len(medians[1]) == 1
        if len({*medians[0], *medians[1]}) > 1 and not is_one_each:
            return _Pairs(medians[0], medians[1], False)
        runs = [
            {self._duplicates[row]: value for row, value in zip(*side, strict=True)}
            for side in sides
        ]
        known = [{k: v for k, v in side.items() if not math.isnan(v)} for side in runs]
        return _Pairs(known[0], known[1], True)

    def _remarks(
        self, pairs: Mapping[tuple[str, ...], _Pairs], alike: float, pairs_alike: float
    ) -> Iterator[str]:
        series = self._series()
        if missing := int(np.sum(np.isnan(np.concatenate(series)))):
            yield f"{missing} runs have no value of '{self._metric}'"
        by_duplicate = [point for point, each in pairs.items() if each.is_by_duplicate]
        alone = (pairs[point].first.keys() ^ pairs[point].second.keys() for point in by_duplicate)
        if count := sum(map(len, alone)):
            yield f"{count} runs are left out of the ratios: the other side lacks their duplicate"
        apart = sum(self._is_apart(*self._points[point]) for point in by_duplicate)
        rows = {row for point in by_duplicate for side in self._points[point] for row in side}
        if len({self._run(row).unit for row in rows}) > 1:
            yield "one allocation or node of each machine is compared, as if others were like it"
        elif apart * 2 > len(pairs):
            yield (
                "one side ran before the other, so the ratios have what changed on the machine "
                "meanwhile, and the intervals do not cover it; to avoid this, run both in one "
                "batch with `order: rounds`"
            )
        if by_duplicate:
            yield "the intervals do not cover differences between sessions, boots and builds"
        if len(by_duplicate) < len(pairs):
            yield "the medians of several allocations or nodes count, and not their runs"
        most = max(map(len, series))
        for r, what in ((alike, "runs"), (pairs_alike, "pairs")):
            if r:
                count = dependence.counts_as(most, r)
                yield f"neighbouring {what} are alike (r = {r:.1f}): {most} count as {count}"
        if dependence.drifts(series):
            yield "later runs differ from earlier ones"

    def _is_apart(self, first: Sequence[int], second: Sequence[int]) -> bool:
        one, other = ([str(self._run(row)["started"]) for row in each] for each in (first, second))
        return len(one) > 1 < len(other) and (max(one) < min(other) or max(other) < min(one))


def _median(medians: Measured, side: Sequence[int]) -> Interval:
    """That of the table."""
    if not side:
        return Interval(math.nan, None, None, 0)
    return medians.intervals[medians.points.of_row[side[0]]]


def _by_round(points: Sequence[Mapping[Hashable, float]]) -> NDArray[np.float64]:
    """A row for each round and a column for each point with pairs."""
    own = [each for each in points if each]
    rounds = dict.fromkeys(key for each in own for key in each)
    return np.array([[each.get(key, math.nan) for each in own] for key in rounds])


def _verdict(
    ratio: Ratio, is_marked: bool, within: float, words: tuple[str, str]
) -> tuple[str, str]:
    if ratio.lower is None or ratio.upper is None:
        return TOO_FEW, ratio.note
    if 1 / (1 + within) <= ratio.lower and ratio.upper <= 1 + within:
        return SAME, f"within {percent(within)}"
    if is_marked:
        return words[ratio.estimate > 1], ""
    return NOT_SHOWN, ""


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def words_of(metric: str, unit: str) -> tuple[str, str]:
    """What a smaller and what a larger value is called, by the unit, or else by the name."""
    said = unit or metric
    per = _PER_TIME.fullmatch(said)
    of = per["of"] if per else said
    is_rate = per is not None or _RATES.search(of) is not None
    is_simulated = per is not None and per["long"] and _SIMULATED.fullmatch(of)
    is_time = not is_simulated and _TIMES.fullmatch(of) is not None
    if is_rate == is_time or _SPEEDUP.search(said):
        return "lower", "higher"
    return (FASTER, SLOWER) if is_time else (SLOWER, FASTER)
