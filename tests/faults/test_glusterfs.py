"""Whole runs on GlusterFS, over two nodes that die."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from gluster import GlusterVolume
from hosts import Host, Started
from support import wait_until, worker_command, write

JOBS = 300
HEARTBEAT = 1.0  # seconds
SNAKEFILE = f"""
rule all:
    input: expand("out/{{i}}", i=range({JOBS}))

rule measure:
    output: "out/{{i}}"
    resources: kochi_queue="q"
    shell: "touch runs/{{wildcards.i}}-$KOCHI_WORKER_ID-$KOCHI_ATTEMPT; sleep 0.2; "
        "echo result of {{wildcards.i}} > {{output}}"
"""


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[dict[str, Path]]:
    """The places where two nodes see the same volume."""
    with GlusterVolume() as volume:
        yield {name: volume.mount(name) for name in ("node1", "node2")}


class Node:
    """A host that has its own client of the volume, where all others have theirs."""

    def __init__(self, host: Host, mount: Path, place: Path) -> None:
        self._host = host
        self._place = place
        assert host.start("mount", "--bind", str(mount), str(place), cwd=Path("/")).wait() == 0

    def start(self, *arguments: str) -> Started:
        project, root = self._place / "project", str(self._place / "root")
        command = (sys.executable, "-P", "-m", *arguments)
        return self._host.start(*command, cwd=project, environment={"KOCHI_ROOT": root})

    def start_worker(self) -> Started:
        settings = {"queues": ("q",), "stay": True, "cores": 2, "heartbeat": HEARTBEAT}
        command = worker_command(self._place / "root", self._place.parent, **settings)
        return self.start(*command[command.index("-m") + 1 :])

    def lose(self) -> None:
        self._host.lose()


def runs_of(project: Path) -> dict[str, set[str]]:
    """The workers that began each job."""
    found = defaultdict(set)
    for name in os.listdir(project / "runs"):
        job, worker, _ = name.split("-")
        found[job].add(worker)
    return found


def test_300_jobs_on_two_nodes_of_which_one_dies_are_done_once_each(
    shared: dict[str, Path], tmp_path: Path
) -> None:
    place = tmp_path / "shared"
    place.mkdir()
    seen = shared["node1"]
    write(seen / "project" / "Snakefile", SNAKEFILE)
    (seen / "project" / "runs").mkdir()
    (seen / "root").mkdir(mode=0o700)
    with Host("node1", tmp_path) as first, Host("node2", tmp_path) as second:
        node1, node2 = (Node(host, shared[host.name], place) for host in (first, second))
        workers = [node1.start_worker(), node2.start_worker(), node2.start_worker()]
        run = node1.start(
            *("snakemake", "--executor", "kochi", "--kochi-workers", "0", "--jobs", "10000"),
            *("--cores", "4", "--latency-wait", "10"),
        )

        def done() -> int:
            return len(os.listdir(seen / "project" / "out")) if run.is_running else JOBS

        wait_until(lambda: (seen / "project" / "out").is_dir() and done() >= 60, seconds=120)
        workers[0].kill()
        node1.start_worker()
        wait_until(lambda: done() >= 150, seconds=120)
        node2.lose()
        assert run.wait(240) == 0, run.said
    results = {
        name: (seen / "project" / "out" / name).read_text() for name in map(str, range(JOBS))
    }
    assert results == {name: f"result of {name}\n" for name in map(str, range(JOBS))}
    twice = [job for job, workers in runs_of(seen / "project").items() if len(workers) > 1]
    # Two cores each: more jobs were not running in the three workers that were killed.
    assert len(twice) <= 6
