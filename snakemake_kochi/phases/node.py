"""The node on which a run runs, as far as the kernel shows it: hardware and settings, and what
disturbed the run: other processes, the state of the CPUs, too little memory.

It is read from /proc and /sys without a command; what is not readable (in a container, or on
another architecture) is None. proc_stat(5) counts CPU time in ticks of usually 10 ms, so about the
processes beside a single short run nothing is said; the CPU time beside many is known in sum.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from snakemake_kochi.cpu_lists import cpus_in
from snakemake_kochi.files import read_file
from snakemake_kochi.project.values import ANY, Thresholds
from snakemake_kochi.project.values import QUIET as DEFAULTS

_ROOT = Path("/")
_CPUS = "sys/devices/system/cpu"
_START = 4096  # bytes of cpuinfo, which has a megabyte on a large node, and of stat
_MODEL = re.compile(r"^(?:model name|cpu|cpu model)\s*:(.*)$", re.IGNORECASE | re.MULTILINE)
_MEMORY = re.compile(r"^MemTotal:\s+(\d+)", re.MULTILINE)
_SYSTEM = re.compile(r"^PRETTY_NAME=[\"']*(.*?)[\"']*$", re.MULTILINE)
_STALLED = re.compile(r"^some .*total=(\d+)")
_SHORTEST = 1.0  # seconds
_MOST_PRESSURE = 1.0  # percent of the time in which processes may wait for memory
# Of the line "cpu" of stat: user, nice, system, irq, softirq, steal.
_BUSY_COLUMNS = (1, 2, 3, 6, 7, 8)


def hardware(root: Path = _ROOT) -> dict[str, Any]:
    """The node's hardware.

    "architecture", "cpu_model" (text), "sockets", "cores", "threads" (logical CPUs that are
    online), "memory_mb" (MiB of the node, whatever the limit of the job).
    """
    online = cpus_in(_text(f"{root}/{_CPUS}/online"))
    model = _MODEL.search(_start(f"{root}/proc/cpuinfo"))
    memory = _MEMORY.search(_text(f"{root}/proc/meminfo") or "")
    return {
        "architecture": platform.machine(),
        "cpu_model": (" ".join(model[1].split()) or None) if model else None,
        "sockets": _groups(root, online, "package_cpus_list", "core_siblings_list"),
        "cores": _groups(root, online, "core_cpus_list", "thread_siblings_list"),
        "threads": len(online) or None,
        "memory_mb": int(memory[1]) // 1024 if memory else None,
    }


def system(load: float | None, root: Path = _ROOT) -> dict[str, Any]:
    """The system of the node: "os", "kernel", "governor", "turbo", and the given "load"."""
    cpus = f"{root}/{_CPUS}"
    texts = (_text(f"{root}/{name}") for name in ("etc/os-release", "usr/lib/os-release"))
    named = next(filter(None, (_SYSTEM.search(text or "") for text in texts)), None)
    no_turbo, boost = _text(f"{cpus}/intel_pstate/no_turbo"), _text(f"{cpus}/cpufreq/boost")
    turbo = {"0": True, "1": False}.get(no_turbo or "")
    return {
        "os": (named[1] or None) if named else None,
        "kernel": platform.release(),
        "governor": _text(f"{cpus}/cpu{_own_cpus()[0]}/cpufreq/scaling_governor") or None,
        "turbo": {"0": False, "1": True}.get(boost or "") if turbo is None else turbo,
        "load": load,
    }


def load_now() -> float | None:
    """The load average of one minute."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


def _own_cpus() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def _text(file: str) -> str | None:
    try:
        return read_file(file).decode("utf-8", "replace").strip()
    except OSError:
        return None


def _start(file: str) -> str:
    # Unbuffered: the kernel makes the lines of each CPU when they are read.
    with suppress(OSError), open(file, "rb", buffering=0) as stream:
        return stream.read(_START).decode("utf-8", "replace")
    return ""


def _groups(root: Path, online: list[int], name: str, older_name: str) -> int | None:
    """The number of groups (cores, sockets) of the CPUs that are online."""
    seen: set[int] = set()
    count = 0
    for cpu in online:
        if cpu in seen:
            continue
        topology = f"{root}/{_CPUS}/cpu{cpu}/topology"
        # Kernels before 5.3 have the older name only.
        together = cpus_in(_text(f"{topology}/{name}") or _text(f"{topology}/{older_name}"))
        if cpu not in together:
            return None
        seen.update(together)
        count += 1
    return count or None


class Noise:
    """Watches the node of a run from its creation on.

    `count_jobs`: how many other jobs of Kochi run on this computer now.
    """

    def __init__(
        self, root: Path = _ROOT, count_jobs: Callable[[], int | None] = lambda: None
    ) -> None:
        self._root, self._count_jobs = root, count_jobs
        self._jobs, self._before = count_jobs(), _read(root)

    def found(
        self, own_seconds: float | None, system: Mapping[str, Any], thresholds: Thresholds
    ) -> dict[str, Any]:
        """For the record: what was seen since, and what is beyond the thresholds.

        `own_seconds`: the CPU time of the run, None if not known. `system`: see `node.system`.
        """
        after = _read(self._root)
        since = {
            key: after[key] - before if before is not None and after[key] is not None else None
            for key, before in self._before.items()
        }
        seconds = since["moment"] or 0.0
        busy = None if own_seconds is None else since["busy"]
        # Below 0 by up to a tick: in a sum of many these errors vanish.
        beside = None if busy is None else round(busy - (own_seconds or 0.0), 3)
        is_long, stalled = seconds >= _SHORTEST, since["stalled"]
        jobs, limits = self._count_jobs(), {**DEFAULTS, **thresholds}
        seen = {
            "other_cpus": (
                round(max(0.0, beside) / seconds, 2) if is_long and beside is not None else None
            ),
            "other_cpu_seconds": beside,
            "memory_pressure": (
                round(100 * stalled / seconds, 1) if is_long and stalled is not None else None
            ),
            "throttled": since["throttled"],
            "other_jobs": None if jobs is None or self._jobs is None else max(jobs, self._jobs),
            "load_limit": None if limits["load"] == ANY else limits["load"],
        }
        return {"warnings": list(_warnings({**seen, **system}, limits)), **seen}


def _read(root: Path) -> dict[str, Any]:
    """A moment on a node. Since its boot: "busy", CPU seconds of all processes; "throttled", times;
    "stalled", seconds in which a process waited for memory."""
    busy = throttled = None
    with suppress(ValueError, IndexError):
        words = _start(f"{root}/proc/stat").partition("\n")[0].split()
        busy = sum(int(words[column]) for column in _BUSY_COLUMNS) / os.sysconf("SC_CLK_TCK")
    stalled = _STALLED.search(_text(f"{root}/proc/pressure/memory") or "")
    with suppress(TypeError, ValueError):  # the kernel tells it of all CPUs or of none
        for cpu in _own_cpus():
            for name in ("core_throttle_count", "package_throttle_count"):
                text = _text(f"{root}/{_CPUS}/cpu{cpu}/thermal_throttle/{name}")
                throttled = (throttled or 0) + int(text)  # type: ignore[arg-type]
    return {
        "moment": time.monotonic(),
        "busy": busy,
        "throttled": throttled,
        "stalled": int(stalled[1]) / 1e6 if stalled else None,
    }


def _warnings(seen: Mapping[str, Any], limits: Thresholds) -> Iterator[str]:
    """Each begins with what it is about: the key of its threshold, if there is one."""
    load, governor = limits["load"], limits["governor"]
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
