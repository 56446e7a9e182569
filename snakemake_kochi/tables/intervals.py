"""How sure the medians of a table are: the interval of each point and measurement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas

from snakemake_kochi.project.grid import Repeat
from snakemake_kochi.quantities import percent
from snakemake_kochi.statistics import dependence
from snakemake_kochi.statistics.intervals import (
    FEWEST_UNITS,
    Interval,
    Values,
    interval_of,
    runs_needed,
)
from snakemake_kochi.statistics.stopping import interval_so_far, median_confidence
from snakemake_kochi.tables.records import RecordedRun

_CONFIDENCE = 0.95
# an allocation, and a node of it
Unit = tuple[str | None, str | None]


@dataclass(frozen=True)
class Points:
    """The runs of a table by point. `rows`: of each point the positions of its rows, in the order
    in which they were measured; `units`: the allocation and node of each row; `repeat`: until when
    they were repeated."""

    rows: Sequence[Sequence[int]]
    units: Sequence[Unit]
    repeat: Repeat | None = None

    @classmethod
    def of(
        cls, points: Iterable[Hashable], runs: Sequence[RecordedRun], repeat: Repeat | None = None
    ) -> Points:
        """`points`: what tells the point of each run from others."""
        keys = list(points)
        rows: dict[Hashable, list[int]] = {key: [] for key in keys}
        for row in sorted(range(len(runs)), key=lambda row: runs[row].age):
            rows[keys[row]].append(row)
        return cls([*rows.values()], [run.unit for run in runs], repeat)

    @property
    def confidence(self) -> float:
        """How often the intervals have the true medians."""
        return _CONFIDENCE if self.repeat is None else self.repeat.confidence

    @property
    def needed(self) -> str:
        """What a point needs for an interval, for people."""
        level = self.confidence if self.repeat is None else median_confidence(self.confidence)
        return f"{runs_needed(level)} runs, or {FEWEST_UNITS} allocations or nodes"

    @property
    def are_repeated(self) -> bool:
        return any(len(rows) > 1 for rows in self.rows)

    @cached_property
    def unit_counts(self) -> Sequence[int]:
        """The number of allocations or nodes of each point."""
        return [len({self.units[row] for row in rows}) for rows in self.rows]

    @property
    def have_several_units(self) -> bool:
        return any(units > 1 for units in self.unit_counts)

    @property
    def described(self) -> Iterator[str]:
        """The number of runs of each point for people."""
        for rows, units in zip(self.rows, self.unit_counts, strict=True):
            own = Counter(self.units[row] for row in rows)
            word = "allocations" if len({allocation for allocation, _ in own}) == units else "nodes"
            if units < 2:
                yield str(len(rows))
            elif len({*own.values()}) == 1:
                yield f"{units} {word} x {len(rows) // units} runs"
            else:
                yield f"{len(rows)} runs in {units} {word}"

    @cached_property
    def of_row(self) -> Mapping[int, int]:
        """The number of the point of each row."""
        return {row: number for number, rows in enumerate(self.rows) for row in rows}

    def measured(self, column: pandas.Series[float]) -> Measured:
        """The intervals of a measurement, a number of each run."""
        values = np.array(column, dtype=np.float64)
        values[~np.isfinite(values)] = np.nan
        own: list[Values] = [values[rows] for rows in self.rows]
        alike = dependence.likeness(own)
        stretch = dependence.stretch(alike)
        found = [self._interval(*each, stretch) for each in zip(own, self.rows, strict=True)]
        counts = [int(np.sum(~np.isnan(each))) for each in own]
        return Measured(self, found, counts, alike, dependence.drifts(own))

    def _interval(self, values: Values, rows: Sequence[int], stretch: float) -> Interval:
        units = [self.units[row] for row in rows]
        if self.repeat is not None:
            return interval_so_far(values, self.confidence, stretch, units)
        return interval_of(values, units, self.confidence, stretch)


@dataclass(frozen=True)
class Measured:
    """A measurement: of each point the interval, and the number of runs with a value. `alike`: the
    correlation of neighbouring runs; `drifts`: later runs differ from earlier ones."""

    points: Points
    intervals: Sequence[Interval]
    counts: Sequence[int]
    alike: float
    drifts: bool

    def columns(self) -> pandas.DataFrame:
        """`lower`, `upper`, `n` and `units`, of the point of each row."""
        found = pandas.DataFrame(
            {
                "lower": [each.lower for each in self.intervals],
                "upper": [each.upper for each in self.intervals],
                "n": self.counts,
                "units": self.points.unit_counts,
            }
        ).astype({"lower": "float64", "upper": "float64"})
        return found.iloc[[self.points.of_row[row] for row in range(len(self.points.of_row))]]

    @property
    def told(self) -> list[str]:
        """The interval of each point for people."""
        return [
            f"{ends} (± {percent(interval.half_width)})"
            if not interval.note and (ends := interval.ends(".5g"))
            else interval.note
            for interval in self.intervals
        ]

    @property
    def has_intervals(self) -> bool:
        return any(interval.lower is not None for interval in self.intervals)

    def remarks(self, name: str) -> Iterator[str]:
        """What the intervals take into account, in sentences."""
        most = max(map(len, self.points.rows))
        if self.alike:
            count = dependence.counts_as(most, self.alike)
            yield (
                f"{name}: neighbouring runs are alike (r = {self.alike:.1f}): {most} runs count as "
                f"{count}"
            )
        if self.drifts:
            yield f"{name}: later runs differ from earlier ones"
