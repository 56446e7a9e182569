"""What a run costs its site: calls to the scheduler, and the controller on the login node.

One-line jobs with `--profile cluster` on a real Slurm on this computer, in two allocations of four
cores that the run requests. The workers are children of Slurm's daemons, so the processes of the
run are those on the login node.
"""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.measure import Row, Size, import_of_tests
from bench.snakemake_runs import CLUSTER_PROFILE, SHELL, Runner, write_workflow

_NODES = 2
_CPUS = 4
_MACHINE = "bench"
_CONFIGURATION = f"""\
machines:
  {_MACHINE}:
    scheduler: slurm
    allocation: {{max_workers: {_NODES}, time: 1h}}
"""
CLIENTS = ("sbatch", "squeue", "sacct", "scancel", "sinfo", "scontrol")
# Targets. Without them a run of many jobs would cost the site more than one of few.
_MOST_CALLS = {"sbatch": 4}
_MOST_INODES = 1000
_SAMPLE = 0.5  # seconds between two looks at the processes of a run


def measure(directory: Path, size: Size) -> list[Row]:
    """--jobs 100000 measures so many, too; that takes a quarter of an hour or more."""
    rows = []
    configuration = directory / "kochi.yaml"
    configuration.write_text(_CONFIGURATION)
    tests = import_of_tests("slurm_cluster")
    with tests.SlurmCluster(_NODES, _CPUS, settings=(tests.USUAL_PACE,)) as cluster:
        for count in size.numbers((100, 1000), (2,)):
            own = directory / str(count)
            own.mkdir(mode=0o700)
            rows += _rows(count, _run(Runner(own), count, configuration, cluster))
    return rows


def _rows(count: int, used: _Used) -> list[Row]:
    what = f"{count:,} jobs"
    return [
        Row(f"{what}: the run", [used.seconds], "s"),
        *(
            Row(f"{what}: calls to {client}", [number], "", None, _MOST_CALLS.get(client))
            for client, number in used.calls.items()
        ),
        Row(f"{what}: CPU time of the run's processes on the login node", [used.cpu], "s"),
        Row(f"{what}: the same per job", [1000 * used.cpu / count], "ms"),
        Row(f"{what}: their memory", [used.memory_mb], "MiB"),
        Row(f"{what}: their number, at most", [used.processes], ""),
        Row(f"{what}: inodes below KOCHI_ROOT", [used.inodes], "", None, _MOST_INODES),
    ]


@dataclass(frozen=True)
class _Used:
    """`calls` to each client of Slurm; CPU `seconds` and most MiB of all processes together."""

    seconds: float
    calls: dict[str, int]
    cpu: float
    memory_mb: float
    processes: int
    inodes: int


def _run(runner: Runner, count: int, configuration: Path, cluster: Any) -> _Used:
    place = Path(tempfile.mkdtemp(prefix="run-", dir=runner.directory))
    write_workflow(place, count, SHELL)
    before = {client: len(cluster.calls(client)) for client in CLIENTS}
    machine = {"KOCHI_CONF": str(configuration), "KOCHI_DEFAULT_MACHINE": _MACHINE}
    command = [runner.python, "-m", "snakemake", "--profile", str(CLUSTER_PROFILE)]
    output = place / "output"
    began = time.perf_counter()
    with open(output, "wb") as stream:
        run = subprocess.Popen(
            command,
            cwd=place,
            env=runner.environment({**cluster.environment, **machine}),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
        )
        watch = _Watch(run.pid)
        _, status, usage = os.wait4(run.pid, 0)
        run.returncode = os.waitstatus_to_exitcode(status)
        watch.end()
    seconds = time.perf_counter() - began
    made = len(list((place / "out").glob("*")))
    if run.returncode or made != count:
        raise RuntimeError(f"{made} of {count} files:\n{output.read_text()[-4000:]}")
    calls = {client: len(cluster.calls(client)) - before[client] for client in CLIENTS}
    inodes = len({path.lstat().st_ino for path in (runner.directory / "root").rglob("*")})
    cpu = usage.ru_utime + usage.ru_stime  # with all children that it waited for
    return _Used(seconds, calls, cpu, watch.memory_mb, watch.processes, inodes)


class _Watch:
    """Samples the processes of a run: their proportional share of memory, and their number."""

    def __init__(self, pid: int) -> None:
        self.memory_mb = 0.0
        self.processes = 0
        self._pid = pid
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def end(self) -> None:
        self._ending.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ending.wait(_SAMPLE):
            try:
                above = psutil.Process(self._pid)
                found = [above, *above.children(recursive=True)]
                used = sum(_memory_of(process) for process in found)
            except psutil.NoSuchProcess:
                continue
            self.memory_mb = max(self.memory_mb, math.ceil(used / 2**20))
            self.processes = max(self.processes, len(found))


def _memory_of(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.NoSuchProcess:
        return 0
