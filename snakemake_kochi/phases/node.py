"""What a record says of the node of its run: hardware and settings, what disturbed the run, facts,
and environment variables.

Hardware and disturbances are read from /proc and /sys; what is not readable (in a container, or on
another architecture) is None. proc_stat(5) counts CPU time in ticks of usually 10 ms, so about the
processes beside a single short run nothing is said; the CPU time beside many is known in sum.

Facts are the output of commands, executed where the run ran, after its script: once for each build
on each node, and again after an hour:
<machine>/facts/<host>/<digest>.json   {"version", "time" (seconds since 1970), "facts"}

Of the environment, variables of a list of names are recorded, as the script sees them. It has what
its user does not want to show to others, so nothing else of it leaves the private directory.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snakemake_kochi.confidential import is_secret_variable, without_secrets
from snakemake_kochi.cpu_lists import cpus_in
from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import (
    make_directory,
    read_file,
    read_json,
    to_json,
    write_atomically,
    write_file,
)
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.phases.products import digest_of
from snakemake_kochi.phases.script import Environment, watched
from snakemake_kochi.processes import this_node
from snakemake_kochi.project.values import ANY, Thresholds
from snakemake_kochi.project.values import QUIET as DEFAULTS
from snakemake_kochi.schedulers.environment import RECORDED_VARIABLES

if TYPE_CHECKING:
    from snakemake_kochi.phases.isolation import Container

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
VERSION = 1
TIME_LIMIT = 30.0  # seconds for all commands together
# Seconds. A compiler or a module on a shared filesystem may be replaced at any time.
_FRESH = 3600.0
_MOST_OUTPUT = 4096  # bytes
# In subshells, each with the functions that load_env_script has defined, such as `module`. The
# environment may have changed the directory.
_COMMAND = """\
( ( cd -- {directory} || exit; ulimit -f 1024 2> /dev/null; . {place}/{number}.sh
  ) >| {place}/{number}.out 2>&1 < /dev/null; builtin echo $? >| {place}/{number}.status ) &
_kochi+=($!)
"""
# Names, and beginnings of names, of variables that change the results of benchmarks.
_OWN = (
    *("OMP_*", "KMP_*", "GOMP_*", "LIBOMP*"),
    *("MKL_*", "OPENBLAS_*", "BLIS_*", "GOTO_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_*"),
    *("CUDA_*", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    *("GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR", "NCCL_*"),
    *("OMPI_MCA_*", "PRTE_MCA_*", "I_MPI_*", "MPICH_*", "MV2_*", "UCX_*", "FI_*", "PSM2_*"),
    *("MALLOC_*", "GLIBC_TUNABLES", "TCMALLOC_*", "LD_PRELOAD", "JULIA_NUM_THREADS"),
)
# A * ends the beginning of a name.
VARIABLES = (*_OWN, *RECORDED_VARIABLES)
_MOST = 200
_LONGEST = 1000  # characters of a value
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


# ---- what it is, and what disturbs a run


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
    """Watches the node of a run from its creation on. `count_jobs`: how many other jobs of Kochi
    run on this computer now."""

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
        since, before = _read(self._root), self._before
        for key, after in since.items():
            since[key] = None if after is None or before[key] is None else after - before[key]
        seconds, stalled = since["moment"], since["stalled"]
        is_known = own_seconds is not None and since["busy"] is not None
        # Below 0 by up to a tick: in a sum of many these errors vanish.
        beside = round(since["busy"] - own_seconds, 3) if is_known else None
        is_long, jobs, limits = seconds >= _SHORTEST, self._count_jobs(), {**DEFAULTS, **thresholds}
        cpus = round(max(0.0, beside) / seconds, 2) if is_long and beside is not None else None
        waited = round(100 * stalled / seconds, 1) if is_long and stalled is not None else None
        seen = {
            "other_cpus": cpus,
            "other_cpu_seconds": beside,
            "memory_pressure": waited,
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


# ---- facts


@dataclass(frozen=True)
class Facts:
    """`commands` for bash by name, in an `environment`; `build` is the digest of the build,
    `container` what an isolated run is in."""

    commands: Mapping[str, str]
    environment: Environment
    build: str
    container: Container | None = None

    def known(self, machine: MachinePaths) -> dict[str, Any]:
        """The facts as they were found on this node, in this build, not long ago; else none."""
        with suppress(OSError, DamagedFileError, KeyError, TypeError):
            found = read_json(self._file(machine), VERSION)
            if 0 <= time.time() - found["time"] < _FRESH:
                return dict(found["facts"])
        return {}

    def find(
        self, machine: MachinePaths, directory: Path, scratch: Path, limit: float = TIME_LIMIT
    ) -> dict[str, Any]:
        """Execute the commands, unless their output is known; return the facts of a record.

        They see the `directory` as theirs, may write to it, and start with the environment of the
        run script without its parameters. `scratch` is private. Nothing in a command ends the run:
        one that is not ready after `limit` seconds is ended, and has no exit status.
        """
        if not self.commands or (self.container and not self.container.has_begun):
            return {}
        if known := self.known(machine):
            return known
        at, place = datetime.now(UTC).isoformat(timespec="seconds"), scratch / "facts"
        of_all: int | None = None
        with suppress(OSError):  # a full disk, for example
            of_all = self._execute(directory, make_directory(place), limit)
        found: dict[str, Any] = {}
        for number, (name, command) in enumerate(self.commands.items()):
            file, status = place / f"{number}.sh", of_all
            with suppress(OSError, ValueError):
                status = int(file.with_suffix(".status").read_text())
            # Without its own: the environment could not be loaded.
            printed = file.with_suffix(".out")
            text = _shown(printed if printed.exists() else place / "all.out")
            # Bash begins its own messages with the file, whose name is another one each time.
            output = text.replace(str(file), name)
            found[name] = {"command": command, "output": output, "exit_status": status, "at": at}
        if missing := [name for name, each in found.items() if each["exit_status"] is None]:
            print(
                f"kochi: not found within {limit:g} seconds, and not tried again here for an hour: "
                f"{', '.join(missing)} (below the key 'facts')",
                file=sys.stderr,
            )
        with suppress(OSError):
            file = self._file(machine)
            make_directory(file.parent)
            content = {"version": VERSION, "time": time.time(), "facts": found}
            write_atomically(file, to_json(content))
        return found

    def _file(self, machine: MachinePaths) -> Path:
        installs = [install.identity for install in self.environment.installs]
        loaded = self.environment.load_environment
        isolated = [asdict(self.container.isolation)] if self.container else []
        digest = digest_of([dict(self.commands), loaded, installs, self.build, *isolated])
        return machine.facts(this_node().host, digest)

    def _execute(self, directory: Path, place: Path, limit: float) -> int | None:
        """Execute all commands at once, in one process and one container; their files are in the
        private `place`. Returns the exit status of the process, if it ended by itself."""
        environment, wrapper = self.environment, tuple[str, ...]()
        if self.container:
            environment, wrapper = self.container.around(environment)
        words = {"directory": shlex.quote(str(directory)), "place": shlex.quote(str(place))}
        lines = [environment.preamble(), "set +e +m +o pipefail\n_kochi=()\n"]
        texts = {f"{number}.sh": each + "\n" for number, each in enumerate(self.commands.values())}
        lines += [_COMMAND.format(number=number, **words) for number in range(len(texts))]
        # Not as an argument: every user of a node can read those, and they have a greatest length.
        texts["all.sh"] = "".join(lines) + 'wait "${_kochi[@]}"\n'
        for name, text in texts.items():
            write_file(place / name, text.encode("utf-8", "surrogateescape"))
        with (place / "all.out").open("wb") as output:
            process = subprocess.Popen(
                [*wrapper, "bash", "--norc", str(place / "all.sh")],
                cwd=directory,
                env=environment.of_process(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        try:
            has_ended = watched(process.pid).wait(limit)
        finally:
            # Before it is waited for: until then its number is that of no other process.
            os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
            if self.container:
                self.container.end()
        return (status if status >= 0 else 128 - status) if has_ended else None


def _shown(file: Path) -> str:
    text = ""
    with suppress(OSError), file.open("rb") as stream:
        text = stream.read(_MOST_OUTPUT).decode("utf-8", "replace").rstrip()
    return "\n".join(without_secrets(text.splitlines()))


# ---- variables


def noting(file: Path) -> str:
    """A line for bash that writes the exported variables to a file, for `noted`. Nothing in it ends
    the script."""
    return f"{{ command -p env -0; }} 2> /dev/null >| {shlex.quote(str(file))} || :\n"


def noted(more: Iterable[str], file: Path, given: Mapping[str, str]) -> dict[str, str]:
    """The variables of the list that `noting` wrote, by name; without a file those of the `given`.

    Names and values that look like secrets are left out, and the rest of a long value.
    """
    found = given
    with suppress(OSError):
        lines = os.fsdecode(file.read_bytes()).split("\0")
        found = dict(line.partition("=")[::2] for line in lines if line)
    patterns = (*VARIABLES, *more)
    whole = {pattern for pattern in patterns if not pattern.endswith("*")}
    beginnings = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    wanted = {
        name: value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        for name, value in sorted(found.items())
        # Bash has others in its environment, and not as variables.
        if _NAME.fullmatch(name)
        and (name in whole or name.startswith(beginnings))
        and not is_secret_variable(name, value)
    }
    return {name: value[:_LONGEST] for name, value in list(wanted.items())[:_MOST]}
