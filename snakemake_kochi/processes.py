"""Processes and nodes, named for good.

Read from /proc (Linux) and not through psutil for two things psutil does not give: a start time
in ticks since boot (its create_time moves when the clock is set, and a living worker would be
taken for a dead one), and the session of a process.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PROC = Path("/proc")


@dataclass(frozen=True)
class Node:
    """Where a process number means something: one boot of one host, one pid namespace."""

    host: str
    machine: str  # /etc/machine-id: tells two hosts of one name apart
    boot: str
    namespace: str

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Node:
        return cls(**{key: str(data[key]) for key in ("host", "machine", "boot", "namespace")})

    def can_see(self, other: Node) -> bool:
        """Whether a process number recorded there can be looked up here."""
        return self == other

    def has_rebooted_since(self, other: Node) -> bool:
        """Whether it is this very host, but booted again: then no process of then is left."""
        same_host = (self.host, self.machine) == (other.host, other.machine)
        return same_host and self.machine != "" and self.boot != other.boot


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


@cache
def this_node() -> Node:
    """The node of the calling process (it cannot change during its life)."""
    return Node(
        host=socket.gethostname(),
        machine=_read("/etc/machine-id"),
        boot=_read("/proc/sys/kernel/random/boot_id"),
        namespace=os.readlink("/proc/self/ns/pid"),
    )


@dataclass(frozen=True)
class ProcessIdentity:
    """A process for good: its number, and its start in clock ticks since boot."""

    pid: int
    start: int

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ProcessIdentity:
        return cls(int(data["pid"]), int(data["start"]))

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """The process that has this number now, or None. A zombie has it too."""
        entry = process_entry(pid)
        return None if entry is None else cls(pid, entry.start)

    def is_alive(self) -> bool:
        """Whether it still runs. A zombie does not: a worker that was killed stays one until its
        parent looks, and would hold its tickets for as long."""
        entry = process_entry(self.pid)
        return entry is not None and entry.start == self.start and entry.state not in "ZX"


@dataclass(frozen=True)
class ProcessEntry:
    """What the kernel says of a process at one moment; `start` in clock ticks since boot."""

    pid: int
    state: str
    parent: int
    session: int
    start: int
    has_memory: bool  # a kernel's thread and a zombie have none
    environment_size: int
    environment_end: int


def process_entry(pid: int) -> ProcessEntry | None:
    """What the kernel says of a process, or None if there is none of that number."""
    try:
        text = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # proc(5): the command's name is in parentheses and may itself contain any character.
    fields = text[text.rindex(b")") + 2 :].split()
    # proc_pid_stat(5) counts from 1 and the name is 2, so its field n is here at n - 3.
    return ProcessEntry(
        pid=pid,
        state=fields[0].decode(),
        parent=int(fields[1]),
        session=int(fields[3]),
        start=int(fields[19]),
        has_memory=fields[20] != b"0",
        environment_size=int(fields[48]) - int(fields[47]),
        environment_end=int(fields[48]),
    )


def child_pids() -> list[int]:
    """The children of the calling (single-threaded) process, zombies included."""
    own = os.getpid()
    try:
        return list(map(int, (PROC / f"{own}/task/{own}/children").read_text().split()))
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return [entry.pid for entry in all_entries() if entry.parent == own]


def all_entries() -> list[ProcessEntry]:
    """All processes of this node."""
    numbers = (int(name) for name in os.listdir(PROC) if name.isdigit())
    return [entry for entry in map(process_entry, numbers) if entry is not None]
