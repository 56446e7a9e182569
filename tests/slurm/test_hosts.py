"""Runs over nodes that do not see each other's processes, as on different hosts."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator

import psutil
import pytest
from cluster_project import SNAKEFILE, ClusterProject
from seen import FIRST, find_worker, list_jobs, list_workers
from slurm_cluster import APART
from support import wait_until

from snakemake_kochi.tickets.watching import SILENT

QUICK = 0.5  # seconds between two heartbeats of a worker
# In the commands of a supervisor and its worker.
WORKER = "/worker-settings/"


SLURM = APART


@pytest.fixture
def broken_node(project: ClusterProject) -> Iterator[str]:
    """The node to break; repaired afterwards."""
    node = "node1"
    yield node
    project.cluster.cancel_jobs()
    with contextlib.suppress(KeyError):
        project.cluster.lose_node(node)
    project.cluster.start_node(node)
    project.cluster.wait_for_state("idle", node)


def begin(project: ClusterProject, heartbeat: float) -> None:
    """Four jobs in two workers, whose silence is soon noticed. Each job goes on when all may, or
    when it may."""
    project.environment["KOCHI_HEARTBEAT"] = str(heartbeat)
    project.configure(max_workers=2, idle_timeout="60s")
    project.write_jobs(4, SNAKEFILE.replace("-e go ]", "-e go -a ! -e go-{wildcards.i} ]"))
    project.start()
    project.wait_for_beginnings(4)


def jobs_on(project: ClusterProject, node: str) -> set[str]:
    """The jobs that have begun in the allocation on a node."""
    allocation = project.cluster.run("squeue", "--noheader", "--format=%A", f"--nodelist={node}")
    return {job for job, began in project.lines("began").items() if allocation in began}


def begun_twice(project: ClusterProject) -> set[str]:
    return {job for job, began in project.lines("began").items() if len(began) == 2}


def set_down(project: ClusterProject, node: str) -> None:
    """Make Slurm see that it does not answer."""
    project.cluster.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=broken")


def processes_with(project: ClusterProject, node: str, word: str) -> list[psutil.Process]:
    """The processes on a node with a word in their command."""
    found = []
    for process in project.cluster.processes_on(node):
        with contextlib.suppress(psutil.Error):
            if word in " ".join(process.cmdline()):
                found.append(process)
    return found


def test_a_run_over_two_hosts_does_each_job_once(project: ClusterProject) -> None:
    project.configure(max_workers=2, idle_timeout="30s")
    project.write_jobs(12)
    project.start()
    project.wait_for_beginnings(4)
    project.go()
    project.end_well()
    assert set(project.lines("done")) == set(map(str, range(12)))
    workers = list_workers(project.machine)
    assert {worker.node.host for worker in workers} == set(project.cluster.nodes)
    assert not any(worker.is_on_this_node for worker in workers)
    ended = list_jobs(project.machine, ended=True)
    assert len(ended) == 12
    assert {job.result and job.result.worker for job in ended} == {w.worker for w in workers}
    assert project.cluster.jobs() == {}


def test_the_jobs_of_a_host_that_died_are_done_on_the_other_one_and_once(
    project: ClusterProject, broken_node: str
) -> None:
    heartbeat = 3.0
    begin(project, heartbeat)
    lost = jobs_on(project, broken_node)
    assert len(lost) == 2
    project.cluster.lose_node(broken_node)
    set_down(project, broken_node)
    project.go()
    project.end_well()
    assert set(project.lines("done")) == {"0", "1", "2", "3"}
    assert begun_twice(project) == lost
    assert project.cluster.jobs() == {}


def test_a_live_worker_on_a_host_that_slurm_presumes_down_stays_the_owner_of_its_jobs(
    project: ClusterProject, broken_node: str
) -> None:
    begin(project, QUICK)
    project.cluster.stop_node(broken_node, signal.SIGKILL)
    set_down(project, broken_node)
    # Until a silent one would be presumed dead, and the scheduler be asked.
    time.sleep(SILENT * QUICK + 5)
    project.go()
    project.end_well()
    assert project.lines("began") == project.lines("done")
    assert set(project.lines("done")) == {"0", "1", "2", "3"}
    assert list(project.machine.workers.glob("*/dead")) == []
    # No process can end it any more: it ends by itself, since the run is over.
    wait_until(lambda: not processes_with(project, broken_node, WORKER))
    assert project.cluster.jobs() == {}


def test_the_jobs_of_a_hanging_worker_have_ended_when_others_begin_them_again(
    project: ClusterProject, broken_node: str
) -> None:
    begin(project, 2 * QUICK)
    lost = jobs_on(project, broken_node)
    # There is then space for another one.
    (project.directory / f"go-{min(set(project.lines('began')) - lost)}").touch()
    project.cluster.stop_node(broken_node, signal.SIGKILL)
    set_down(project, broken_node)
    supervisor, worker, *_ = processes_with(project, broken_node, WORKER)
    assert worker.parent() == supervisor
    worker.suspend()
    assert processes_with(project, broken_node, "began-")
    project.wait_for_beginnings(5)
    assert not processes_with(project, broken_node, "began-")
    assert not supervisor.is_running()
    project.go()
    project.end_well()
    assert begun_twice(project) == lost
    both = FIRST, FIRST + 1
    hosts = {find_worker(project.machine, worker).node.host for worker in both}
    assert hosts == set(project.cluster.nodes)
    wait_until(lambda: project.cluster.jobs() == {})
