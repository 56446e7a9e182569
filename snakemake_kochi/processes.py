"""Unique names of processes and nodes; finding and ending the processes of a job.

The data comes from /proc (Linux) and not from psutil, which lacks two things. The first is a start
time in ticks since boot: psutil's create_time moves when the clock is set, and a living worker
would then seem dead. The second is the session of a process.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from snakemake_kochi.parent_death import stat_fields

PROC = Path("/proc")


@dataclass(frozen=True)
class Node:
    """The scope in which a process number is unique: one boot of one host, one pid namespace."""

    host: str
    machine: str  # /etc/machine-id: distinguishes two hosts with the same name
    boot: str
    namespace: str

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Node:
        return cls(**{key: str(data[key]) for key in ("host", "machine", "boot", "namespace")})

    def can_see(self, other: Node) -> bool:
        """Whether a process number recorded on that node can be looked up on this one."""
        return self == other

    def has_rebooted_since(self, other: Node) -> bool:
        """Whether this is the same host after a reboot: then no process from before is left."""
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
        host=os.uname().nodename,
        machine=_read("/etc/machine-id"),
        boot=_read("/proc/sys/kernel/random/boot_id"),
        namespace=os.readlink("/proc/self/ns/pid"),
    )


@dataclass(frozen=True)
class ProcessIdentity:
    """A unique process: its number, and its start in clock ticks since boot."""

    pid: int
    start: int

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ProcessIdentity:
        return cls(int(data["pid"]), int(data["start"]))

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """The process that has this number now, or None. A zombie counts, too."""
        entry = process_entry(pid)
        return None if entry is None else cls(pid, entry.start)

    def is_alive(self) -> bool:
        """Whether the process still runs.

        A zombie does not count as running. A killed worker stays a zombie until its parent waits
        for it, and would hold its tickets for that time.
        """
        entry = process_entry(self.pid)
        return entry is not None and entry.start == self.start and entry.state not in "ZX"

    def has_ended(self, node: Node) -> bool:
        """Whether it has certainly ended, as seen from here. `node`: where it was."""
        here = this_node()
        return not self.is_alive() if here.can_see(node) else here.has_rebooted_since(node)


@dataclass(frozen=True)
class ProcessEntry:
    """What the kernel shows of a process at one moment; `start` is in clock ticks since boot."""

    pid: int
    state: str
    parent: int
    session: int
    start: int
    has_memory: bool  # a kernel's thread and a zombie have none
    environment_size: int
    environment_end: int


def process_entry(pid: int) -> ProcessEntry | None:
    """What the kernel shows of a process, or None if there is none with that number."""
    try:
        fields = stat_fields(f"{PROC}/{pid}")
    except OSError:
        return None
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


def node_words() -> tuple[str, str, str]:
    """This host, its boot and the pid namespace, for names of files that belong to a process.

    Each is short: scripts create sockets below such names, whose paths may have 107 characters.
    """
    node = this_node()
    boot = node.boot.replace("-", "")[:8].ljust(8, "0")
    return host_key(node), boot, f"{int(re.sub(r'[^0-9]', '', node.namespace)):x}"


def host_key(node: Node) -> str:
    """A short name of a host, the first of its words."""
    # Imported here: it takes longer than the rest of this module, and few processes need it.
    import hashlib

    return hashlib.sha256(f"{node.host}\0{node.machine}".encode()).hexdigest()[:8]


def is_over(words: Sequence[str], process: ProcessIdentity | None) -> bool:
    """Whether a process has certainly ended; `words` are those of its node (`node_words`).

    None stands for any process that this one could see. False also where that cannot be known here.
    """
    host, boot, namespace = words
    own_host, own_boot, own_namespace = node_words()
    if host != own_host:
        return False
    if boot != own_boot:
        # As in Node.has_rebooted_since: only ids tell two hosts of one name apart.
        return this_node().machine != "" and "00000000" not in (boot, own_boot)
    if namespace != own_namespace:
        # A container of this host: its process ids mean nothing here.
        return False
    return process is None or not process.is_alive()


def this_process() -> str:
    """The calling process and its node, in one word."""
    own = ProcessIdentity.of(os.getpid())
    assert own is not None
    return "-".join((*node_words(), str(own.pid), str(own.start)))


def is_dead(process: str) -> bool:
    """Whether a process, as `this_process` named it, has certainly ended; "" names none."""
    *node, pid, start = process.split("-") if process else ("", "0", "0")
    return len(node) == 3 and is_over(node, ProcessIdentity(int(pid), int(start)))


def all_entries() -> list[ProcessEntry]:
    """All processes of this node."""
    numbers = (int(name) for name in os.listdir(PROC) if name.isdigit())
    return [entry for entry in map(process_entry, numbers) if entry is not None]


# Every process of a job inherits this variable, also those that leave its session.
NONCE_VARIABLE = "KOCHI_ATTEMPT_NONCE"
ALL_VARIABLE = "KOCHI_WORKER_NONCE"  # the same for all jobs of a worker
_EXEC_PATIENCE = 2.0  # seconds


def environment_of(pid: int) -> bytes:
    """The environment of a process of this user; empty if it cannot be read.

    During an exec a process seems to have none, and on a busy node this state can last long. A
    process that has just called setsid would be overlooked, and would then write beside the next
    attempt. The address and size of the environment, as the kernel shows them, distinguish this
    state from an empty environment.
    """
    deadline = time.monotonic() + _EXEC_PATIENCE
    while time.monotonic() < deadline:
        try:
            if os.stat(PROC / str(pid)).st_uid != os.geteuid():
                return b""
            environment = (PROC / str(pid) / "environ").read_bytes()
        except OSError:
            return b""
        entry = process_entry(pid)
        if environment or entry is None or entry.state in "ZX" or not entry.has_memory:
            return environment
        if entry.environment_end != 0 and entry.environment_size == 0:
            return b""
        time.sleep(0.001)
    return b""


def find_job_processes(leader: ProcessIdentity, nonce: str) -> list[ProcessIdentity]:
    """Find the living processes of an attempt, including its main process.

    They are the processes in the session with which it was started, the processes with the
    attempt's nonce in their environment (a job may call setsid), and the descendants of both (a job
    may clear its environment).
    """
    # A process that forks and ends while /proc is read hides its child: the child is not listed
    # yet, and the parent is gone when its turn comes. So two listings in a row must find no
    # process.
    return _find_once(leader, nonce) or _find_once(leader, nonce)


def _find_once(leader: ProcessIdentity, nonce: str) -> list[ProcessIdentity]:
    entries = {entry.pid: entry for entry in all_entries()}
    living = {pid: entry for pid, entry in entries.items() if entry.state not in "ZX"}
    current = entries.get(leader.pid)
    # The number of a session is not reused while it has a process. So if another process has the
    # leader's number now, the session is not the job's either.
    session = leader.pid if current is None or current.start == leader.start else None
    variable = f"{NONCE_VARIABLE}={nonce}".encode()
    found = {
        pid
        for pid, entry in living.items()
        if entry.start >= leader.start
        and (
            # The session belongs to the job only from its setsid on.
            (entry.pid, entry.start) == (leader.pid, leader.start)
            or entry.session == session
            or variable in environment_of(pid).split(b"\0")
        )
    }
    while more := {pid for pid, entry in living.items() if entry.parent in found} - found:
        found |= more
    return [ProcessIdentity(pid, living[pid].start) for pid in sorted(found)]


def find_by_environment(variables: Mapping[str, str], since: int) -> list[int]:
    """Find the living processes of this user with all these variables in their environment.

    Processes that started before `since`, in clock ticks since boot, are left out.
    """
    wanted = {f"{name}={value}".encode() for name, value in variables.items()}
    return [
        entry.pid
        for entry in all_entries()
        if entry.state not in "ZX"
        and entry.start >= since
        and wanted.issubset(environment_of(entry.pid).split(b"\0"))
    ]


def is_gone(facts: Any) -> bool:
    """Whether a process of this node is gone, and nothing of it is left, which is ended here.

    `facts`: its "process" and "node", and the "nonce" that the environments of its jobs have in
    ALL_VARIABLE. False also where that cannot be known here.
    """
    try:
        process, node = ProcessIdentity.from_dict(facts["process"]), Node.from_dict(facts["node"])
    except (KeyError, TypeError, ValueError):
        return False
    if not process.has_ended(node):
        return False
    if not this_node().can_see(node):  # it was restarted
        return True
    left = find_by_environment({ALL_VARIABLE: str(facts.get("nonce", "-"))}, process.start)
    for pid in left:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return not left


def send_signal(processes: Iterable[ProcessIdentity], number: signal.Signals) -> None:
    """Signal each process that still exists; never the calling process."""
    for process in processes:
        if process.pid != os.getpid() and process.is_alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, number)
