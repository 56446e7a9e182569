"""The metadata calls of a real worker for its jobs: in all, and while it holds the queue's lock."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bench.measure import REPOSITORY, machine_at, make_tickets
from snakemake_kochi.queue import Queue
from snakemake_kochi.worker.settings import WorkerSettings, save_settings, start_command

_QUEUE = "q"
# Calls that name a file, list a directory or lock: a network filesystem asks its server for most.
_TRACED = "trace=%file,flock,getdents64"
# fstat(2), as strace begins its line.
_OF_OPEN_FILE = re.compile(r"newfstatat\(\d")
_LOCK = "/locks/queue-"


@dataclass(frozen=True)
class JobCalls:
    """Metadata calls below KOCHI_ROOT, per job: all, and those under the lock of the queue."""

    per_job: float
    locked_per_job: float


def count_calls_of_jobs(directory: Path, jobs: int) -> JobCalls:
    """Count by strace the calls of one worker of two cores, between its first and last of `jobs`
    one-line jobs. Those of its start, of its end and of the jobs' own programs do not count."""
    directory.mkdir(mode=0o700)
    machine = machine_at(directory)
    Queue(machine, _QUEUE).submit(make_tickets(directory, jobs, "true"))
    settings = WorkerSettings(str(directory / "root"), "local", (_QUEUE,), cores=2)
    trace = directory / "trace"
    tracer = ("strace", "-f", "-y", "-e", _TRACED, "-o", str(trace))
    subprocess.run(
        [*tracer, *start_command(save_settings(settings))],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return _count(trace.read_text(errors="replace").splitlines(), str(machine.directory), jobs)


def _count(lines: list[str], root: str, jobs: int) -> JobCalls:
    """Of the process that takes the queue's lock, from its first to its last time."""
    locks = [number for number, line in enumerate(lines) if "flock(" in line and _LOCK in line]
    worker = lines[locks[0]].split()[0]
    calls = locked = 0
    is_locked = False
    for line in lines[locks[0] : locks[-1] + 1]:
        pid, said = line.split(maxsplit=1)
        if pid != worker or root not in said or said.startswith("<..."):
            continue
        if said.startswith("flock(") and _LOCK in said:
            is_locked = "LOCK_UN" not in said and "EAGAIN" not in said
        if not _OF_OPEN_FILE.match(said):
            calls += 1
            locked += is_locked
    return JobCalls(calls / jobs, locked / jobs)
