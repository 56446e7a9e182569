"""How many files do ended jobs leave, and how long do commands take that read them?"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from snakemake_kochi.packing.candidates import Candidate, JobFile
from snakemake_kochi.packing.packer import pack
from snakemake_kochi.packing.writing import write_index, write_pack
from snakemake_kochi.queue.result import new_nonce

from bench.measure import Row, Size, machine_at
from snakemake_kochi.files import make_directory, to_json, write_new
from snakemake_kochi.paths import SHARD, MachinePaths
from snakemake_kochi.processes import ProcessIdentity, this_node
from snakemake_kochi.queue import Attempt, Queue, Result
from snakemake_kochi.tickets.ticket import Ticket, now

_NAMES = 40
_LIMIT = 0.2  # seconds


def measure(directory: Path, size: Size) -> list[Row]:
    """Jobs that go through the queue's own calls (submit, claim, finish) with the files that a
    worker writes, but execute nothing; the inodes and bytes below KOCHI_ROOT before, after them,
    and after packing. Then the packs of ten times as many jobs, written by the packer's own writer
    from files in memory, and the processor time of commands over that of the same where there is no
    job. (They read files that are in the memory of this computer.)"""
    count, runs = size.number(100_000, 300), size.runs(5, 1)
    machine = machine_at(directory)
    Queue(machine, "q").paths.make()
    before, _ = _measure(directory / "root")
    began = time.perf_counter()
    _end_jobs(machine, directory, count)
    ended = time.perf_counter() - began
    full, taken = _measure(directory / "root")
    began, used = time.perf_counter(), time.process_time()
    packing = pack(machine)
    packed, used = time.perf_counter() - began, time.process_time() - used
    if packing.faults:
        raise RuntimeError(packing.faults)
    left, left_taken = _measure(directory / "root")
    rows = [
        Row(f"inodes of {count:,} jobs", [full - before], ""),
        Row("their disk space", [taken / 2**20], "MiB"),
        Row("the queue's part of a job", [ended / count * 1000], "ms"),
        Row("packing a job", [packed / count * 1000], "ms"),
        Row("packing a job, processor time", [used / count * 1000], "ms"),
        Row("inodes after packing", [left - before], "", limit=1000.0),
        Row("disk space after packing", [left_taken / 2**20], "MiB"),
    ]
    rows += _commands(directory, machine, count, runs)
    total = 10 * count
    _synthesise(machine, directory, count, total)
    return [*rows, *_commands(directory, machine, total, runs)]


def _ticket(directory: Path, number: int) -> Ticket:
    name = f"rule_{number % _NAMES}"
    # As large as the ticket of a job of Snakemake.
    command = ("/bin/sh", "-c", ": " + "x" * 1500)
    return Ticket(name, command, str(directory), labels={"rule": name, "project": str(directory)})


def _end_jobs(machine: MachinePaths, directory: Path, count: int) -> None:
    queue = Queue(machine, "q")
    for first in range(0, count, 10_000):
        numbers = range(first, min(count, first + 10_000))
        queue.submit([_ticket(directory, number) for number in numbers])
        while claims := queue.claim(0, lambda _: "take", limit=SHARD):
            for claim in claims:
                paths = machine.job(claim.ticket.job)
                make_directory(paths.directory)
                attempt = to_json(_attempt(claim.ticket.job).to_dict())
                write_new(paths.attempt(claim.ticket.attempt), attempt)
                write_new(paths.log, _log(claim.ticket.job))
            ends = [(claim, _result(machine, claim.ticket.job)) for claim in claims]
            if not all(queue.finish(claim, result) for claim, result in ends):
                raise RuntimeError("a job could not be ended")


def _attempt(job: int) -> Attempt:
    process = ProcessIdentity.of(os.getpid())
    assert process is not None
    return Attempt(job, 1, new_nonce(), 0, this_node(), process, now(), "shell")


def _result(machine: MachinePaths, job: int) -> Result:
    log = str(machine.job(job).log)
    moment = now()
    return Result(
        *(job, 1, new_nonce(), 0, "node", "success", 0, None, moment, moment, log),
        runner="shell",
        cpu_seconds=0.001,
        peak_memory_mb=3,
    )


def _log(job: int) -> bytes:
    return f"the output of job {job}\n".encode()


def _synthesise(machine: MachinePaths, directory: Path, count: int, total: int) -> None:
    """Packs of jobs from number `count` on, as if so many had ended: no directory is written."""
    first = (count + SHARD - 1) // SHARD
    for shard in range(first, first + (total - count + SHARD - 1) // SHARD):
        jobs = range(shard * SHARD, (shard + 1) * SHARD)
        candidates = [_candidate(machine, directory, job) for job in jobs]
        write_pack(machine.pack_group(shard), shard, candidates)
    for group in sorted(machine.packs.iterdir()):
        write_index(machine.pack_group(int(group.name) * SHARD))


def _candidate(machine: MachinePaths, directory: Path, job: int) -> Candidate:
    paths = machine.job(job)
    ticket = _ticket(directory, job).handed_over(job, "q", machine.name)
    result, moment = _result(machine, job), time.time_ns()
    content = {
        paths.ticket: to_json(ticket.to_dict()),
        paths.attempt(1): to_json(_attempt(job).to_dict()),
        paths.log: _log(job),
        paths.result: to_json(result.to_dict()),
    }
    files = {path.name: JobFile(path, len(text), moment, text) for path, text in content.items()}
    return Candidate(paths.directory, files, (), result, ticket)


def _commands(directory: Path, machine: MachinePaths, count: int, runs: int) -> list[Row]:
    job = str(count // 2)
    commands = {
        "`kochi show jobs -t`": ("show", "jobs", "-t"),
        "`kochi show job N`": ("show", "job", job),
        "`kochi show log job N`": ("show", "log", "job", job),
        "`kochi show jobs -t -n NAME`": ("show", "jobs", "-t", "-n", "rule_7"),
        "the same without a match": ("show", "jobs", "-t", "-n", "nothing"),
        "`kochi show jobs -t -q QUEUE` without a match": ("show", "jobs", "-t", "-q", "nothing"),
    }
    root, empty = machine.directory.parent.parent, make_directory(directory / "empty")
    start: list[float] = []
    seconds: dict[str, list[float]] = {what: [] for what in commands}
    for _ in range(runs):
        # The same command where there is nothing to read.
        start.append(_seconds(directory, empty, ("show", "jobs", "-t")))
        for what, command in commands.items():
            seconds[what].append(_seconds(directory, root, command) - start[-1])
    return [
        Row(f"{count:,} jobs: the start of a command", start, "s"),
        *(
            Row(f"{count:,} jobs: {what}, over its start", values, "s", limit=_LIMIT)
            for what, values in seconds.items()
        ),
    ]


def _seconds(directory: Path, root: Path, command: Iterable[str]) -> float:
    """The processor time of a command, which other load on the machine hardly changes."""
    before = os.times()
    subprocess.run(
        [sys.executable, "-P", "-m", "snakemake_kochi.cli", *command],
        cwd=directory,
        env={**os.environ, "KOCHI_ROOT": str(root)},
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


def _measure(root: Path) -> tuple[int, int]:
    found = [root.lstat()]
    for parent, directories, names in os.walk(root):
        found += [os.lstat(f"{parent}/{name}") for name in (*directories, *names)]
    inodes = {(each.st_dev, each.st_ino): each.st_blocks * 512 for each in found}
    return len(inodes), sum(inodes.values())
