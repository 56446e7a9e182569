"""What disturbed a run on its node: other processes, the state of the CPUs, too little memory.

The kernel tells it in /proc and /sys; what is not readable there is None. proc_stat(5) counts CPU
time in ticks of usually 10 ms, so about the processes beside a single short run nothing is said;
the CPU time beside many of them is known in sum.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from snakemake_kochi.files import read_file
from snakemake_kochi.processes import stat_fields
from snakemake_kochi.project.quiet import ANY, DEFAULTS, Thresholds

_SHORTEST = 1.0  # seconds
# useradd(8) gives numbers below to accounts of the system.
_FIRST_USER = 1000
_BUSY = 0.01  # CPUs that a process uses to count
_CPUS = Path("sys/devices/system/cpu")
_FIRST_LINE = 4096  # bytes of /proc/stat that have its line "cpu"
# Of that line: user, nice, system, irq, softirq, steal.
_BUSY_COLUMNS = (1, 2, 3, 6, 7, 8)


@dataclass(frozen=True)
class Reading:
    """A moment on a node. `busy` and those of `others` are CPU seconds since the boot: of all
    processes, and of each process of another user. `throttled`: times since the boot. `stalled`:
    seconds since the boot in which a process waited for memory."""

    moment: float
    busy: float | None
    others: Mapping[tuple[int, str], float] | None
    throttled: int | None
    stalled: float | None


class Noise:
    """Watches the node of a run from its creation on; its processes from the first `look` on.

    `count_jobs`: how many other jobs of Kochi run on this computer now.
    """

    def __init__(
        self, root: Path = Path("/"), count_jobs: Callable[[], int | None] = lambda: None
    ) -> None:
        self._root = root
        self._count_jobs = count_jobs
        self._jobs = count_jobs()
        self._before = Reading(
            time.monotonic(), _busy(root), None, _throttled(root), _stalled(root)
        )
        self._has_looked = False

    def look(self) -> None:
        """To be called when the run has lasted for a moment, and as often as one likes after it.

        To look at all processes takes longer than the rest of a short run, of which nothing is said
        about them.
        """
        if not self._has_looked:
            self._has_looked = True
            self._before = replace(self._before, others=_others(self._root))

    def found(
        self, own_seconds: float | None, system: Mapping[str, Any], thresholds: Thresholds
    ) -> dict[str, Any]:
        """For the record: what was seen since, and what is beyond the thresholds.

        `own_seconds`: the CPU time of the run, None if not known. `system`: see `node.system`.
        """
        seen = _between(self._before, _read_after(self._before, self._root), own_seconds)
        jobs = self._count_jobs()
        known = None if jobs is None or self._jobs is None else max(jobs, self._jobs)
        seen["other_jobs"] = known
        limit = {**DEFAULTS, **thresholds}["load"]
        seen["load_limit"] = None if limit == ANY else limit
        return {"warnings": list(_warnings({**seen, **system}, thresholds)), **seen}


def _read_after(before: Reading, root: Path) -> Reading:
    moment = time.monotonic()
    if moment - before.moment < _SHORTEST:
        return Reading(moment, _busy(root), None, _throttled(root), None)
    return Reading(moment, _busy(root), _others(root), _throttled(root), _stalled(root))


def _between(before: Reading, after: Reading, own: float | None) -> dict[str, Any]:
    seconds = after.moment - before.moment
    used_beside = load = pressure = users = None
    if own is not None and before.busy is not None and after.busy is not None:
        # Below 0 by up to a tick: in a sum of many these errors vanish.
        used_beside = round(after.busy - before.busy - own, 3)
    if seconds >= _SHORTEST:
        if used_beside is not None:
            load = round(max(0.0, used_beside) / seconds, 2)
        if before.others is not None and after.others is not None:
            earlier = before.others
            used = [total - earlier.get(key, 0.0) for key, total in after.others.items()]
            users = sum(each / seconds >= _BUSY for each in used)
        if before.stalled is not None and after.stalled is not None:
            pressure = round(100 * (after.stalled - before.stalled) / seconds, 1)
    throttled = None
    if before.throttled is not None and after.throttled is not None:
        throttled = after.throttled - before.throttled
    return {
        "other_cpus": load,
        "other_cpu_seconds": used_beside,
        "other_users": users,
        "memory_pressure": pressure,
        "throttled": throttled,
        "throttled_since_boot": after.throttled,
    }


def _warnings(seen: Mapping[str, Any], given: Thresholds) -> Iterator[str]:
    """Each begins with the key of its threshold."""
    thresholds = {**DEFAULTS, **given}
    said = {
        "load": ("other_cpus", "other processes used {} CPUs"),
        "users": ("other_users", "{} busy processes of other users"),
        "memory_pressure": ("memory_pressure", "processes waited for memory for {} % of the time"),
        "throttled": ("throttled", "CPUs were throttled {} times during the run"),
        "throttled_since_boot": ("throttled_since_boot", "CPUs were throttled {} times"),
    }
    for key, (name, text) in said.items():
        limit, value = thresholds[key], seen[name]
        if isinstance(limit, int | float) and value is not None and value > limit:
            jobs = seen.get("other_jobs") if key == "load" else None
            beside = f", among them {jobs} other {'job' if jobs == 1 else 'jobs'} of Kochi"
            yield f"{key}: {text.format(value)}{beside if jobs else ''}"
    governor, turbo = seen["governor"], seen["turbo"]
    if governor is not None and thresholds["governor"] not in (ANY, governor):
        yield f"governor: {governor}"
    if turbo is not None and thresholds["turbo"] not in (ANY, "on" if turbo else "off"):
        yield f"turbo: {'on' if turbo else 'off'}"


def _busy(root: Path) -> float | None:
    with (
        suppress(OSError, ValueError, IndexError),
        open(f"{root}/proc/stat", "rb", buffering=0) as stream,
    ):
        words = stream.read(_FIRST_LINE).partition(b"\n")[0].split()
        return sum(int(words[column]) for column in _BUSY_COLUMNS) / os.sysconf("SC_CLK_TCK")
    return None


def _others(root: Path) -> dict[tuple[int, str], float] | None:
    """The CPU time of each process of another user, by its number and start."""
    found: dict[tuple[int, str], float] = {}
    own = os.getuid()
    try:
        # Where processes of others are hidden (hidepid), the first one is, too.
        (root / "proc/1").stat()
        with os.scandir(root / "proc") as entries:
            for entry in entries:
                if not entry.name.isdecimal():
                    continue
                # A process may end meanwhile.
                with suppress(OSError, ValueError, IndexError):
                    user = entry.stat().st_uid
                    if user != own and user >= _FIRST_USER:
                        start, seconds = _times(entry.path)
                        found[int(entry.name), start] = seconds
    except OSError:
        return None
    return found


def _times(process: str) -> tuple[str, float]:
    """The start of a process in ticks, and the seconds of CPU time that it has used."""
    fields = stat_fields(process)
    return fields[19].decode(), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
