"""The memory a worker may use, and whether the kernel killed a job for using more.

What a scheduler allows a job is the limit of a cgroup. When it is used up, the kernel kills a
process in it and counts that; nothing else tells such a death from any other by SIGKILL. See
cgroups(7), the kernel's cgroup-v2 and cgroup-v1/memory documents, and proc_vmstat(5).
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from snakemake_kochi.worker.runners.interface import Exit

_PROCESS = Path("/proc/self")
_NODE_COUNTERS = Path("/proc/vmstat")
_MIB = 2**20
# MiB for a worker and the process that has parsed the workflow: no job's own memory.
OWN_MB = 512
# The name of the limit and of the file with the counter `oom_kill`, in the two versions of cgroups.
_FILES = {
    "cgroup2": ("memory.max", "memory.events"),
    "cgroup": ("memory.limit_in_bytes", "memory.oom_control"),
}
_KILLED_STATUS = 128 + signal.SIGKILL  # as the shells have it


@dataclass(frozen=True)
class MemoryGroup:
    """The memory cgroup a process is in: its directory and those of its parents, from the inside
    out, as far as they can be seen; none where there are no such cgroups."""

    directories: tuple[Path, ...]
    limit_name: str = ""
    counter_name: str = ""

    def limit_mb(self) -> int | None:
        """The least of all limits, in MiB; None where there is none."""
        limits = []
        for directory in self.directories:
            with contextlib.suppress(OSError, ValueError):  # "max" is no number
                limits.append(int((directory / self.limit_name).read_text()) // _MIB)
        return min(limits, default=None)

    @property
    def counter(self) -> Path | None:
        """The file whose `oom_kill` tells of kills in this very group."""
        counters = (directory / self.counter_name for directory in self.directories)
        return next((path for path in counters if path.exists()), None)


def own_memory_group(process: Path = _PROCESS) -> MemoryGroup:
    """That of the calling process; jobs are in it, too, unless they leave it."""
    try:
        groups = (process / "cgroup").read_text().splitlines()
        mounts = (process / "mountinfo").read_text().splitlines()
    except OSError:
        return MemoryGroup(())
    paths = {}
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            paths["cgroup2"] = path
        elif "memory" in controllers.split(","):
            paths["cgroup"] = path
    # A controller is in one version's hierarchy only; in the old one it is named.
    version = "cgroup" if "cgroup" in paths else "cgroup2"
    for line in mounts:
        # proc_pid_mountinfo(5): ... root mount-point options ... - type source super-options
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind != version or (kind == "cgroup" and "memory" not in options.split(",")):
            continue
        root, mount = left.split(" ")[3:5]
        with contextlib.suppress(KeyError, ValueError):
            inside = PurePosixPath(paths[version]).relative_to(root)
            own = Path(mount, inside)
            parents = [own, *list(own.parents)[: len(inside.parts)]]
            return MemoryGroup(tuple(parents), *_FILES[version])
    return MemoryGroup(())


def memory_mb_of_this_node(environment: Mapping[str, str]) -> int:
    """What this process may use, in MiB: of the node's memory, its cgroup's limit, and what Slurm
    says of the allocation, the least."""
    amounts = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _MIB]
    limit = own_memory_group().limit_mb()
    if limit is not None:
        amounts.append(limit)
    return min([*amounts, *_allowed_by_slurm(environment)])


def memory_mb_for_jobs(environment: Mapping[str, str], most: int | None = None) -> int:
    """What a worker of this process may hand out: that, but in an allocation of Slurm's, which
    ends all that is in it when it is used up, without what the worker needs itself. `most`: what it
    was asked for, with that beside it as far as the node has as much."""
    given = memory_mb_of_this_node(environment)
    if most is not None:
        return min(given, most)
    is_counted = any(amount <= given for amount in _allowed_by_slurm(environment))
    return given - min(OWN_MB, given // 2) if is_counted else given


def _allowed_by_slurm(environment: Mapping[str, str]) -> Iterator[int]:
    """Where nothing was asked for, Slurm says so what it gives by default, if that is limited."""
    for name, number in (("SLURM_MEM_PER_NODE", None), ("SLURM_MEM_PER_CPU", "SLURM_CPUS_ON_NODE")):
        with contextlib.suppress(KeyError, ValueError):
            amount = int(environment[name]) * (1 if number is None else int(environment[number]))
            if amount:  # 0 stands for all there is
                yield amount


@dataclass(frozen=True)
class OomCounts:
    """How many processes the kernel has killed for memory: in the worker's cgroup, on the node.
    None where it does not say."""

    group: int | None
    node: int | None


class OomWatch:
    """Tells for each job of a worker whether it died for want of memory."""

    def __init__(self, group: MemoryGroup | None = None, node: Path = _NODE_COUNTERS) -> None:
        self._group = own_memory_group() if group is None else group
        self._node = node
        self._counter = self._group.counter

    def counts(self) -> OomCounts:
        """To be taken when a job starts."""
        group = None if self._counter is None else _read_counter(self._counter)
        return OomCounts(group, _read_counter(self._node))

    def explain(self, before: OomCounts, end: Exit) -> str | None:
        """Whether a job that failed, and that we did not kill, ran out of memory: the evidence,
        for people, or None.

        Within the cgroup any failure counts: the victim may have been a child of the job, and
        the job just failed for it. The node's counter counts the victims of strangers, too, so
        there the job has to have been killed itself.
        """
        after = self.counts()
        if before.group is not None and (after.group or 0) > before.group:
            limit = self._group.limit_mb()
            allowed = "" if limit is None else f" of {limit} MiB"
            return (
                f"the kernel killed a process in the memory group{allowed} while it ran "
                f"(oom_kill in {self._counter} rose from {before.group} to {after.group})"
            )
        was_killed = end.signal == signal.SIGKILL or end.status == _KILLED_STATUS
        if was_killed and before.node is not None and (after.node or 0) > before.node:
            return (
                "it was killed while the kernel was killing processes of this node for memory "
                f"(oom_kill in {self._node} rose from {before.node} to {after.node})"
            )
        return None


def _read_counter(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return None
