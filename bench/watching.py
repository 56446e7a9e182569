"""What do the workers of a queue cost the file server by watching each other?

No worker runs, and the clock is advanced: so a hundred workers are watched for minutes within
seconds. The files are those of real workers on as many nodes, each with a job, and the calls are
real: strace counts the system calls of the observers that name a file or list a directory.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from snakemake_kochi.queue.observer import Observer
from snakemake_kochi.queue.wakeup import subscribe

from bench.measure import REPOSITORY, Row, Size
from snakemake_kochi.files import make_directory, to_json
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.processes import Node, ProcessIdentity
from snakemake_kochi.queue import Queue, WorkerState, recover
from snakemake_kochi.tickets.capacity import Capacity
from snakemake_kochi.tickets.ticket import Ticket

MOST_CALLS_OF_A_HUNDRED = 100.0
# System calls that may send a request to a file server, and that of the heartbeats.
_METADATA = "trace=%file,flock,getdents64"
_HEARTBEATS = "utimensat"
_QUEUE = "q"
# Seconds of the advanced clock.
_SETTLING = 60
_WATCHED = 60
_HEARTBEAT = 5


class Crowd:
    """The files of workers that are busy on nodes of their own, and the observer of each."""

    def __init__(self, machine: MachinePaths, count: int) -> None:
        self._machine = machine
        self._queue = Queue(machine, _QUEUE)
        self.time = 1000.0
        self.beating: set[int] = set()
        self.observers: list[Observer] = []
        for _ in range(count):
            self.add()

    def add(self) -> None:
        """One more worker, with a job."""
        worker = len(self.observers)
        node = Node(f"node{worker}", f"machine{worker}", f"boot{worker}", "pid:[1]")
        process, capacity = ProcessIdentity(1, 1), Capacity(1, 1)
        state = WorkerState(worker, "running", process, node, (_QUEUE,), capacity, "", "")
        make_directory(self._machine.worker(worker).directory)
        self._machine.worker(worker).state.write_bytes(to_json(state.to_dict()))
        subscribe(self._machine.queue(_QUEUE), worker)
        self._queue.submit([Ticket("job", ("true",), "/")])
        self._queue.claim(worker, lambda _: "take")
        self.beating.add(worker)
        self.observers.append(Observer(lambda: self.time, worker=worker))

    def watch(self, seconds: int) -> list[str]:
        """Let each beating worker look once a second, as a busy one does; return the messages."""
        said = []
        for _ in range(seconds):
            self.time += 1.0
            for worker in self.beating:
                if (self.time + worker) % _HEARTBEAT == 0:
                    os.utime(self._machine.worker(worker).state)
            for worker in self.beating:
                said += recover(self._machine, _QUEUE, self.observers[worker])
        return said


def calls_per_second(directory: Path, count: int) -> float:
    """The metadata calls of all the observers of so many workers, per second of their clock."""
    counted = directory / "counted"
    command = [sys.executable, "-m", "bench.watching", str(directory), str(count)]
    simulation = subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert simulation.stdin is not None and simulation.stdout is not None
    with simulation:
        simulation.stdout.readline()  # they have known each other for a while
        options = ("-c", "-U", "calls,name", "-e", _METADATA, "-o", str(counted))
        tracer = subprocess.Popen(
            ["strace", *options, "-p", str(simulation.pid)], stderr=subprocess.PIPE
        )
        with tracer:
            assert tracer.stderr is not None
            tracer.stderr.readline()  # it is attached
            simulation.stdin.close()
    if simulation.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit status {simulation.returncode}")
    rows = [line.split() for line in counted.read_text().splitlines()]
    calls = {row[1]: int(row[0]) for row in rows if len(row) == 2 and row[0].isdecimal()}
    return (calls["total"] - calls[_HEARTBEATS]) / _WATCHED


def measure(directory: Path, size: Size) -> list[Row]:
    rows = []
    for count in size.numbers((2, 8, 100, 400), (4,)):
        own = directory / str(count)
        own.mkdir(mode=0o700)
        calls = calls_per_second(own, count)
        limit = MOST_CALLS_OF_A_HUNDRED if count == 100 else None
        rows.append(Row(f"{count:,} busy workers: calls of all", [calls], "1/s", None, limit))
        rows.append(Row("the same: calls per worker", [calls / count], "1/s"))
    return rows


def _simulate(directory: str, count: str) -> None:
    crowd = Crowd(Root(Path(directory)).machine("local"), int(count))
    crowd.watch(_SETTLING)
    print("ready", flush=True)
    sys.stdin.read()
    said = crowd.watch(_WATCHED)
    if said:
        sys.exit("\n".join(said))


if __name__ == "__main__":
    _simulate(*sys.argv[1:])
