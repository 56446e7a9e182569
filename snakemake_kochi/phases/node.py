"""The node on which a run runs, as far as the kernel shows it: hardware and settings.

Each run reads it anew, the hardware once in a second, so it is read from /proc and /sys without a
command; what is not readable (in a container, or on another architecture) is None.
"""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import Any

from snakemake_kochi.cpu_lists import cpus_in
from snakemake_kochi.files import read_file

_ROOT = Path("/")
_CPUS = Path("sys/devices/system/cpu")
_FIRST_CPU = 4096  # bytes of cpuinfo, which has a megabyte on a large node


# What `remember_hardware` has read.
_known: dict[str, Any] = {}


def remember_hardware() -> None:
    """Read the hardware for the processes that are forked from this one within a short time."""
    _known.clear()
    _known.update(hardware())


def hardware(root: Path = _ROOT) -> dict[str, Any]:
    """The node's hardware.

    "architecture", "cpu_model" (text), "sockets", "cores", "threads" (logical CPUs that are
    online), "memory_mb" (MiB of the node, whatever the limit of the job).
    """
    if _known and root is _ROOT:
        return dict(_known)
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
