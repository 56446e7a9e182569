"""Allocations of a real Slurm whose controller, on another host, was killed."""

from __future__ import annotations

import os
import signal

import pytest
from cluster_project import SNAKEFILE, ClusterProject
from seen import list_workers
from slurm_cluster import APART
from support import wait_until

SLURM = APART
# Each job takes a node.
JOBS = SNAKEFILE.replace("shell:", "threads: 2\n        shell:")


def kill(project: ClusterProject) -> None:
    killed = project.runs[-1]
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()


def reasons(project: ClusterProject) -> list[str]:
    return [worker.reason for worker in list_workers(project.machine) if worker.state == "left"]


KILLED = "the run that started it was killed, and it has no job"


def test_workers_without_a_controller_finish_the_queue_and_all_allocations_end(
    project: ClusterProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOCHI_HEARTBEAT", "0.5")
    project.configure(max_workers=4, min_workers=2, idle_timeout="30m")
    project.write_jobs(6, JOBS)
    project.start()
    project.wait_for_beginnings(2)
    wait_until(lambda: list(project.cluster.jobs().values()).count("PENDING") >= 1)
    kill(project)
    project.go()
    wait_until(lambda: not project.cluster.jobs())
    assert set(project.lines("done")) == set(map(str, range(6)))
    assert all(len(began) == 1 for began in project.lines("began").values())
    # Those that waited begin, and find no job.
    wait_until(lambda: len(reasons(project)) == len(list_workers(project.machine)))
    assert set(reasons(project)) == {KILLED}
