"""A set of job numbers in little memory: workers and controllers may see millions of them."""

from __future__ import annotations

from collections.abc import Iterator

from snakemake_kochi.paths import SHARD


class JobSet:
    """Takes a bit for each number, in an integer for each shard of them."""

    def __init__(self) -> None:
        self._shards: dict[int, int] = {}

    def __contains__(self, job: object) -> bool:
        if not isinstance(job, int):
            return False
        shard, place = divmod(job, SHARD)
        return bool(self._shards.get(shard, 0) >> place & 1)

    def add(self, job: int) -> None:
        shard, place = divmod(job, SHARD)
        self._shards[shard] = self._shards.get(shard, 0) | 1 << place

    def __iter__(self) -> Iterator[int]:
        """In ascending order."""
        for shard in sorted(self._shards):
            bits = self._shards[shard]
            yield from (shard * SHARD + place for place in range(SHARD) if bits >> place & 1)
