"""What results are checked against: the references of an experiment; `tables/check.py` checks."""

from __future__ import annotations

import datetime
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from snakemake_kochi.errors import nearest
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.plots import SECONDS

if TYPE_CHECKING:
    from snakemake_kochi.project.document import KeyPath, Problems

_WITHIN = 0.05


@dataclass(frozen=True)
class Reference:
    """What a metric was, or is to be: a `value`, or that of the results in a `commit` of an
    artifact branch. `machine`: only there, empty for all. `where`: only points with one of these
    values. `within`: the difference that does not matter, a fraction. `reason`: why a worse result
    is accepted `until` a day."""

    metric: str
    value: float | None = None
    commit: str = ""
    machine: str = ""
    where: Mapping[str, tuple[str, ...]] = FrozenDict()
    within: float = _WITHIN
    reason: str = ""
    until: datetime.date | None = None

    def has(self, parameters: Mapping[str, str]) -> bool:
        return all(parameters.get(name, "") in values for name, values in self.where.items())

    @property
    def named(self) -> str:
        return self.commit[:12] if self.value is None else f"{self.value:g}"


def read_references(
    data: Sequence[Mapping[str, Any]],
    metrics: Collection[str],
    parameters: Collection[str],
    path: KeyPath,
    problems: Problems,
) -> tuple[Reference, ...]:
    """Those below a key `references`, of a batch with these metrics and parameters."""
    found, known = [], [*metrics, SECONDS]
    for index, entry in enumerate(data):
        at, value, until = (*path, index), None, None
        metric = entry.get("metric", known[0])
        if metric not in known:
            said = f"there is no metric '{metric}', {nearest(metric, known)}"
            problems.add((*at, "metric"), said)
        where = {
            name: tuple(text or "" for text in v) for name, v in entry.get("where", {}).items()
        }
        for name in where:
            if name not in parameters:
                said = f"there is no parameter '{name}', {nearest(name, parameters)}"
                problems.add((*at, "where", name), said)
        if "value" in entry and "commit" in entry:
            problems.add((*at, "commit"), "a reference has a value or a commit; remove one")
        if "value" in entry:
            value = _number(entry["value"])
            if value is None:
                said = f"'{entry['value']}': a number above 0 was expected, without its unit"
                problems.add((*at, "value"), said)
        accepted = entry.get("accepted", {})
        if accepted:
            try:
                until = datetime.date.fromisoformat(accepted["until"])
            except ValueError:
                said = f"'{accepted['until']}': a day such as 2027-01-31 was expected"
                problems.add((*at, "accepted", "until"), said)
        found.append(
            Reference(
                metric=metric,
                value=value,
                commit=entry.get("commit", ""),
                machine=entry.get("machine", ""),
                where=FrozenDict(where),
                within=entry.get("within", _WITHIN),
                reason=accepted.get("reason", ""),
                until=until,
            )
        )
    return tuple(found)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 < number < math.inf else None
