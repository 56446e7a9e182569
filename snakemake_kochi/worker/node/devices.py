"""The CPUs and GPUs that each job of a worker gets.

Two workers of one user on one node, of two runs for example, may each use all CPUs. Locks on the
bytes of one file of the computer, one byte per CPU, keep them apart, whatever their KOCHI_ROOT.
POSIX locks belong to a process: they end with it, however it ends, and jobs do not inherit them.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from snakemake_kochi.cpu_lists import cpu_ranges, format_cpus
from snakemake_kochi.tickets.ticket import Resources
from snakemake_kochi.worker.node.capacity import Gpus

_log = logging.getLogger(__name__)

_TOPOLOGY = Path("/sys/devices/system/cpu")

# CPUs by socket, and within a socket in the order of their numbers.
Layout = tuple[tuple[int, ...], ...]


def layout_of(cpus: Iterable[int], topology: Path = _TOPOLOGY) -> Layout:
    """The layout of these CPUs. If the sockets are unknown, all CPUs count as one socket."""
    sockets: dict[int, list[int]] = {}
    for cpu in sorted(cpus):
        sockets.setdefault(_socket_of(cpu, topology), []).append(cpu)
    return tuple(tuple(sockets[socket]) for socket in sorted(sockets))


def _socket_of(cpu: int, topology: Path) -> int:
    try:
        return int((topology / f"cpu{cpu}" / "topology" / "physical_package_id").read_text())
    except (OSError, ValueError):
        return -1


def choose_cpus(layout: Layout, free: Collection[int], count: int) -> tuple[int, ...] | None:
    """`count` of the free CPUs, sorted, or None when fewer are free.

    The CPUs are on one socket if possible, and are neighbours there, because neighbours share
    caches and memory. The choice is the smallest gap that is large enough, which leaves large gaps
    to wide jobs.
    """
    runs = [run for socket in layout for run in _runs(socket, free)]
    if enough := [run for run in runs if len(run) >= count]:
        return min(enough, key=len)[:count]
    left = [tuple(cpu for cpu in socket if cpu in free) for socket in layout]
    if enough := [socket for socket in left if len(socket) >= count]:
        return min(enough, key=len)[:count]
    # Use as few sockets as possible.
    spread = [cpu for socket in sorted(left, key=len, reverse=True) for cpu in socket]
    return tuple(sorted(spread[:count])) if len(spread) >= count else None


def _runs(socket: Sequence[int], free: Collection[int]) -> list[tuple[int, ...]]:
    groups = groupby(socket, key=lambda cpu: cpu in free)
    return [tuple(run) for is_free, run in groups if is_free]


class CpuLeases:
    """The CPUs of this node that this process holds.

    Create it once in a process: closing any descriptor of the file drops all locks of the process.
    """

    def __init__(self, path: Path) -> None:
        """Open the file of the locks, on this computer. Raises OSError."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self, cpus: Sequence[int]) -> list[int]:
        """Take all of the CPUs or none; return those that other processes hold (empty if taken).

        Never waits. Raises OSError where parts of a file cannot be locked.
        """
        for first, last in cpu_ranges(cpus):
            if self._lock(first, last - first + 1):
                continue
            if held := [cpu for cpu in range(first, last + 1) if not self._lock(cpu, 1)]:
                self.release(set(cpus).difference(held))
                return held
        return []

    def _lock(self, first: int, count: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, count, first)
        except (BlockingIOError, PermissionError):  # POSIX allows EAGAIN and EACCES
            return False
        return True

    def release(self, cpus: Iterable[int]) -> None:
        """Drop the locks of these CPUs; the process may hold none of them."""
        for first, last in cpu_ranges(cpus):
            fcntl.lockf(self._file, fcntl.LOCK_UN, last - first + 1, first)

    def close(self) -> None:
        os.close(self._file)


@dataclass(frozen=True)
class Allotment:
    """The devices of one job.

    `pinned`: the CPUs to which the job is confined (None: those of the worker). `gpus`: the names
    of its GPUs. `environment`: the variables that tell the job about both.
    """

    pinned: frozenset[int] | None = None
    gpus: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


class Devices:
    """The CPUs and GPUs of one worker, and which of them are free."""

    def __init__(self, cores: int, layout: Layout, gpus: Gpus, leases: CpuLeases | None) -> None:
        """Begin with all devices free.

        `cores`: the number that the worker hands out. `layout`: the CPUs on which it may run.
        Without `leases` it pins no job.
        """
        self._layout = layout
        self._cpus = frozenset(cpu for socket in layout for cpu in socket)
        self._gpus = gpus
        # If the worker hands out more cores than CPUs, jobs must share CPUs.
        self._leases = leases if cores <= len(self._cpus) else None
        self._free_cpus = set(self._cpus)
        self._free_gpus = list(gpus.names)

    def allot(self, wanted: Resources) -> Allotment:
        """Give devices to a job; never waits.

        If too few CPUs are free, the job is not pinned. The caller must have checked with
        `Capacity.fits` that enough GPUs are free.
        """
        pinned = None
        if wanted.pinned and not wanted.exclusive and wanted.cores < len(self._cpus):
            pinned = self._take_cpus(wanted.cores)
        count = len(self._gpus.names) if wanted.exclusive else wanted.gpus
        gpus = tuple(self._free_gpus[:count])
        del self._free_gpus[:count]
        return Allotment(pinned, gpus, self._environment(pinned, gpus))

    def _environment(self, pinned: frozenset[int] | None, gpus: tuple[str, ...]) -> dict[str, str]:
        names = ",".join(gpus)
        environment = {"KOCHI_CPUS": format_cpus(pinned or self._cpus), "KOCHI_GPUS": names}
        if self._gpus.names or self._gpus.is_given:
            # A job without GPUs also needs these variables: otherwise it would use its neighbours'
            # GPUs.
            environment.update(dict.fromkeys(self._gpus.variables, names))
        return environment

    def _take_cpus(self, count: int) -> frozenset[int] | None:
        free = set(self._free_cpus)
        while self._leases is not None:
            chosen = choose_cpus(self._layout, free, count)
            if chosen is None:
                return None
            try:
                held = self._leases.take(chosen)
            except OSError as error:
                _log.warning("jobs are not pinned to CPUs: %s", error)
                self._leases = None
                return None
            if not held:
                self._free_cpus.difference_update(chosen)
                return frozenset(chosen)
            free.difference_update(held)
        return None

    def release(self, allotment: Allotment) -> None:
        """Take back a job's devices. Call it when the last process of the job is gone."""
        if allotment.pinned is not None:
            self._free_cpus |= allotment.pinned
            if self._leases is not None:
                self._leases.release(allotment.pinned)
        taken = {*self._free_gpus, *allotment.gpus}
        # Restore the order of the GPUs: a job with two of them should get neighbours if possible.
        self._free_gpus = [name for name in self._gpus.names if name in taken]
