"""What this node is: processors, memory, GPUs, versions."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import humanfriendly

from snakemake_kochi.doctor.finding import Outcome
from snakemake_kochi.doctor.reporter import Reporter
from snakemake_kochi.version import __version__
from snakemake_kochi.worker.node.capacity import CUDA, HIP, ROCR, find_gpus
from snakemake_kochi.worker.node.devices import format_cpus, layout_of
from snakemake_kochi.worker.node.memory import memory_mb_of_this_node, own_memory_group

_SYSTEM = Path("/sys/devices/system")
_CPU_GROUPS = Path("/sys/fs/cgroup/cpu")  # version 1; of version 2 there is one tree for all
_DEVICES = Path("/dev")
_GIT_PATIENCE = 5.0  # seconds
# nvidia-smi alone may take ten seconds.
_GPU_PATIENCE = 30.0


def examine_node(reporter: Reporter) -> None:
    reporter.run("versions", None, _examine_versions)
    reporter.run("CPUs", None, examine_cpus)
    reporter.run("memory", None, _examine_memory)
    reporter.run("GPUs", None, examine_gpus, patience=_GPU_PATIENCE)


def _examine_versions() -> Outcome:
    parts = {"snakemake_kochi": __version__, "Python": platform.python_version()}
    with contextlib.suppress(PackageNotFoundError):
        parts["Snakemake"] = version("snakemake")
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        git = ["git", "--version"]
        said = subprocess.run(git, capture_output=True, text=True, timeout=_GIT_PATIENCE)
        parts["git"] = said.stdout.strip().removeprefix("git version ")
    parts["Linux"] = platform.release()
    text = ", ".join(f"{name} {number}" for name, number in parts.items())
    if missing := sorted({"Snakemake", "git"} - parts.keys()):
        advice = f"Install {' and '.join(missing)}: projects need it."
        return Outcome("warning", f"{text}, no {' and no '.join(missing)}", advice)
    return Outcome("ok", text)


def examine_cpus() -> Outcome:
    usable = os.sched_getaffinity(0)
    sockets, numa = len(layout_of(usable)), len(_numbered(_SYSTEM / "node", "node"))
    said = f"{len(usable)} of {os.cpu_count()} usable ({format_cpus(usable)}), {_cpu_model()}"
    said += f", {sockets} socket{'s' * (sockets > 1)}"
    said += f", {numa} NUMA node{'s' * (numa > 1)}" if numa else ""
    quota = min(_quotas(_cpu_groups()), default=None)
    if quota is not None and quota < len(usable):
        return Outcome(
            "warning",
            f"{said}; a cgroup allows the time of {quota:g} CPUs",
            f"Start workers with --cores {max(1, int(quota))}: jobs on more would be slowed down.",
        )
    if _read(_SYSTEM / "cpu" / "smt" / "active") == "1":
        said += "; two or more CPUs are threads of one core (SMT), and slow each other down"
        return Outcome("note", said, "For measurements use one thread of each core.")
    return Outcome("ok", said)


def _cpu_model() -> str:
    for line in (_read(Path("/proc/cpuinfo"))).splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "cpu"):
            return value.strip()
    return platform.machine()


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _numbered(directory: Path, prefix: str) -> list[Path]:
    found = directory.glob(f"{prefix}*")
    return [path for path in found if path.name.removeprefix(prefix).isdecimal()]


def _cpu_groups() -> list[Path]:
    """The cgroups that may limit the time of CPUs: our own and those around it."""
    groups = list(own_memory_group().directories)  # the same ones where they are of version 2
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            own = _CPU_GROUPS / path.lstrip("/")
            groups += [own, *(parent for parent in own.parents if _CPU_GROUPS in parent.parents)]
            groups.append(_CPU_GROUPS)
    return groups


def _quotas(groups: Iterable[Path]) -> list[float]:
    """How many CPUs' time each of the groups allows, as far as it limits it."""
    quotas = []
    for group in groups:
        words = _read(group / "cpu.max").split()
        if not words:
            words = [_read(group / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        with contextlib.suppress(ValueError, ZeroDivisionError):  # "max" and "" are no numbers
            quotas.append(int(words[0]) / int(words[1]))
    return [quota for quota in quotas if quota > 0]  # -1: no limit


def _examine_memory() -> Outcome:
    node = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = own_memory_group().limit_mb()
    given = memory_mb_of_this_node(os.environ)
    said = f"{_size(node)} on the node"
    if limit is not None and limit * 2**20 < node:
        said += f", {_size(limit * 2**20)} in this cgroup"
    return Outcome("ok", f"{said}; a worker started here gives out {_size(given * 2**20)}")


def _size(number: int) -> str:
    return str(humanfriendly.format_size(number, binary=True))


def examine_gpus() -> Outcome:
    given = find_gpus(None, os.environ).names
    listed = find_gpus(None, {}).names
    files = [path.name for path in sorted(_numbered(_DEVICES, "nvidia"))]
    files += ["kfd"] if (_DEVICES / "kfd").exists() else []
    said = f"a worker started here gives out {', '.join(given) or 'none'}"
    for name in (CUDA, HIP, ROCR):
        if name in os.environ:
            said += f"; {name}={os.environ[name]}"
    if listed:
        return Outcome("ok", f"{len(listed)} listed by nvidia-smi; {said}")
    said += f"; devices: {', '.join(files)}" if files else ""
    if given:
        return Outcome("ok" if files else "note", said)
    if files or shutil.which("nvidia-smi"):
        advice = "If there are GPUs, say so: kochi work --gpus N. See also: nvidia-smi -L"
        return Outcome("warning", f"nvidia-smi lists none; {said}", advice)
    return Outcome("ok", said)
