"""Which processes belong to a job, and ending them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Mapping

from snakemake_kochi.processes import (
    PROC,
    Node,
    ProcessIdentity,
    all_entries,
    child_pids,
    process_entry,
    this_node,
)

__all__ = [
    "NONCE_VARIABLE",
    "Node",
    "ProcessIdentity",
    "child_pids",
    "find_by_environment",
    "find_job_processes",
    "kill_job_processes",
    "send_signal",
    "this_node",
]

# Every process of a job inherits this variable, also those that leave its session.
NONCE_VARIABLE = "KOCHI_ATTEMPT_NONCE"
_EXEC_PATIENCE = 2.0  # seconds


def _environment(pid: int) -> bytes:
    """The environment of a process of this user, or nothing.

    In the middle of an exec a process seems to have none, and on a busy node it can stay there
    for long: one that has just called setsid would be overlooked, and then write beside the next
    attempt. What the kernel says of the place of the environment tells it from an empty one.
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
    """The living processes of an attempt, its main process included.

    They are those in the session it was started with, those with the attempt's nonce in their
    environment (a job may call setsid), and the descendants of both (it may clear its environment).
    """
    # A process that forks and ends while /proc is being read hides its child: it is not listed
    # yet, and the parent is gone when it is looked at. So nothing has to be found twice.
    return _find_once(leader, nonce) or _find_once(leader, nonce)


def _find_once(leader: ProcessIdentity, nonce: str) -> list[ProcessIdentity]:
    entries = {entry.pid: entry for entry in all_entries()}
    living = {pid: entry for pid, entry in entries.items() if entry.state not in "ZX"}
    current = entries.get(leader.pid)
    # While any process is left in a session its number is not given to another process; so when
    # the leader's number is someone else's now, the session is not the job's either.
    session = leader.pid if current is None or current.start == leader.start else None
    variable = f"{NONCE_VARIABLE}={nonce}".encode()
    found = {
        pid
        for pid, entry in living.items()
        if entry.start >= leader.start
        and (
            # The session is the job's own only from its setsid on.
            (entry.pid, entry.start) == (leader.pid, leader.start)
            or entry.session == session
            or variable in _environment(pid).split(b"\0")
        )
    }
    while more := {pid for pid, entry in living.items() if entry.parent in found} - found:
        found |= more
    return [ProcessIdentity(pid, living[pid].start) for pid in sorted(found)]


def find_by_environment(variables: Mapping[str, str], since: int) -> list[int]:
    """The living processes of this user that have all these variables in their environment, and
    that started not before `since`, in clock ticks since boot."""
    wanted = {f"{name}={value}".encode() for name, value in variables.items()}
    return [
        entry.pid
        for entry in all_entries()
        if entry.state not in "ZX"
        and entry.start >= since
        and wanted.issubset(_environment(entry.pid).split(b"\0"))
    ]


def send_signal(processes: Iterable[ProcessIdentity], number: signal.Signals) -> None:
    """Signal each that is still there; never the calling process."""
    for process in processes:
        if process.pid != os.getpid() and process.is_alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, number)


def kill_job_processes(leader: ProcessIdentity, nonce: str, patience: float = 5.0) -> bool:
    """Kill (SIGKILL) all that is left of an attempt; return whether nothing is.

    False after `patience` seconds (0: they are killed, and not waited for): a process may hang in
    the kernel (a dead NFS server) and cannot be ended; then it may still write.
    """
    deadline = time.monotonic() + patience
    pause = 0.001
    while remaining := find_job_processes(leader, nonce):
        send_signal(remaining, signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(pause * 2, 0.1)
    return True
