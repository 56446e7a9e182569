"""The cores, memory and GPUs that a worker on this node hands out, and the limits of its memory.

A scheduler limits a job by a cgroup. When the memory of the cgroup is exhausted, the kernel kills a
process in it and counts the kill. Only this count distinguishes such a death from another one by
SIGKILL. See cgroups(7), the kernel's cgroup-v2 and cgroup-v1/memory documents, and proc_vmstat(5).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from snakemake_kochi.errors import WorkerError
from snakemake_kochi.schedulers.environment import own_allocation
from snakemake_kochi.tickets.capacity import Capacity

if TYPE_CHECKING:
    from snakemake_kochi.worker.runners import Exit

CUDA = "CUDA_VISIBLE_DEVICES"
HIP = "HIP_VISIBLE_DEVICES"
ROCR = "ROCR_VISIBLE_DEVICES"

# Values of the variables that mean "no GPU"; CUDA also ignores all names after such a value.
_NONE = ("", "-1", "NoDevFiles")
_LIST_PATIENCE = 10.0  # seconds; a driver that hangs must not block a worker's start
_LISTED = re.compile(r"GPU \d+: .*\(UUID: (GPU-[0-9a-fA-F-]+)\)")
_PROCESS = Path("/proc/self")
_NODE_COUNTERS = Path("/proc/vmstat")
_MIB = 2**20
# MiB for a worker and the process that has parsed the workflow, in addition to the jobs' memory.
OWN_MB = 512
# The name of the limit and of the file with the counter `oom_kill`, in the two versions of cgroups.
_FILES = {
    "cgroup2": ("memory.max", "memory.events"),
    "cgroup": ("memory.limit_in_bytes", "memory.oom_control"),
}
_KILLED_STATUS = 128 + signal.SIGKILL  # as in the shell


def capacity_of_this_node(
    cores: int | None = None,
    memory_mb: int | None = None,
    gpus: int | None = None,
    environment: Mapping[str, str] | None = None,
    most_memory_mb: int | None = None,
    nodes: int = 1,
) -> Capacity:
    """The given amounts; for the others, the amounts that the calling process may use.

    Under a scheduler these are the amounts of its allocation rather than of the node. `environment`
    defaults to the process's own. `nodes`: those of its allocation, if the scheduler does not tell
    their number. Without `memory_mb` the memory is at most `most_memory_mb` (both
    in MiB).
    """
    own = os.environ if environment is None else environment
    return Capacity(
        cores or len(os.sched_getaffinity(0)),
        memory_mb_for_jobs(own, most_memory_mb) if memory_mb is None else memory_mb,
        len(find_gpus(None, own).names) if gpus is None else gpus,
        (None if (allocation := own_allocation(own)) is None else allocation.nodes) or nodes,
    )


@cache
def gpus_of_this_node() -> int:
    """The number of GPUs of a worker that this process starts. Asks the driver once."""
    return len(find_gpus(None, os.environ).names)


# ---- GPUs


@dataclass(frozen=True)
class Gpus:
    """The GPUs that a worker may hand out.

    `names`: the devices, by index or UUID, as their libraries name them. `variables`: the
    environment variables that show the devices to a job. `is_given`: a person has named the GPUs,
    or none, and jobs see no others.
    """

    names: tuple[str, ...] = ()
    variables: tuple[str, ...] = (CUDA,)
    is_given: bool = False


def find_gpus(
    option: str | None, environment: Mapping[str, str], list_command: Sequence[str] | None = None
) -> Gpus:
    """The GPUs that a worker may hand out.

    `option` comes from a person: a number, or names separated by commas ("0,2"; a single one is
    "3,"). Without `option` the variables of the environment decide, as a scheduler sets them.
    Without these, `nvidia-smi -L` (or `list_command`) decides, if installed. Raises WorkerError for
    an invalid option.
    """
    visible = _visible(environment, list_command)
    if option is None:
        return visible
    if "," in option or not option.strip().isdecimal():
        return Gpus(_given_names(option), visible.variables, is_given=True)
    if len(option.strip()) > 4:
        raise WorkerError(
            f"--gpus {option[:40]}: a number of at most 4 digits was expected",
            "Use the number of GPUs of this node, for example: --gpus 2",
        )
    count = int(option)
    if not visible.names:
        return Gpus(tuple(map(str, range(count))), visible.variables, is_given=True)
    if count > len(visible.names):
        raise WorkerError(
            f"--gpus {option}: this node shows {len(visible.names)} GPUs "
            f"({', '.join(visible.names)})",
            f"Use --gpus {len(visible.names)}, or leave the option out to use all of them.",
        )
    return Gpus(visible.names[:count], visible.variables, is_given=True)


def _given_names(option: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in option.split(",") if name.strip())
    good = all(re.fullmatch(r"\d+|[A-Za-z]+-[\w:./-]+", name) for name in names)
    if not names or not good or len(set(names)) < len(names):
        raise WorkerError(
            f"--gpus {option}: a number of GPUs was expected, or the indices or UUIDs of GPUs, "
            "separated by commas",
            "For example: --gpus 2, or --gpus 0,3, or --gpus 3, for only the GPU with index 3.",
        )
    return names


def _visible(environment: Mapping[str, str], list_command: Sequence[str] | None) -> Gpus:
    # AMD's HIP obeys CUDA's variable, too, unless its own is set.
    own = (CUDA, HIP) if HIP in environment else (CUDA,)
    if CUDA in environment:
        return Gpus(_names(environment[CUDA]), own)
    if ROCR in environment:
        # The indices of CUDA and HIP count within the devices that this variable selects.
        return Gpus(_names(environment[ROCR]), (ROCR,))
    if HIP in environment:
        return Gpus(_names(environment[HIP]), own)
    return Gpus(_listed(list_command), own)


def _names(value: str) -> tuple[str, ...]:
    names: list[str] = []
    for name in map(str.strip, value.split(",")):
        if name in _NONE:
            break
        names.append(name)
    return tuple(names)


def _listed(command: Sequence[str] | None) -> tuple[str, ...]:
    program = None if command is not None else shutil.which("nvidia-smi")
    command = [program, "-L"] if program is not None else command
    if command is None:
        return ()
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIST_PATIENCE,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    # nvidia-smi counts devices by bus, CUDA by speed: only a UUID means the same device to both.
    return tuple(_LISTED.findall(done.stdout)) if done.returncode == 0 else ()


# ---- memory


@dataclass(frozen=True)
class MemoryGroup:
    """The memory cgroup of a process.

    `directories`: its directory and those of its parents, from the inside out, as far as they are
    visible; empty on a system without such cgroups.
    """

    directories: tuple[Path, ...]
    limit_name: str = ""
    counter_name: str = ""

    def limit_mb(self) -> int | None:
        """The lowest of all limits, in MiB; None without any limit."""
        limits = []
        for directory in self.directories:
            with contextlib.suppress(OSError, ValueError):  # "max" is not a number
                limits.append(int((directory / self.limit_name).read_text()) // _MIB)
        return min(limits, default=None)

    @property
    def counter(self) -> Path | None:
        """The file whose `oom_kill` counts the kills in this cgroup itself."""
        counters = (directory / self.counter_name for directory in self.directories)
        return next((path for path in counters if path.exists()), None)


def own_memory_group(process: Path = _PROCESS) -> MemoryGroup:
    """The cgroup of the calling process; its jobs are also in it, unless they leave it."""
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
    # A controller is in the hierarchy of one version only; version 1 lists it by name.
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
    """The memory that this process may use, in MiB.

    It is the lowest of the node's memory, the limit of the process's cgroup, and the memory of its
    allocation.
    """
    amounts = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _MIB]
    limits = own_memory_group().limit_mb(), _granted_mb(environment)
    return min([*amounts, *(each for each in limits if each is not None)])


def memory_mb_for_jobs(environment: Mapping[str, str], most: int | None = None) -> int:
    """The memory that a worker in this process may hand out, in MiB.

    In an allocation the worker keeps OWN_MB for itself, because a scheduler ends all processes of
    an allocation whose memory is exhausted. `most`: the memory requested for jobs; the allocation
    request had OWN_MB in addition.
    """
    given = memory_mb_of_this_node(environment)
    if most is not None:
        return min(given, most)
    granted = _granted_mb(environment)
    is_counted = granted is not None and granted <= given
    return given - min(OWN_MB, given // 2) if is_counted else given


def _granted_mb(environment: Mapping[str, str]) -> int | None:
    own = own_allocation(environment)
    return None if own is None else own.memory_mb


@dataclass(frozen=True)
class OomCounts:
    """How many processes the kernel has killed for memory, in the worker's cgroup and on the node.

    A count is None if the kernel does not report it.
    """

    group: int | None
    node: int | None


class OomWatch:
    """Determines for each job of a worker whether it died because memory ran out."""

    def __init__(self, group: MemoryGroup | None = None, node: Path = _NODE_COUNTERS) -> None:
        self._group = own_memory_group() if group is None else group
        self._node = node
        self._counter = self._group.counter

    def counts(self) -> OomCounts:
        """The counts now; take them when a job starts."""
        group = None if self._counter is None else _read_counter(self._counter)
        return OomCounts(group, _read_counter(self._node))

    def explain(self, before: OomCounts, end: Exit) -> str | None:
        """The evidence, for people, that a job ran out of memory, or None.

        Call it for a job that failed and that the worker did not kill. Within the cgroup any
        failure counts: the kernel may have killed a child of the job, and the job failed as a
        consequence. The node's counter also counts kills of other users' processes, so there the
        job itself must have been killed.
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
