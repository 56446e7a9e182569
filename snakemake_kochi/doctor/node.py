"""Facts about this node: versions, processors, memory, GPUs."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
from humanfriendly.text import pluralize

from snakemake_kochi import __version__
from snakemake_kochi.cpu_lists import format_cpus
from snakemake_kochi.doctor.filesystem import format_size
from snakemake_kochi.doctor.report import Finding, Report
from snakemake_kochi.worker.node.capacity import (
    CUDA,
    HIP,
    ROCR,
    find_gpus,
    memory_mb_of_this_node,
    own_memory_group,
)
from snakemake_kochi.worker.node.devices import layout_of

_SMT = Path("/sys/devices/system/cpu/smt/active")
_CPU_GROUPS = Path("/sys/fs/cgroup/cpu")  # version 1; version 2 has one tree for all controllers
_DEVICES, _GPU = Path("/dev"), re.compile(r"nvidia\d+|kfd")
_GIT_PATIENCE = 5.0  # seconds
_GPU_PATIENCE = 30.0  # nvidia-smi alone may take ten seconds


def _examine_versions() -> Finding:
    parts = {"snakemake_kochi": __version__, "Python": platform.python_version()}
    with suppress(PackageNotFoundError):
        parts["Snakemake"] = version("snakemake")
    with suppress(OSError, subprocess.SubprocessError):
        said = subprocess.check_output(["git", "--version"], text=True, timeout=_GIT_PATIENCE)
        parts["git"] = said.strip().removeprefix("git version ")
    parts["Linux"] = platform.release()
    text = ", ".join(f"{name} {number}" for name, number in parts.items())
    if missing := sorted({"Snakemake", "git"} - parts.keys()):
        advice = f"Install {' and '.join(missing)}: projects need it."
        return Finding("warning", f"{text}, no {' and no '.join(missing)}", advice)
    return Finding("ok", text)


def examine_cpus(groups: Iterable[Path] | None = None) -> Finding:
    """Examine the CPUs.

    `groups`: the cgroups that may limit the time of CPUs; by default our own and those around it.
    """
    usable = os.sched_getaffinity(0)
    sockets = pluralize(len(layout_of(usable)), "socket")
    said = (
        f"{len(usable)} of {os.cpu_count()} usable ({format_cpus(usable)}), {_model()}, {sockets}"
    )
    limits = map(_cpus_allowed, _cpu_groups() if groups is None else groups)
    allowed = min((limit for limit in limits if limit is not None), default=None)
    if allowed is not None and allowed < len(usable):
        return Finding(
            "warning",
            f"{said}; a cgroup allows the time of {allowed:g} CPUs",
            f"Start workers with --cores {max(1, int(allowed))}: jobs on more are slowed down.",
        )
    if _read(_SMT) == "1":
        said += "; two or more CPUs are threads of one core (SMT), and slow each other down"
        return Finding("note", said, "For measurements use one thread of each core.")
    return Finding("ok", said)


def _model() -> str:
    found = re.search(r"^(?:model name|Model|cpu)\s*:\s*(.+)", _read(Path("/proc/cpuinfo")), re.M)
    return found[1] if found else platform.machine()


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace").strip()
    return ""


def _cpu_groups() -> list[Path]:
    groups = list(own_memory_group().directories)  # the same ones in version 2
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            own = _CPU_GROUPS / path.lstrip("/")
            groups += [own, *own.parents]
    return groups


def _cpus_allowed(group: Path) -> float | None:
    """The number of CPUs whose time a cgroup allows; None without a limit."""
    words = _read(group / "cpu.max").split()
    words = words or [_read(group / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    with suppress(ValueError, ZeroDivisionError):  # "max" and "" are no numbers
        limit = int(words[0]) / int(words[1])
        return limit if limit > 0 else None  # -1 means no limit
    return None


def _examine_memory() -> Finding:
    node = psutil.virtual_memory().total
    limit = own_memory_group().limit_mb()
    given = memory_mb_of_this_node(os.environ)
    said = f"{format_size(node)} on the node"
    if limit is not None and limit * 2**20 < node:
        said += f", {format_size(limit * 2**20)} in this cgroup"
    return Finding("ok", f"{said}; a worker started here gives out {format_size(given * 2**20)}")


def examine_gpus() -> Finding:
    given = find_gpus(None, os.environ).names
    listed = find_gpus(None, {}).names
    devices = sorted(path.name for path in _DEVICES.iterdir() if _GPU.fullmatch(path.name))
    said = f"a worker started here gives out {', '.join(given) or 'none'}"
    for name in (CUDA, HIP, ROCR):
        if name in os.environ:
            said += f"; {name}={os.environ[name]}"
    if listed:
        return Finding("ok", f"{len(listed)} listed by nvidia-smi; {said}")
    said += f"; devices: {', '.join(devices)}" if devices else ""
    if given:
        return Finding("ok" if devices else "note", said)
    if devices or shutil.which("nvidia-smi"):
        advice = "If there are GPUs, start workers with --gpus N. See also: nvidia-smi -L"
        return Finding("warning", f"nvidia-smi lists none; {said}", advice)
    return Finding("ok", said)


def examine(report: Report) -> None:
    report.check("versions", None, _examine_versions)
    report.check("CPUs", None, examine_cpus)
    report.check("memory", None, _examine_memory)
    report.check("GPUs", None, examine_gpus, _GPU_PATIENCE)
