"""What kind of filesystem a directory is on, what is free there, and what its clock says."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import humanfriendly

from snakemake_kochi.doctor.finding import Outcome
from snakemake_kochi.files import write_new
from snakemake_kochi.locks.lock import advice
from snakemake_kochi.paths import TrialPaths

_MOUNTS = Path("/proc/self/mountinfo")
_LEAST_BYTES = 2**30
_LEAST_INODES = 10_000
_LEAST_SHARE = 0.05
# Seconds. Kernels give files the time of their last tick, up to 10 ms ago.
_TICK = 0.02
SKEW_LIMIT = 1.0

_OF_ONE_NODE = frozenset(
    ["btrfs", "ext2", "ext3", "ext4", "overlay", "ramfs", "tmpfs", "xfs", "zfs"]
)
_IN_MEMORY = frozenset(["ramfs", "tmpfs"])
# Options of nfs(5) and mount.lustre(8) with which flock is answered by the node itself.
_LOCAL_LOCKS = frozenset(["nolock", "local_lock=flock", "local_lock=all", "localflock"])


@dataclass(frozen=True)
class Mount:
    point: Path
    kind: str
    source: str
    options: frozenset[str]


def find_mount(path: Path, lines: Iterable[str]) -> Mount | None:
    """Where a real path is mounted, by the lines of mountinfo (proc_pid_mountinfo(5))."""
    found = None
    for line in lines:
        left, _, right = line.partition(" - ")
        fields, about = left.split(" "), right.split(" ")
        if len(fields) < 6 or len(about) < 3:
            continue
        point = Path(_unescaped(fields[4]))
        # Of two at one place the later hides the earlier.
        if path.is_relative_to(point) and (
            found is None or len(point.parts) >= len(found.point.parts)
        ):
            options = frozenset(f"{fields[5]},{about[2].strip()}".split(","))
            found = Mount(point, about[0], _unescaped(about[1]), options)
    return found


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), text)


def examine_filesystem(directory: Path, for_flock: bool = False, of_all: str = "") -> Outcome:
    """`for_flock`: locks of this kind are made there; `of_all`: what to advise for a filesystem of
    one node, where other nodes have to see it, and that is not tested."""
    mount = find_mount(Path(os.path.realpath(directory)), _MOUNTS.read_text().splitlines())
    if mount is None:
        return Outcome("note", "the kernel does not say what is mounted there")
    said = f"{mount.kind} ({mount.source} on {mount.point})"
    local = sorted(mount.options & _LOCAL_LOCKS)
    if for_flock and local:
        said += f", with the option {local[0]}: flock excludes processes of one node only"
        return Outcome("warning", said, advice("flock"))
    if of_all and mount.kind in _OF_ONE_NODE:
        return Outcome("warning", f"{said}: usually of this node alone", of_all)
    if mount.kind in _IN_MEMORY:
        said += ": in the memory of this node, and gone when it is booted"
        return Outcome("warning", said, "Use another directory, unless it is for a test.")
    if mount.kind in _OF_ONE_NODE:
        said += ": usually of this node alone"
    return Outcome("ok", said)


def examine_space(directory: Path) -> Outcome:
    found = os.statvfs(directory)
    free, size = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    said = f"{_size(free)} of {_size(size)} free"
    is_short = free < _LEAST_BYTES or free < _LEAST_SHARE * size
    # Some filesystems have no fixed number of inodes.
    if found.f_files:
        said += f", {found.f_favail:,} of {found.f_files:,} inodes"
        least = max(_LEAST_INODES, _LEAST_SHARE * found.f_files)
        is_short = is_short or found.f_favail < min(least, found.f_files)
    if is_short:
        return Outcome("warning", said, "Make room: what cannot be written cannot be kept.")
    return Outcome("ok", f"{said} (a quota may leave less)")


def _size(number: int) -> str:
    return str(humanfriendly.format_size(number, binary=True))


def examine_clock(trial: TrialPaths) -> Outcome:
    """The time that a new file gets, from who serves the filesystem, against this node's."""
    path = trial.message("clock")
    before = time.time()
    write_new(path, b"{}\n", durable=True)
    after = time.time()
    written = path.stat().st_mtime
    skew = max(0.0, written - after) or min(0.0, written - before + _TICK)
    return judge_skew(skew, 0.0, "the filesystem's clock")


def judge_skew(skew: float, uncertainty: float, whose: str, here: str = "this node") -> Outcome:
    """`skew` is by how many seconds that clock is ahead of this node's, which is called `here`."""
    exact = f" (known to {_milliseconds(uncertainty)})" if uncertainty else ""
    if abs(skew) - uncertainty <= _TICK:
        return Outcome("ok", f"{whose} agrees with {here}'s{exact}")
    said = f"{whose} is {_milliseconds(abs(skew))} {'ahead of' if skew > 0 else 'behind'}"
    said += f" {here}'s{exact}"
    if abs(skew) - uncertainty < SKEW_LIMIT:
        return Outcome("ok", said)
    advice = (
        "Have the clocks set (NTP): Snakemake compares times of files, and would run finished "
        "work again, or not run what changed. The queue does not rely on clocks."
    )
    return Outcome("warning", said, advice)


def _milliseconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 10 else f"{1000 * seconds:.0f} ms"
