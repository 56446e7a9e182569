"""How many files do ended jobs leave, and how long do commands take that read them?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from bench.measure import Row, Size, machine_at
from snakemake_kochi.base import files
from snakemake_kochi.files import make_directory
from snakemake_kochi.tickets.claims import Claims, WorkerLife
from snakemake_kochi.tickets.names import Layout, Name
from snakemake_kochi.tickets.run import SHARD, Run
from snakemake_kochi.tickets.ticket import ShellJob, Ticket, now

_NAMES = 40
_MOST_INODES = 1000.0
_MOST_SECONDS = 0.5


def measure(directory: Path, size: Size) -> list[Row]:
    """Jobs that go through the queue's own calls (submit, claim, finish, collect, fold), each with
    a log, but execute nothing; the inodes and bytes below KOCHI_ROOT that they leave. Then a
    journal of ten times as many, and the processor time of commands over that of the same where
    there is no job. (They read files that are in the memory of this computer.)"""
    count, runs = size.number(100_000, 300), size.runs(5, 1)
    root = directory / "root"
    layout = Layout(str(make_directory(machine_at(directory).directory)))
    before, _ = _measure(root)
    began = time.perf_counter()
    number = _end_jobs(layout, directory, count)
    each = (time.perf_counter() - began) / count
    left, taken = _measure(root)
    rows = [
        Row("the queue's part of a job", [1000 * each], "ms"),
        Row(f"inodes of {count:,} ended jobs", [left - before], "", None, _MOST_INODES),
        Row("their disk space", [taken / 2**20], "MiB"),
        *_commands(directory, number, count, runs),
    ]
    total = 10 * count
    journal = Path(layout.run(number).journal)
    with journal.open("a") as file:
        file.writelines(_further_lines(journal, number, range(count + 1, total + 1)))
    return [*rows, *_commands(directory, number, total, runs)]


def _ticket(directory: Path, number: int) -> bytes:
    name = f"rule_{number % _NAMES}"
    # As large as the ticket of a job of Snakemake.
    labels = {"rule": name, "project": str(directory)}
    command = ("/bin/sh", "-c", ": " + "x" * 1500)
    shell = ShellJob("sort --numeric-sort input.txt > output.txt", "/bin/bash")
    ticket = Ticket(name, command, str(directory), labels=labels, shell=shell)
    return json.dumps(ticket.to_dict()).encode()


def _end_jobs(layout: Layout, directory: Path, count: int) -> int:
    """The number of the run."""
    run = Run.begin(layout, str(directory))
    claims = Claims(layout, "q", WorkerLife(layout, "1"))
    paths, ended = layout.run(run.number), 0
    while ended < count:
        numbers = range(ended, min(count, ended + SHARD))
        run.submit("q", {str(number): _ticket(directory, number) for number in numbers})
        for name in claims.claim(lambda name, read, taken: True):
            files.write_new(paths.log(name), f"the output of job {name.job}\n".encode())
            moment = now()
            details = {"node": "node", "started": moment, "ended": moment, "exit_status": 0}
            claims.finish(name, "success", {**details, "runner": "shell", "cpu_seconds": 0.001})
        ended += len(run.collect())
        run.fold()
    run.end()
    return run.number


def _further_lines(journal: Path, run: int, jobs: Iterable[int]) -> Iterator[str]:
    """The lines of as many more ends, each like the last one."""
    line = json.loads(journal.read_text().splitlines()[-1])
    for job in jobs:
        name = f"rule_{job % _NAMES}"
        ended = Name(run, job, worker="1", state="success")
        # In the order of `Run.collect`, which searches rely on.
        ticket = {**line["ticket"], "name": name}
        yield f"{json.dumps({**line, 'ticket': ticket, 'ended': str(ended), 'key': str(job)})}\n"


def _commands(directory: Path, run: int, count: int, runs: int) -> list[Row]:
    job = f"{run}.{count // 2}"
    commands = {
        "`kochi show jobs -t`": ("show", "jobs", "-t"),
        "`kochi show jobs --failed`": ("show", "jobs", "--failed"),
        "`kochi show job N`": ("show", "job", job),
        "`kochi show jobs -t -n NAME`": ("show", "jobs", "-t", "-n", "rule_7"),
        "the same without a match": ("show", "jobs", "-t", "-n", "nothing"),
    }
    root, empty = directory / "root", make_directory(directory / "empty")
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
            Row(f"{count:,} jobs: {what}, over its start", values, "s", limit=_MOST_SECONDS)
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
