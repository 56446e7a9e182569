"""Whether the workers that come have what was asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from snakemake_kochi.allocation.asked_for import Asked
from snakemake_kochi.allocation.sizing import Supply
from snakemake_kochi.queue import Resources

# So many workers that came for a kind of job, one after the other, and cannot run it: another one
# would not either.
_MOST_IN_VAIN = 3


class Arrivals:
    """Of one queue. Where nobody says what a node has, or says too much, a job may be too large for
    each worker that comes; another one would be asked for again and again."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._in_vain: dict[Resources, int] = {}
        self._obstacles: dict[Resources, str] = {}

    def note(
        self,
        waiting: Iterable[Resources],
        there: Mapping[str, Supply],
        asked: Iterable[Asked],
    ) -> None:
        """Look at those of the workers, by allocation, that were not there at the last look, with
        what they came with."""
        promised = {each.id: each.supply for each in asked}
        for allocation in there.keys() - self._seen:
            self._seen.add(allocation)
            if (expected := promised.get(allocation)) is None:
                continue
            for kind in waiting:
                if expected.obstacle(kind) is not None:
                    continue  # it was not asked for this one
                if (why := there[allocation].obstacle(kind)) is None:
                    self._in_vain.pop(kind, None)
                else:
                    self._in_vain[kind] = self._in_vain.get(kind, 0) + 1
                    self._obstacles[kind] = why

    def obstacle(self, kind: Resources) -> str | None:
        """Why no more is to be asked for a kind of job, for people; None as long as it is."""
        if self._in_vain.get(kind, 0) < _MOST_IN_VAIN:
            return None
        return self._obstacles[kind]
