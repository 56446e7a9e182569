"""What sinfo counts of partitions and nodes, and Slurm gives to nobody.

On many clusters a core or some memory of each node is for the system alone, or what a job may have
of a node is limited by its partition. What asks for more is refused, or waits for ever.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from snakemake_kochi.queue import Capacity
from snakemake_kochi.schedulers.slurm.partitions import Partition

# scontrol(1): show node, show partition. None limits where it says UNLIMITED.
_FIELD = re.compile(r"(?:^|\s)(\w+)=(\S+)")


@dataclass(frozen=True)
class _Node:
    """`cores`, `memory_mb`: as sinfo has them; `given`: what jobs can have."""

    partitions: frozenset[str]
    cores: int
    memory_mb: int
    given: tuple[int, int]


def without_withheld(partitions: Sequence[Partition], nodes: str, limits: str) -> list[Partition]:
    """Partitions with what jobs can have, by what `scontrol --oneliner` says of nodes, and of
    partitions. What it does not tell of, or not in these words, stays as it is."""
    known = list(filter(None, map(_node, nodes.splitlines())))
    most = {fields.get("PartitionName"): fields for fields in map(_fields, limits.splitlines())}
    return [
        replace(each, node=_limited(each.node, most.get(each.name, {})))
        for partition in partitions
        for each in _given(partition, known)
    ]


def _given(partition: Partition, known: Sequence[_Node]) -> Iterator[Partition]:
    """One for each amount that there is on nodes of this kind."""
    own = partition.node
    given = {
        node.given
        for node in known
        if partition.name in node.partitions
        and (node.cores, node.memory_mb) == (own.cores, own.memory_mb)
    }
    for cores, memory in sorted(given or {(own.cores, own.memory_mb)}):
        yield replace(partition, node=replace(own, cores=cores, memory_mb=memory))


def _limited(node: Capacity, fields: dict[str, str]) -> Capacity:
    cores = _number(fields, "MaxCPUsPerNode") or node.cores
    memory = _number(fields, "MaxMemPerNode") or node.memory_mb
    return replace(node, cores=min(cores, node.cores), memory_mb=min(memory, node.memory_mb))


def _node(line: str) -> _Node | None:
    fields = _fields(line)
    cores, memory = _number(fields, "CPUTot"), _number(fields, "RealMemory")
    if not cores or not memory:
        return None
    # Since 22.05; before that, only the cores that are kept are told.
    kept = (_number(fields, "CoreSpecCount") or 0) * (_number(fields, "ThreadsPerCore") or 1)
    given = _number(fields, "CPUEfctv") or cores - kept
    left = memory - (_number(fields, "MemSpecLimit") or 0)
    names = frozenset(fields.get("Partitions", "").split(","))
    return _Node(names, cores, memory, (max(1, given), max(0, left)))


def _fields(line: str) -> dict[str, str]:
    # The first of a name: comments of administrators, which come last, may have anything.
    return dict(reversed(_FIELD.findall(line)))


def _number(fields: dict[str, str], name: str) -> int | None:
    value = fields.get(name, "")
    return int(value) if value.isdecimal() else None
