"""Allocations of a real Slurm whose controller, on another host, was killed."""

from __future__ import annotations

import os
import signal

import pytest
from cluster_project import ClusterProject
from support import wait_until

from snakemake_kochi.queue import list_workers

SLURM = {"cpus": 1, "apart": True}


def kill(project: ClusterProject) -> None:
    killed = project.runs[-1]
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()


def reasons(project: ClusterProject) -> list[str]:
    return [worker.reason for worker in list_workers(project.machine) if worker.state == "left"]


def idle(project: ClusterProject) -> list[int]:
    """The number of the worker without a job, once the other one is known to have one."""
    found = [each.worker for each in list_workers(project.machine) if not each.running]
    return found if len(found) == 1 else []


KILLED = "the run that started it was killed, and it has no job"


@pytest.mark.parametrize(("least", "timeout"), [(2, "60s"), (0, "30m")])
def test_workers_without_a_controller_finish_the_queue_and_cancel_pending_allocations(
    project: ClusterProject, monkeypatch: pytest.MonkeyPatch, least: int, timeout: str
) -> None:
    monkeypatch.setenv("KOCHI_HEARTBEAT", "0.5")
    project.configure(max_workers=4, min_workers=least, idle_timeout=timeout)
    project.write_jobs(6)
    project.start()
    project.wait_for_beginnings(2)
    wait_until(lambda: list(project.cluster.jobs().values()).count("PENDING") >= 1)
    kill(project)
    project.go()
    wait_until(lambda: not project.cluster.jobs())
    assert set(project.lines("done")) == set(map(str, range(6)))
    assert all(len(began) == 1 for began in project.lines("began").values())
    wait_until(lambda: len(reasons(project)) == 2)
    # The waiting ones never began.
    assert reasons(project) == [KILLED, KILLED]


def test_a_staying_worker_is_not_misled_by_a_live_controller(
    project: ClusterProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOCHI_HEARTBEAT", "0.5")
    project.configure(max_workers=2, min_workers=2, idle_timeout="60s")
    project.write_jobs(1)
    project.start()
    project.wait_for_beginnings(1)
    # One of the workers has no job for much longer than the time to presume one dead, 6 seconds:
    # an idle worker gives a sign of life every other second.
    wait_until(lambda: len(list_workers(project.machine)) == 2)
    (number,) = wait_until(lambda: idle(project))
    before = list_workers(project.machine)[number].heartbeat
    wait_until(lambda: list_workers(project.machine)[number].heartbeat > before + 60, seconds=300)
    project.go()
    project.end_well()
    assert project.states() == ["left", "left"]
    assert KILLED not in reasons(project)
