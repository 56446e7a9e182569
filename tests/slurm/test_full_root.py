"""A KOCHI_ROOT that becomes full while a run has allocations."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_project import ClusterProject
from full_disk import FullDisk, mounted
from slurm_cluster import SlurmCluster
from support import wait_until

IS_FULL = "KOCHI_ROOT is full"


# As long as on most clusters, or longer.
SLURM = {"settings": ("KillWait=120",)}


@pytest.fixture
def disk(isolated_environment: Path) -> Iterator[FullDisk]:
    with mounted(isolated_environment) as disk:
        yield disk


@pytest.fixture
def project(
    tmp_path: Path, isolated_environment: Path, cluster: SlurmCluster, disk: FullDisk
) -> Iterator[ClusterProject]:
    with ClusterProject(tmp_path / "project", isolated_environment, cluster) as project:
        project.configure(max_workers=2, cores=2, idle_timeout="30s")
        project.write_jobs(8)
        project.start()
        project.wait_for_beginnings(4)
        disk.fill()
        wait_until(lambda: IS_FULL in project.said)
        yield project


def test_a_full_root_is_reported_once_and_the_run_goes_on_when_there_is_space(
    project: ClusterProject, disk: FullDisk
) -> None:
    project.go()
    # Small writes into files that exist may find room: with tickets, more jobs end.
    wait_until(lambda: len(project.lines("done")) >= 4)
    disk.empty()
    project.end_well()
    assert set(project.lines("done")) == set(map(str, range(8)))
    assert project.said.count(IS_FULL) == 1
    assert "KOCHI_ROOT has free space again." in project.said
    assert project.cluster.jobs() == {}


def test_an_interrupt_on_a_full_root_waits_neither_for_jobs_nor_for_slurm(
    project: ClusterProject, disk: FullDisk
) -> None:
    run = project.runs[-1]
    os.killpg(run.pid, signal.SIGINT)
    assert run.wait(40) == 1
    # Those that had begun have files that become their results, so their workers can leave.
    assert "Cancelled 8 kochi jobs; nothing of this run is left" in project.said
    assert "Traceback" not in project.said
    disk.empty()
    wait_until(lambda: project.cluster.jobs() == {})
