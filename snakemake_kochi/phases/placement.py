"""The CPUs of each task on one node: cores, sockets or NUMA nodes among those of its job."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from snakemake_kochi.cpu_lists import cpus_in

_CPUS = Path("sys/devices/system/cpu")
_NODES = Path("sys/devices/system/node")
_PATIENCE = 10.0  # seconds

Cpus = tuple[int, ...]


@dataclass(frozen=True)
class Topology:
    """The CPUs of a job by core, socket and NUMA node.

    Of `sockets` and `numa` each maps a number to its CPUs. What the kernel does not tell counts as
    one: one socket, one NUMA node, one CPU for each core.
    """

    cores: tuple[Cpus, ...]
    sockets: Mapping[int, Cpus]
    numa: Mapping[int, Cpus]

    @classmethod
    def of(cls, cpus: Collection[int], root: Path = Path("/")) -> Topology:
        """Read it from /sys below `root`."""
        core: dict[Cpus, None] = {}
        sockets: dict[int, list[int]] = {}
        for cpu in sorted(cpus):
            place = root / _CPUS / f"cpu{cpu}" / "topology"
            siblings = cpus_in(_text(place / "core_cpus_list")) or cpus_in(
                _text(place / "thread_siblings_list")  # before Linux 5.3
            )
            core[tuple(each for each in siblings if each in cpus) or (cpu,)] = None
            package = _text(place / "physical_package_id")
            sockets.setdefault(int(package) if package.isdecimal() else 0, []).append(cpu)
        numa = {}
        for directory in sorted((root / _NODES).glob("node[0-9]*")):
            here = tuple(c for c in cpus_in(_text(directory / "cpulist")) if c in cpus)
            if here:
                numa[int(directory.name.removeprefix("node"))] = here
        if sum(map(len, numa.values())) != len(cpus):
            numa = {0: tuple(sorted(cpus))}
        near = {cpu: (number, cpu) for number, own in numa.items() for cpu in own}
        return cls(
            tuple(sorted(core, key=lambda own: near[own[0]])),
            {number: tuple(own) for number, own in sorted(sockets.items())},
            numa,
        )


def _text(file: Path) -> str:
    with suppress(OSError):
        return file.read_text("utf-8", "replace").strip()
    return ""


def place(topology: Topology, bind: str, tasks: int, cpus_per_task: int) -> list[Cpus] | None:
    """The CPUs of each task on this node, in order; None if there are too few for all.

    `bind` is one of BINDINGS but "none". With `cores`, each task has whole cores of its own, with
    `cpus_per_task` CPUs or more, on one NUMA node if that has enough left; 0 stands for an equal
    share. With `sockets` and `numa`, a task may use all of the job's CPUs on those where its cores
    are.
    """
    share = max(1, sum(map(len, topology.cores)) // tasks)
    given = cpus_per_task or (share if bind == "cores" else 1)
    left = list(topology.cores)
    found: list[Cpus] = []
    for _ in range(tasks):
        taken = _take(left, given, topology)
        if taken is None:
            return None
        left = [core for core in left if core not in taken]
        found.append(tuple(sorted(cpu for core in taken for cpu in core)))
    if bind == "cores":
        return found
    groups = (topology.sockets if bind == "sockets" else topology.numa).values()
    return [_whole(cpus, groups) for cpus in found]


def _take(left: Sequence[Cpus], count: int, topology: Topology) -> list[Cpus] | None:
    """Whole cores with so many CPUs, on one NUMA node or socket if possible."""
    for group in (*topology.numa.values(), *topology.sockets.values()):
        if (found := _first(left, count, set(group))) is not None:
            return found
    return _first(left, count, {cpu for core in left for cpu in core})


def _first(left: Iterable[Cpus], count: int, allowed: Collection[int]) -> list[Cpus] | None:
    taken: list[Cpus] = []
    for core in left:
        if core[0] in allowed:
            taken.append(core)
            count -= len(core)
        if count <= 0:
            return taken
    return None


def _whole(cpus: Cpus, groups: Iterable[Cpus]) -> Cpus:
    """All CPUs of the groups that have one of these."""
    return tuple(sorted({cpu for own in groups if set(own) & set(cpus) for cpu in own}))


def memory_nodes(topology: Topology, cpus: Collection[int]) -> list[int]:
    """The NUMA nodes of these CPUs."""
    return [number for number, own in topology.numa.items() if set(own) & set(cpus)]


def binds_memory(nodes: Sequence[int]) -> bool:
    """Whether numactl is here, and may bind memory to these NUMA nodes: a container may forbid
    it."""
    program = shutil.which("numactl")
    if program is None:
        return False
    command = [program, f"--membind={','.join(map(str, nodes))}", "true"]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=_PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
