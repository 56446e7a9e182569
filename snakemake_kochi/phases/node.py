"""The node on which a run runs, as far as the kernel shows it: hardware and settings, and what
disturbed the run: other processes, the state of the CPUs, too little memory.

It is read from /proc and /sys without a command; what is not readable (in a container, or on
another architecture) is None. proc_stat(5) counts CPU time in ticks of usually 10 ms, so about the
processes beside a single short run nothing is said; the CPU time beside many is known in sum.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snakemake_kochi.cpu_lists import cpus_in
from snakemake_kochi.files import read_file
from snakemake_kochi.project.quiet import ANY, DEFAULTS, Thresholds

_ROOT = Path("/")
_CPUS = Path("sys/devices/system/cpu")
_FIRST_CPU = 4096  # bytes of cpuinfo, which has a megabyte on a large node


def hardware(root: Path = _ROOT) -> dict[str, Any]:
    """The node's hardware.

    "architecture", "cpu_model" (text), "sockets", "cores", "threads" (logical CPUs that are
    online), "memory_mb" (MiB of the node, whatever the limit of the job).
    """
    online = cpus_in(_text(root / _CPUS / "online"))
    return {
        "architecture": platform.machine(),
        "cpu_model": _cpu_model(root),
        "sockets": _groups(root, online, "package_cpus_list", "core_siblings_list"),
        "cores": _groups(root, online, "core_cpus_list", "thread_siblings_list"),
        "threads": len(online) or None,
        "memory_mb": _memory_mb(root),
    }


def system(load: float | None, root: Path = Path("/")) -> dict[str, Any]:
    """The system of the node: "os", "kernel", "governor", "turbo", and the given "load"."""
    return {
        "os": _os(root),
        "kernel": platform.release(),
        "governor": _governor(root),
        "turbo": _turbo(root),
        "load": load,
    }


def load_now() -> float | None:
    """The load average of one minute."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


def _text(file: Path | str) -> str | None:
    try:
        return read_file(file).decode("utf-8", "replace").strip()
    except OSError:
        return None


def _cpu_model(root: Path) -> str | None:
    # Unbuffered: the kernel makes the lines of each CPU when they are read.
    with suppress(OSError), (root / "proc/cpuinfo").open("rb", buffering=0) as stream:
        for line in stream.read(_FIRST_CPU).decode("utf-8", "replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip().lower() in ("model name", "cpu", "cpu model"):
                return " ".join(value.split()) or None
    return None


def _groups(root: Path, online: list[int], name: str, older_name: str) -> int | None:
    """The number of groups (cores, sockets) of the CPUs that are online."""
    seen: set[int] = set()
    count = 0
    for cpu in online:
        if cpu in seen:
            continue
        place = root / _CPUS / f"cpu{cpu}" / "topology"
        # Kernels before 5.3 have the older name only.
        together = cpus_in(_text(place / name) or _text(place / older_name))
        if cpu not in together:
            return None
        seen.update(together)
        count += 1
    return count or None


def _memory_mb(root: Path) -> int | None:
    for line in (_text(root / "proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            with suppress(ValueError, IndexError):
                return int(line.split()[1]) // 1024
    return None


def _os(root: Path) -> str | None:
    for name in ("etc/os-release", "usr/lib/os-release"):
        for line in (_text(f"{root}/{name}") or "").splitlines():
            if line.startswith("PRETTY_NAME="):
                return line.partition("=")[2].strip("\"'") or None
    return None


def _governor(root: Path) -> str | None:
    try:
        cpu = min(os.sched_getaffinity(0))
    except OSError:
        return None
    return _text(f"{root}/{_CPUS}/cpu{cpu}/cpufreq/scaling_governor") or None


def _turbo(root: Path) -> bool | None:
    if (no_turbo := _text(f"{root}/{_CPUS}/intel_pstate/no_turbo")) in ("0", "1"):
        return no_turbo == "0"
    boost = _text(f"{root}/{_CPUS}/cpufreq/boost")
    return boost == "1" if boost in ("0", "1") else None


_SHORTEST = 1.0  # seconds
_MOST_PRESSURE = 1.0  # percent of the time in which processes may wait for memory
_FIRST_LINE = 4096  # bytes of /proc/stat that have its line "cpu"
# Of that line: user, nice, system, irq, softirq, steal.
_BUSY_COLUMNS = (1, 2, 3, 6, 7, 8)


@dataclass(frozen=True)
class Reading:
    """A moment on a node. `busy`: CPU seconds of all processes since the boot. `throttled`: times
    since the boot. `stalled`: seconds since the boot in which a process waited for memory."""

    moment: float
    busy: float | None
    throttled: int | None
    stalled: float | None


class Noise:
    """Watches the node of a run from its creation on.

    `count_jobs`: how many other jobs of Kochi run on this computer now.
    """

    def __init__(
        self, root: Path = Path("/"), count_jobs: Callable[[], int | None] = lambda: None
    ) -> None:
        self._root = root
        self._count_jobs = count_jobs
        self._jobs = count_jobs()
        self._before = _read(root)

    def found(
        self, own_seconds: float | None, system: Mapping[str, Any], thresholds: Thresholds
    ) -> dict[str, Any]:
        """For the record: what was seen since, and what is beyond the thresholds.

        `own_seconds`: the CPU time of the run, None if not known. `system`: see `node.system`.
        """
        seen = _between(self._before, _read(self._root), own_seconds)
        jobs = self._count_jobs()
        known = None if jobs is None or self._jobs is None else max(jobs, self._jobs)
        seen["other_jobs"] = known
        limit = {**DEFAULTS, **thresholds}["load"]
        seen["load_limit"] = None if limit == ANY else limit
        return {"warnings": list(_warnings({**seen, **system}, thresholds)), **seen}


def _read(root: Path) -> Reading:
    return Reading(time.monotonic(), _busy(root), _throttled(root), _stalled(root))


def _between(before: Reading, after: Reading, own: float | None) -> dict[str, Any]:
    seconds = after.moment - before.moment
    used_beside = load = pressure = None
    if own is not None and before.busy is not None and after.busy is not None:
        # Below 0 by up to a tick: in a sum of many these errors vanish.
        used_beside = round(after.busy - before.busy - own, 3)
    if seconds >= _SHORTEST:
        if used_beside is not None:
            load = round(max(0.0, used_beside) / seconds, 2)
        if before.stalled is not None and after.stalled is not None:
            pressure = round(100 * (after.stalled - before.stalled) / seconds, 1)
    throttled = None
    if before.throttled is not None and after.throttled is not None:
        throttled = after.throttled - before.throttled
    return {
        "other_cpus": load,
        "other_cpu_seconds": used_beside,
        "memory_pressure": pressure,
        "throttled": throttled,
    }


def _warnings(seen: Mapping[str, Any], given: Thresholds) -> Iterator[str]:
    """Each begins with what it is about: the key of its threshold, if there is one."""
    load, governor = (({**DEFAULTS, **given})[key] for key in ("load", "governor"))
    used, pressure, throttled = (seen[n] for n in ("other_cpus", "memory_pressure", "throttled"))
    if isinstance(load, int | float) and used is not None and used > load:
        jobs = seen["other_jobs"]
        beside = f", among them {jobs} other {'job' if jobs == 1 else 'jobs'} of Kochi"
        yield f"load: other processes used {used} CPUs{beside if jobs else ''}"
    if pressure is not None and pressure > _MOST_PRESSURE:
        yield f"memory_pressure: processes waited for memory for {pressure} % of the time"
    if throttled:
        yield f"throttled: CPUs were throttled {throttled} times during the run"
    if seen["governor"] is not None and governor not in (ANY, seen["governor"]):
        yield f"governor: {seen['governor']}"


def _busy(root: Path) -> float | None:
    with (
        suppress(OSError, ValueError, IndexError),
        open(f"{root}/proc/stat", "rb", buffering=0) as stream,
    ):
        words = stream.read(_FIRST_LINE).partition(b"\n")[0].split()
        return sum(int(words[column]) for column in _BUSY_COLUMNS) / os.sysconf("SC_CLK_TCK")
    return None


def _throttled(root: Path) -> int | None:
    """How often the cores of this process's CPUs, and the chips, were throttled."""
    total = None
    for cpu in os.sched_getaffinity(0):
        place = f"{root}/{_CPUS}/cpu{cpu}/thermal_throttle"
        for name in ("core_throttle_count", "package_throttle_count"):
            try:
                total = (total or 0) + int(read_file(f"{place}/{name}"))
            except (OSError, ValueError):
                return total  # the kernel tells it of all CPUs or of none
    return total


def _stalled(root: Path) -> float | None:
    with suppress(OSError, ValueError):
        # some avg10=0.00 avg60=0.00 avg300=0.00 total=MICROSECONDS
        first = read_file(f"{root}/proc/pressure/memory").partition(b"\n")[0]
        return int(first.rpartition(b"total=")[2]) / 1e6
    return None
