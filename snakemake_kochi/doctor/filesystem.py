"""Checks of what a filesystem does: space, clock, rename, FIFOs, speed, a machine's locks.

The queue relies on some of it, and can do without the rest.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import humanfriendly
import psutil

from snakemake_kochi.base.wake import Wake, wake
from snakemake_kochi.doctor.contender import contender
from snakemake_kochi.doctor.report import Finding
from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import make_directory, read_json, to_json, write_atomically, write_new
from snakemake_kochi.locks.lock import Kind, advice, hold
from snakemake_kochi.locks.settings import (
    LockSettings,
    disagreement,
    find_lock_settings,
    read_lock_settings,
)
from snakemake_kochi.paths import TrialPaths

_LEAST_BYTES = 2**30
_LEAST_INODES = 10_000
_LEAST_SHARE = 0.05
# Seconds. Kernels give files the time of their last tick, up to 10 ms ago.
_TICK = 0.02
_SKEW_LIMIT = 1.0

_OF_ONE_NODE = frozenset(
    ["btrfs", "ext2", "ext3", "ext4", "overlay", "ramfs", "tmpfs", "xfs", "zfs"]
)
_IN_MEMORY = frozenset(["ramfs", "tmpfs"])
# Options of nfs(5) and mount.lustre(8) with which flock is answered by the node itself.
_LOCAL_LOCKS = frozenset(["nolock", "local_lock=flock", "local_lock=all", "localflock"])
_ELSEWHERE = "Queues cannot be kept on this filesystem: name another kochi_root."

_VERSION = 1
_PADDING = "x" * 20_000  # more than a page, so that half a file can be seen
_WRITING = 0.3  # seconds
_READING = 60.0  # seconds at most
RENAME_PATIENCE = 90.0  # seconds
_TAKES = 20  # of a lock
_TICKETS = 200

# The metadata calls of a worker for a one-line job, below KOCHI_ROOT; tests/worker/test_calls.py
# counts them.
CALLS_PER_TICKET = 6.5
NO_FIFOS = "no FIFOs here: runs and workers look now and then, within five seconds"
# Metadata calls of `_make_calls`, how often it is called at most, and for how many seconds.
_CALLS = 7
_MOST_ROUNDS, _MEASURING = 50, 2.0
_SLOW_CALL = 5.0  # milliseconds

Mount = Any  # psutil's: device, mountpoint, fstype, opts


def find_mount(path: Path, mounts: Sequence[Mount]) -> Mount | None:
    """The mount of a real path; of two mounts in one directory the later hides the earlier."""
    around = [mount for mount in mounts if path.is_relative_to(mount.mountpoint)]
    return max(reversed(around), key=lambda mount: len(Path(mount.mountpoint).parts), default=None)


def examine_filesystem(
    directory: Path,
    for_flock: bool = False,
    of_all: str = "",
    mounts: Sequence[Mount] | None = None,
) -> Finding:
    """Examine the filesystem of a directory.

    `for_flock`: locks of this kind are made there. `of_all`: the advice for a filesystem of one
    node that other nodes have to see, which is not tested. `mounts`: by default those of this node.
    """
    known = psutil.disk_partitions(all=True) if mounts is None else mounts
    mount = find_mount(Path(os.path.realpath(directory)), known)
    if mount is None:
        return Finding("note", "the kernel does not list its mount")
    said = f"{mount.fstype} ({mount.device or 'none'} on {mount.mountpoint})"
    local = sorted(_LOCAL_LOCKS.intersection(mount.opts.split(",")))
    if for_flock and local:
        said += f", with the option {local[0]}: flock excludes processes of one node only"
        return Finding("warning", said, advice("flock"))
    if of_all and mount.fstype in _OF_ONE_NODE:
        return Finding("warning", f"{said}: usually visible to this node only", of_all)
    if mount.fstype in _IN_MEMORY:
        said += ": in the memory of this node, and lost when it boots"
        return Finding("warning", said, "Use another directory, except for a test.")
    alone = ": usually visible to this node only" if mount.fstype in _OF_ONE_NODE else ""
    return Finding("ok", f"{said}{alone}")


def examine_space(
    directory: Path, statvfs: Callable[[Path], os.statvfs_result] = os.statvfs
) -> Finding:
    found = statvfs(directory)
    free, size = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    said = f"{format_size(free)} of {format_size(size)} free"
    is_short = free < _LEAST_BYTES or free < _LEAST_SHARE * size
    # Some filesystems have no fixed number of inodes.
    if found.f_files:
        said += f", {found.f_favail:,} of {found.f_files:,} inodes"
        least = max(_LEAST_INODES, _LEAST_SHARE * found.f_files)
        is_short = is_short or found.f_favail < min(least, found.f_files)
    if is_short:
        # Workers keep what they cannot write, until their allocation ends.
        why = "on a full disk no job starts, and results wait in their workers."
        return Finding("warning", said, f"Free some space: {why}")
    return Finding("ok", f"{said} (a quota may leave less)")


def format_size(number: int) -> str:
    return str(humanfriendly.format_size(number, binary=True))


def examine_clock(trial: TrialPaths) -> Finding:
    """Compare the time of a new file, from the file server, with this node's."""
    path = trial.message("clock")
    before = time.time()
    write_new(path, b"{}\n", durable=True)
    after = time.time()
    written = path.stat().st_mtime
    skew = max(0.0, written - after) or min(0.0, written - before + _TICK)
    return judge_skew(skew, 0.0, "the filesystem's clock")


def judge_skew(skew: float, uncertainty: float, whose: str, here: str = "this node") -> Finding:
    """The outcome for a clock that is `skew` seconds ahead of the clock of the node `here`."""
    exact = f" (known to {_milliseconds(uncertainty)})" if uncertainty else ""
    if abs(skew) - uncertainty <= _TICK:
        return Finding("ok", f"{whose} agrees with {here}'s{exact}")
    said = f"{whose} is {_milliseconds(abs(skew))} {'ahead of' if skew > 0 else 'behind'}"
    said += f" {here}'s{exact}"
    if abs(skew) - uncertainty < _SKEW_LIMIT:
        return Finding("ok", said)
    return Finding(
        "warning",
        said,
        "Synchronize the clocks (NTP): Snakemake compares times of files, and would run finished "
        "jobs again, or skip changed ones. The queue does not rely on clocks.",
    )


def _milliseconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 10 else f"{1000 * seconds:.0f} ms"


# ---- rename: one process replaces a file, another one reads it


@dataclass(frozen=True)
class Sightings:
    """The observations of the reader.

    `missing`, `partial`: how often the file did not exist, or was not whole. `stale`: how often the
    filesystem had lost it (ESTALE and the like). `ended`: whether the reader saw the last version.
    """

    reads: int = 0
    missing: int = 0
    partial: int = 0
    stale: int = 0
    ended: bool = False


def write_version(document: Path, last: bool = False) -> None:
    write_atomically(document, to_json({"version": _VERSION, "last": last, "padding": _PADDING}))


def write_versions(document: Path) -> int:
    """Replace the file for a while; return how often."""
    number, until = 1, time.monotonic() + _WRITING
    while time.monotonic() < until:
        number += 1
        write_version(document)
    write_version(document, last=True)
    return number


def read_versions(
    document: Path,
    patience: float = _READING,
    read: Callable[[Path, int], dict[str, Any]] = read_json,
) -> Sightings:
    """Read the file until its last version comes, at most for `patience` seconds."""
    seen: Counter[str] = Counter()
    ended, until = False, time.monotonic() + patience
    while not ended and time.monotonic() < until:
        seen["reads"] += 1
        try:
            ended = read(document, _VERSION)["last"]
        except FileNotFoundError:
            seen["missing"] += 1
        except DamagedFileError:
            seen["partial"] += 1
        except OSError:
            seen["stale"] += 1
    return Sightings(ended=ended, **seen)


def judge_sightings(seen: Sightings, written: int, whose: str) -> Finding:
    said = f"replaced {written} times, read {seen.reads} times by {whose}"
    counts = {"missing": seen.missing, "only in part": seen.partial}
    if bad := [f"{number} times {what}" for what, number in counts.items() if number]:
        return Finding("failed", f"{said}: {' and '.join(bad)}", _ELSEWHERE)
    if not seen.ended:
        return Finding(
            "failed",
            f"{said}, but the last version was not seen within {_READING:g} seconds",
            "Files of other processes must become visible: name another kochi_root.",
        )
    if seen.stale:
        return Finding("warning", f"{said}: {seen.stale} times the filesystem could not read it")
    return Finding("ok", f"{said}: always there and whole")


# ---- other operations of a queue


def examine_claim(trial: TrialPaths) -> Finding:
    """Examine what decides who gets a job, and which number a run gets."""
    make_directory(trial.other_directory)
    ticket, taken, second = (trial.other_directory / name for name in ("ticket", "a", "b"))
    write_new(ticket, b"")
    os.rename(ticket, taken)
    with contextlib.suppress(FileNotFoundError):
        os.rename(ticket, second)
        return Finding("failed", "a file was renamed that was not there", _ELSEWHERE)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(taken, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        return Finding("failed", "a file was made anew that was there", _ELSEWHERE)
    if (names := os.listdir(trial.other_directory)) != [taken.name]:
        return Finding("failed", f"after a rename {names} are listed, not {taken.name}", _ELSEWHERE)
    taken.unlink()
    for directory in (taken, second):
        make_directory(directory / "inner")
    with contextlib.suppress(OSError):
        os.rename(second, taken)
        return Finding("failed", "a directory took the name of another one", _ELSEWHERE)
    try:
        os.rename(second, taken / "moved")
    except OSError as error:
        return Finding("failed", f"directories cannot be renamed: {error.strerror}", _ELSEWHERE)
    return Finding("ok", "a file is renamed once, and a name that is taken stays")


def make_tickets(trial: TrialPaths) -> None:
    make_directory(trial.other_directory)
    for number in range(_TICKETS):
        write_new(trial.other_directory / str(number), b"")


def claim_tickets(trial: TrialPaths, name: str) -> int:
    """Rename as many files as possible, while another process does the same; returns how many."""
    count = 0
    for number in range(_TICKETS):
        with contextlib.suppress(FileNotFoundError):
            os.rename(
                trial.other_directory / str(number), trial.other_directory / f"{number}@{name}"
            )
            count += 1
    return count


def judge_claims(ours: int, theirs: int, names: Sequence[str], whose: str) -> Finding:
    said = f"{_TICKETS} files renamed by two: {ours} here, {theirs} by {whose}"
    held = [name for name in names if "@" in name]
    if ours + theirs != _TICKETS or len(held) != _TICKETS:
        return Finding("failed", f"{said}, and {len(held)} are there", _ELSEWHERE)
    return Finding("ok", f"{said}, each once")


def examine_wakeup(trial: TrialPaths) -> Finding:
    """Examine the FIFO that wakes workers."""
    with contextlib.closing(Wake(str(trial.wakeup))) as wakeup:
        if wakeup.is_silent:
            return Finding("note", NO_FIFOS)
        wake(str(trial.wakeup))
        if wakeup.wait(0):
            return Finding("ok", "a FIFO wakes its reader")
    return Finding("failed", "a FIFO did not wake its reader", "Name another kochi_root.")


def examine_speed(trial: TrialPaths) -> Finding:
    """Measure the time of a metadata call, and say what it means for short jobs."""
    make_directory(trial.other_directory)
    begun, rounds = time.perf_counter(), 0
    while rounds < _MOST_ROUNDS and time.perf_counter() - begun < _MEASURING:
        _make_calls(trial.other_directory)
        rounds += 1
    return judge_speed(1000 * (time.perf_counter() - begun) / rounds / _CALLS)


def _make_calls(directory: Path) -> None:
    """Calls as of a ticket's way: create, rename, stat, three of a listing, remove."""
    made, moved = (directory / name for name in ("made", "moved"))
    write_new(made, b"")
    os.rename(made, moved)
    os.stat(moved)
    os.listdir(directory)
    moved.unlink()


def judge_speed(milliseconds: float) -> Finding:
    """The outcome for the time of a metadata call."""
    rate = _rate(1000 / (CALLS_PER_TICKET * milliseconds))
    said = f"{milliseconds:.2g} ms for a metadata call: at most {rate} short jobs a second"
    said += " by one worker"
    if milliseconds < _SLOW_CALL:
        return Finding("ok", said)
    return Finding(
        "note",
        said,
        "Start several workers for many short jobs, or name a kochi_root on a faster "
        "filesystem. Jobs of a minute do not notice it.",
    )


def _rate(number: float) -> str:
    return f"{number:.1f}" if number < 10 else f"{number:,.0f}"


# ---- locks


def examine_lock_settings(wanted: LockSettings) -> Finding:
    settled = read_lock_settings(wanted.machine)
    if settled is not None and (problem := disagreement(settled, wanted)):
        raise problem
    lock_dir = wanted.lock_dir
    if lock_dir is not None and not lock_dir.is_dir():
        return Finding(
            "failed",
            f"there is no directory {lock_dir}",
            "Make it, on a filesystem that all nodes see.",
        )
    if settled is None:
        return Finding("note", f"not settled before the first use; configured: {wanted}")
    find_lock_settings(wanted.machine)
    return Finding("ok", f"{settled}, settled by {settled.host} at {settled.time}")


def examine_lock(path: Path, kind: Kind) -> Finding:
    begun = time.perf_counter()
    for _ in range(_TAKES):
        with hold(path, kind, patience=0):
            pass
    took = (time.perf_counter() - begun) / _TAKES
    return Finding("ok", f"{kind} works; {1000 * took:.2g} ms to take and release")


def examine_exclusion(path: Path, kind: Kind) -> Finding:
    with contender(path, kind) as contend:
        with hold(path, kind, patience=0):
            is_admitted = contend()
        is_free = contend()
    if is_admitted:
        return Finding("failed", f"{kind}: two processes held it at once", advice(kind))
    if not is_free:
        said = f"{kind}: it was not free after its holder released it"
        return Finding("failed", said, advice(kind))
    return Finding("ok", f"{kind}: a second process was kept out until the first released it")
