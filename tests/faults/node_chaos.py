"""A run of Snakemake over two nodes that see one filesystem, of which one dies, and workers before.

The nodes are hosts with names, processes and mounts of their own, each with its own client of the
filesystem (`GlusterVolume`, or two mounts of FUSE).
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hosts import Host, Started
from support import git, wait_until, worker_command, write

from snakemake_kochi.locks.settings import settle_locks
from snakemake_kochi.paths import Root
from snakemake_kochi.tickets import history

HEARTBEAT = 1.0  # seconds
CORES = 2  # of each worker
SNAKEFILE = """
rule all:
    input: expand("out/{{i}}", i=range({jobs}))

rule measure:
    output: "out/{{i}}"
    resources: kochi_queue="q"
    shell: "touch runs/{{wildcards.i}}-$KOCHI_WORKER_ID-$KOCHI_ATTEMPT; sleep {seconds}; "
        "echo result of {{wildcards.i}} > {{output}}"
"""
KOCHI_YAML = "machines: {{local: {{lock_kind: {kind}}}}}\n"
_PATIENCE = 600.0


@dataclass(frozen=True)
class Outcome:
    """`problems` are sentences, none if each job was done once and as it should be. `again`: the
    jobs that began in more than one worker."""

    seconds: float
    worker_deaths: int
    again: int
    problems: tuple[str, ...]


class Node:
    """A host that has its own client of the filesystem, where all others have theirs."""

    def __init__(self, host: Host, mount: Path, place: Path) -> None:
        self._host = host
        self._place = place
        assert host.start("mount", "--bind", str(mount), str(place), cwd=Path("/")).wait() == 0

    def start(self, *arguments: str) -> Started:
        return self._start(sys.executable, "-P", "-m", *arguments)

    def _start(self, *command: str) -> Started:
        environment = {"KOCHI_ROOT": str(self._place / "root"), "KOCHI_HEARTBEAT": str(HEARTBEAT)}
        return self._host.start(*command, cwd=self._place / "project", environment=environment)

    def start_worker(self) -> Started:
        settings = {"queues": ("q",), "stay": True, "cores": CORES}
        command = worker_command(self._place / "root", self._place.parent, **settings)
        return self._start(*command)

    def start_run(self, *options: str) -> Started:
        return self.start(
            *("snakemake", "--executor", "kochi", "--kochi-workers", "0", "--jobs", "10000"),
            *("--cores", "4", "--latency-wait", "10", *options),
        )

    def lose(self) -> None:
        self._host.lose()


@dataclass
class Project:
    """Jobs that each note who began them, as seen through one mount."""

    directory: Path
    jobs: int
    seconds: float = 0.2
    lock_kind: str = "flock"
    root: Path = field(init=False)

    def __post_init__(self) -> None:
        self.root = self.directory.parent / "root"
        text = SNAKEFILE.format(jobs=self.jobs, seconds=self.seconds)
        write(self.directory / "Snakefile", text)
        write(self.directory / "kochi.yaml", KOCHI_YAML.format(kind=self.lock_kind))
        git(self.directory, "init", "--quiet")
        (self.directory / "runs").mkdir()
        (self.directory / "out").mkdir()
        self.root.mkdir(mode=0o700)
        settle_locks(Root(self.root).machine("local"), kind=self.lock_kind)

    def done(self) -> int:
        return len(os.listdir(self.directory / "out"))

    def begun(self) -> Counter[str]:
        """In how many workers each job was begun."""
        names = os.listdir(self.directory / "runs")
        return Counter(job for job, _ in {tuple(name.split("-")[:2]) for name in names})

    def _successes(self) -> dict[str, list[str]]:
        """By output, the jobs of the queue that succeeded: their controllers and times."""
        found = defaultdict(list)
        for each in history.ended(Root(self.root).machine("local").layout):
            details = each.line.get("details") or {}
            for output in details.get("outputs") or ():
                said = f"{each.name}: {details['started']} to {details['ended']}"
                found[output].append(said)
        return found

    def problems(self, most_again: int, most_twice: int = 0) -> list[str]:
        """`most_again`: how many jobs may have begun in several workers, which died; `most_twice`:
        how many may have succeeded twice."""
        found = []
        for job in map(str, range(self.jobs)):
            output = self.directory / "out" / job
            if not output.exists() or output.read_text() != f"result of {job}\n":
                found.append(f"job {job} has no output, or a wrong one")
        results = self._successes()
        twice = {output: jobs for output, jobs in results.items() if len(jobs) > 1}
        if len(results) != self.jobs:
            found.append(f"{len(results)} of {self.jobs} jobs have a result")
        if sum(len(jobs) - 1 for jobs in twice.values()) > most_twice:
            found.append(f"jobs with several results: {twice}")
        again = sum(count > 1 for count in self.begun().values())
        if again > most_again:
            found.append(f"{again} jobs began again, and {most_again} ran in what died")
        return found


def run_node_chaos(
    shared: Mapping[str, Path],
    directory: Path,
    jobs: int,
    worker_deaths: int = 1,
    lock_kind: str = "flock",
) -> Outcome:
    """Let it happen in `directory`, empty, on the mounts of "node1" and "node2".

    Workers of the first node are killed one after the other and replaced, and when half of the jobs
    are done the second node dies with its two workers.
    """
    place = directory / "shared"
    place.mkdir()
    project = Project(shared["node1"] / "project", jobs, lock_kind=lock_kind)
    began = time.monotonic()
    with Host("node1", directory) as first, Host("node2", directory) as second:
        node1, node2 = (Node(host, shared[host.name], place) for host in (first, second))
        worker, *_ = [node1.start_worker(), node2.start_worker(), node2.start_worker()]
        run = node1.start_run()

        def wait_for(part: float) -> None:
            wait_until(
                lambda: project.done() >= part * jobs or not run.is_running,
                f"{part:.0%} of the jobs",
                seconds=_PATIENCE,
            )
            assert run.is_running, run.said

        for number in range(1, worker_deaths + 1):
            wait_for(0.5 * number / (worker_deaths + 1))
            worker.kill()
            worker = node1.start_worker()
        wait_for(0.5)
        node2.lose()
        status = run.wait(_PATIENCE)
        problems = [f"the run ended with {status}: {run.said}"] if status else []
    problems += project.problems(CORES * (worker_deaths + 2))
    again = sum(count > 1 for count in project.begun().values())
    return Outcome(time.monotonic() - began, worker_deaths, again, tuple(problems))
