"""The nodes of Slurm's partitions, and their time limits.

sinfo also counts resources that Slurm gives to no job. On many clusters a core or some memory of
each node is for the system alone, or a partition limits the share of a node that a job may have. A
request for more is refused, or waits for ever, so scontrol is asked, too.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from snakemake_kochi.errors import nearest
from snakemake_kochi.quantities import walltime_of
from snakemake_kochi.schedulers.interface import (
    AllocationSettings,
    Limits,
    RefusedError,
    SettingsAt,
    time_limit,
)
from snakemake_kochi.tickets.capacity import Capacity

# sinfo(1), %G: gpu:2, gpu:a100:2, either followed by (S:...).
_GPUS = re.compile(r"(?:^|,)gpu(?::([^:,()]+))?:(\d+)")
# sbatch(1), --constraint: each node has all of the features, or one. Only Slurm understands other
# expressions.
_ALL_OF = re.compile(r"[\w.-]+(?:&[\w.-]+)*")
_ONE_OF = re.compile(r"[\w.-]+(?:\|[\w.-]+)+")
# scontrol(1): show node, show partition. UNLIMITED means no limit.
_FIELD = re.compile(r"(?:^|\s)(\w+)=(\S+)")

# The fields of a partition's nodes in the format for sinfo.
LISTED = "%P|%l|%c|%m|%G|%f|%D"


@dataclass(frozen=True)
class Partition:
    """Nodes of one kind in a partition, whether up or down.

    `seconds`: the longest time of an allocation, None without a limit. `gpus`: the number of each
    model, "" for an unknown one. `count`: the number of nodes, None if it is not known.
    """

    name: str
    is_default: bool
    seconds: float | None
    node: Capacity
    features: frozenset[str] = frozenset()
    gpus: tuple[tuple[str, int], ...] = ()
    count: int | None = None


def read_partitions(said: str) -> list[Partition]:
    """The partitions in the output of sinfo with LISTED as its format.

    A line is `main*|1-00:00:00|4|4096|gpu:a100:2|big,new|12`, possibly without the last two fields.
    Other lines are ignored: sites print messages of the day.
    """
    found = []
    for line in said.splitlines():
        fields = line.strip().split("|")
        if len(fields) < 5:
            continue
        name, longest, cores, memory, generic = fields[:5]
        features = frozenset(",".join(fields[5:6]).split(",")) - {"", "(null)"}
        gpus = tuple((model, int(number)) for model, number in _GPUS.findall(generic))
        try:
            total = sum(number for _, number in gpus)
            node = Capacity(int(cores.rstrip("+")), int(memory.rstrip("+")), total)
            seconds = None if longest in ("infinite", "n/a") else walltime_of(longest, math.inf)
            count = int(fields[6]) if len(fields) > 6 else None
        except ValueError:
            continue
        is_default = name.endswith("*")
        own = name.rstrip("*")
        found.append(Partition(own, is_default, seconds, node, features, gpus, count))
    return found


def limits_of(
    partitions: Sequence[Partition],
    name: str | None,
    settings: AllocationSettings,
    settings_at: SettingsAt,
    is_other: bool = False,
    gpu_model: str | None = None,
    cores_in_all: int = 0,
) -> Limits:
    """The limits in the partitions of that name, or of the default one.

    The name may be several, separated by commas. The settings take precedence, except for cores
    that no node has: such a request would wait for ever. If the partition `is_other` than the
    settings', their time counts only for jobs that do not say how long they take. `cores_in_all`:
    those of all tasks of one allocation. Raises RefusedError for a partition that does not exist,
    or that has fewer nodes, cores or time than one allocation needs.
    """
    chosen = _featured(
        _chosen(partitions, name, settings_at), settings.constraints.get("constraint")
    )
    if gpu_model is not None:
        chosen = _with_model(chosen, gpu_model)
    _check_size(chosen, settings.nodes, cores_in_all, settings_at)
    nodes = _largest(
        Capacity(
            min(settings.cores or each.node.cores, each.node.cores),
            settings.memory_mb or each.node.memory_mb,
            each.node.gpus if settings.gpus is None else settings.gpus,
            settings.nodes,
        )
        for each in chosen
    )
    if not nodes:  # Slurm could not be asked
        nodes = (
            Capacity(
                settings.cores or 1, settings.memory_mb or 0, settings.gpus or 0, settings.nodes
            ),
        )
    longest = [each.seconds for each in chosen]
    most = None if None in longest else max(filter(None, longest), default=None)
    seconds = settings.time if settings.time is not None and not is_other else most
    # A QOS may allow more than its partition.
    has_qos = (
        "qos" in settings.constraints
        or "SBATCH_QOS" in os.environ
        or any(each.startswith(("-q", "--qos")) for each in settings.arguments)
    )
    if seconds is not None and most is not None and seconds > most and not has_qos:
        names = ", ".join(dict.fromkeys(each.name for each in chosen))
        raise RefusedError(
            f"an allocation of {time_limit(seconds)} would wait for ever: the longest time of "
            f"partition {names} is {time_limit(most)}",
            f"Request {time_limit(most)} at most, by {settings_at(['time'])}, choose another "
            "partition, or name the QOS (qos:) that allows more.",
        )
    usual = None
    if is_other and settings.time is not None:
        usual = settings.time if most is None else min(settings.time, most)
    return Limits(
        settings.max_workers,
        Capacity(
            max(node.cores for node in nodes),
            max(node.memory_mb for node in nodes),
            max(node.gpus for node in nodes),
            settings.nodes,
        ),
        seconds,
        nodes=nodes,
        # A partition's longest time may be a month: no request should take all of it.
        asks_for_all=settings.time is not None,
        usual=usual,
    )


def facts_of(
    partitions: Sequence[Partition],
    nodes: str,
    limits: str,
    name: str | None,
    settings: AllocationSettings,
    settings_at: SettingsAt,
) -> dict[str, int]:
    """What one node of the partition has at most for jobs, see `native.BatchSystem.node_facts`.

    `nodes` and `limits` are as for `without_withheld`, the rest as for `limits_of`.
    """
    own = _featured(_chosen(partitions, name, settings_at), settings.constraints.get("constraint"))
    if not own:
        return {}
    given = without_withheld(partitions, nodes, limits)
    node = limits_of(given, name, replace(settings, time=None), settings_at).node
    found = {"cores": node.cores, "memory_mb": node.memory_mb, "gpus": node.gpus}
    names = {each.name for each in own}
    lines = [
        fields
        for fields in map(_fields, nodes.splitlines())
        if not names.isdisjoint(fields.get("Partitions", "").split(","))
    ]
    sockets = [number for fields in lines if (number := _number(fields, "Sockets"))]
    if sockets:
        found["sockets"] = max(sockets)
    counts = [each.count for each in own]
    if None not in counts:
        found["nodes"] = sum(filter(None, counts))
    return found


def _chosen(
    partitions: Sequence[Partition], name: str | None, settings_at: SettingsAt
) -> list[Partition]:
    if not partitions:
        return []
    if name is None:
        # Without a default, the site's own submission script chooses one.
        return [each for each in partitions if each.is_default] or list(partitions)
    known = {each.name for each in partitions}
    names = name.split(",")
    for each in names:
        if each not in known:
            raise RefusedError(
                f"Slurm knows no partition {each!r} with nodes: {nearest(each, known)}",
                f"See {settings_at(['partition'])}. To see all, type: sinfo --summarize",
            )
    return [each for each in partitions if each.name in names]


def _check_size(
    chosen: Sequence[Partition], nodes: int, cores: int, settings_at: SettingsAt
) -> None:
    """Require that one partition has the nodes of an allocation, and the cores of all its tasks."""
    if any(each.count is None for each in chosen):
        return
    most_nodes: Counter[str] = Counter()
    most_cores: Counter[str] = Counter()
    for each in chosen:
        most_nodes[each.name] += each.count or 0
        most_cores[each.name] += (each.count or 0) * each.node.cores
    names = ", ".join(most_nodes)
    if chosen and nodes > (most := max(most_nodes.values())):
        raise RefusedError(
            f"one allocation requests {nodes} nodes, but partition {names} has {most}",
            f"See {settings_at(['nodes', 'partition'])}.",
        )
    if chosen and cores > (most := max(most_cores.values())):
        raise RefusedError(
            f"the tasks of one allocation need {cores} cores, but partition {names} has {most}",
            f"See {settings_at(['tasks', 'partition'])}.",
        )


def _featured(chosen: list[Partition], constraint: str | None) -> list[Partition]:
    """The nodes with the requested features.

    If no node has them, all nodes: Slurm then reports the error.
    """
    if constraint and _ALL_OF.fullmatch(constraint):
        wanted = set(constraint.split("&"))
        return [each for each in chosen if wanted <= each.features] or chosen
    if constraint and _ONE_OF.fullmatch(constraint):
        wanted = set(constraint.split("|"))
        return [each for each in chosen if wanted & each.features] or chosen
    return chosen


def _with_model(chosen: list[Partition], model: str) -> list[Partition]:
    """The nodes with GPUs of the model, counting only these; if none has them, all, as above."""
    return [
        replace(each, node=replace(each.node, gpus=number))
        for each in chosen
        for name, number in each.gpus
        if name == model
    ] or chosen


def _largest(nodes: Iterable[Capacity]) -> tuple[Capacity, ...]:
    """The nodes without those that another one exceeds or equals in every amount."""
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


# ---- withheld resources


@dataclass(frozen=True)
class _Node:
    """A node. `cores`, `memory_mb`: as sinfo reports them; `given`: the same amounts for jobs."""

    partitions: frozenset[str]
    cores: int
    memory_mb: int
    given: tuple[int, int]


def without_withheld(partitions: Sequence[Partition], nodes: str, limits: str) -> list[Partition]:
    """The partitions with the amounts that jobs can have.

    They come from the output of `scontrol --oneliner` for nodes and for partitions (`limits`).
    Amounts that it does not mention, or not in these words, stay as they are.
    """
    known = list(filter(None, map(_node, nodes.splitlines())))
    most = {fields.get("PartitionName"): fields for fields in map(_fields, limits.splitlines())}
    return [
        replace(each, node=_limited(each.node, most.get(each.name, {})))
        for partition in partitions
        for each in _given(partition, known)
    ]


def _given(partition: Partition, known: Sequence[_Node]) -> Iterator[Partition]:
    """One partition for each amount that jobs can have on nodes of this kind."""
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
    # CPUEfctv exists since 22.05; older versions report only the reserved cores.
    kept = (_number(fields, "CoreSpecCount") or 0) * (_number(fields, "ThreadsPerCore") or 1)
    given = _number(fields, "CPUEfctv") or cores - kept
    left = memory - (_number(fields, "MemSpecLimit") or 0)
    names = frozenset(fields.get("Partitions", "").split(","))
    return _Node(names, cores, memory, (max(1, given), max(0, left)))


def _fields(line: str) -> dict[str, str]:
    # The first field of a name counts: the comments of administrators come last, and may contain
    # any.
    return dict(reversed(_FIELD.findall(line)))


def _number(fields: dict[str, str], name: str) -> int | None:
    value = fields.get(name, "")
    return int(value) if value.isdecimal() else None
