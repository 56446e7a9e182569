"""The metadata calls of a real worker for its jobs: in all, and while it holds the queue's lock."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bench.measure import REPOSITORY, machine_at, make_tickets
from snakemake_kochi.queue import Queue
from snakemake_kochi.worker import start_command
from snakemake_kochi.worker.settings import WorkerSettings, save_settings

_QUEUE = "q"
# Calls that name a file, list a directory or lock: a network filesystem asks its server for most.
_TRACED = "trace=%file,flock,getdents64"
# What makes threads; of the answer, the number of the new one.
_CLONE, _NEW = ("clone(", "clone3("), re.compile(r"= (\d+)$")
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
    tracer = ("strace", "-f", "-y", "-e", f"{_TRACED},clone,clone3", "-o", str(trace))
    subprocess.run(
        [*tracer, *start_command(save_settings(settings))],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return _count(trace.read_text(errors="replace").splitlines(), str(machine.directory), jobs)


def _count(lines: list[str], root: str, jobs: int) -> JobCalls:
    """Of all threads of the process that takes the lock, from its first to its last time.

    Any of them may take it.
    """
    locks = [number for number, line in enumerate(lines) if "flock(" in line and _LOCK in line]
    threads = _threads_of(lines[locks[0]].split()[0], lines)
    calls = locked = 0
    holder = None
    for line in lines[locks[0] : locks[-1] + 1]:
        pid, said = line.split(maxsplit=1)
        if pid not in threads or root not in said or said.startswith("<..."):
            continue
        if said.startswith("flock(") and _LOCK in said:
            holder = pid if "LOCK_UN" not in said and "EAGAIN" not in said else None
        if not _OF_OPEN_FILE.match(said):
            calls += 1
            locked += pid == holder
    return JobCalls(calls / jobs, locked / jobs)


def _threads_of(first: str, lines: list[str]) -> set[str]:
    """The thread `first` and those that it and they have made, as strace numbers them."""
    threads, making = {first}, set[str]()
    for line in lines:
        pid, said = line.split(maxsplit=1)
        if pid not in threads:
            continue
        if said.startswith(_CLONE):
            making.add(pid) if "CLONE_THREAD" in said else making.discard(pid)
        if pid in making and "clone" in said and (new := _NEW.search(said)):
            threads.add(new[1])
            making.remove(pid)
    return threads
