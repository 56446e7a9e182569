"""A metric over the versions of the code, and where its level changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from snakemake_kochi.statistics.changes import changes
from snakemake_kochi.tables.branch import CODE
from snakemake_kochi.tables.report import Report


@dataclass(frozen=True)
class Change:
    """A new level: the last version with the old one, the first with the new one, and the medians
    of both levels, in the unit of the metric."""

    after: str
    begins: str
    before_level: float
    level: float


@dataclass(frozen=True)
class History:
    """A point. `codes`: the versions in the order in which they first ran, each with the median of
    its runs in `values`."""

    point: Mapping[str, str]
    codes: Sequence[str]
    values: Sequence[float]
    changes: Sequence[Change]


def histories(report: Report, metric: str) -> list[History]:
    """Each point of a report of all code. Raises KochiError for a metric without numbers."""
    column = report.numbers(metric)
    keys = [name for name in report.varying if name != CODE]
    runs = report.runs[column.notna()].sort_values("run_started", kind="stable")
    groups = runs.groupby(keys, sort=False, dropna=False) if keys else [((), runs)]
    found = []
    for point, own in groups:
        values = own.groupby(CODE, sort=False)[metric].median()
        named = dict(zip(keys, map(str, point), strict=True))
        codes, numbers = [*map(str, values.index)], [*map(float, values)]
        found.append(History(named, codes, numbers, _changes(codes, numbers)))
    return found


def _changes(codes: Sequence[str], values: Sequence[float]) -> list[Change]:
    places = changes(values)
    ends = [0, *places, len(values)]
    levels = [float(np.median(values[a:b])) for a, b in pairwise(ends)]
    return [
        Change(codes[at - 1], codes[at], levels[k], levels[k + 1]) for k, at in enumerate(places)
    ]
