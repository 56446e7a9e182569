"""What Slurm's partitions give: which nodes, and for how long."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from snakemake_kochi.allocation.scheduler import RefusedError
from snakemake_kochi.allocation.sizing import Limits
from snakemake_kochi.allocation.slurm.answers import where
from snakemake_kochi.errors import nearest
from snakemake_kochi.project.machines import AllocationSettings
from snakemake_kochi.quantities import walltime_of
from snakemake_kochi.queue import Capacity

# sinfo(1), %G: gpu:2, gpu:a100:2, either followed by (S:...).
_GPUS = re.compile(r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)")


@dataclass(frozen=True)
class Partition:
    """Nodes of one kind in a partition, be they up or down now; `seconds`: the longest that an
    allocation may have, None if nothing limits it."""

    name: str
    is_default: bool
    seconds: float | None
    node: Capacity


def read_partitions(said: str) -> list[Partition]:
    """From what sinfo says with `--format=%P|%l|%c|%m|%G`: `main*|1-00:00:00|4|4096|gpu:a100:2`.
    Lines that are not like this are left out: sites print messages of the day."""
    found = []
    for line in said.splitlines():
        fields = line.strip().split("|", 4)
        if len(fields) < 5:
            continue
        name, longest, cores, memory, generic = fields
        try:
            gpus = sum(int(number) for number in _GPUS.findall(generic))
            node = Capacity(int(cores.rstrip("+")), int(memory.rstrip("+")), gpus)
            seconds = None if longest in ("infinite", "n/a") else walltime_of(longest)
        except ValueError:
            continue
        found.append(Partition(name.rstrip("*"), name.endswith("*"), seconds, node))
    return found


def limits_of(
    partitions: Sequence[Partition],
    name: str | None,
    settings: AllocationSettings,
    machine: str,
) -> Limits:
    """What may be asked for in the partitions of that name, several with commas between them, by
    default in the default one. Where the settings say something, that counts.

    Raises RefusedError for a partition that is not there.
    """
    chosen = _chosen(partitions, name, machine)
    nodes = _largest(
        Capacity(
            settings.cores or each.node.cores,
            settings.memory_mb or each.node.memory_mb,
            each.node.gpus if settings.gpus is None else settings.gpus,
        )
        for each in chosen
    )
    if not nodes:  # nobody could be asked
        nodes = (Capacity(settings.cores or 1, settings.memory_mb or 0, settings.gpus or 0),)
    seconds = settings.time
    if seconds is None and chosen:
        longest = [each.seconds for each in chosen]
        seconds = None if None in longest else max(filter(None, longest))
    return Limits(
        settings.max_workers,
        Capacity(
            max(node.cores for node in nodes),
            max(node.memory_mb for node in nodes),
            max(node.gpus for node in nodes),
        ),
        seconds,
        nodes=nodes,
        # Of a partition's longest time, which may be a month, nobody asks for all.
        asks_for_all=settings.time is not None,
    )


def _chosen(partitions: Sequence[Partition], name: str | None, machine: str) -> list[Partition]:
    if not partitions:
        return []
    if name is None:
        # One that the site's own submission script chooses, if there is no default.
        return [each for each in partitions if each.is_default] or list(partitions)
    known = {each.name for each in partitions}
    names = name.split(",")
    for each in names:
        if each not in known:
            raise RefusedError(
                f"Slurm knows no partition {each!r} with nodes: {nearest(each, known)}",
                f"See {where(machine, ['partition'])}. To see all, type: sinfo --summarize",
            )
    return [each for each in partitions if each.name in names]


def _largest(nodes: Iterable[Capacity]) -> tuple[Capacity, ...]:
    """Without those of which another has as much of everything."""
    different = sorted(
        set(nodes), key=lambda node: (node.cores, node.memory_mb, node.gpus), reverse=True
    )
    found: list[Capacity] = []
    for node in different:
        if not any(
            node.cores <= other.cores
            and node.memory_mb <= other.memory_mb
            and node.gpus <= other.gpus
            for other in found
        ):
            found.append(node)
    return tuple(found)
