"""A set of many job numbers in little memory."""

from __future__ import annotations

from collections.abc import Iterator

from snakemake_kochi.paths import SHARD


class JobSet:
    """A set of job numbers, with a bit for each number, in one integer per shard."""

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

    def __len__(self) -> int:
        return sum(bits.bit_count() for bits in self._shards.values())

    def __iter__(self) -> Iterator[int]:
        """Iterate in ascending order."""
        for shard in sorted(self._shards):
            bits = self._shards[shard]
            yield from (shard * SHARD + place for place in range(SHARD) if bits >> place & 1)
