"""Runs in allocations of a real Slurm that end too early, for various reasons."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest
from cluster_project import ClusterProject
from support import wait_until

PARTITIONS = (
    "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE",
    "PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=9 PreemptMode=OFF",
)
SETTINGS = ("PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE", "JobRequeue=1")


SLURM = {"partitions": PARTITIONS, "settings": SETTINGS}


def test_jobs_too_long_for_the_rest_of_an_allocation_go_to_another_one(
    project: ClusterProject,
) -> None:
    # To the first worker, Slurm seems to have given 38 seconds: it needs 25 of them to end jobs.
    given = project.directory / "given"
    export = "export SLURM_JOB_END_TIME=$(($(date +%s) + 38))"
    project.configure(max_workers=1, idle_timeout="30s")
    file = project.directory / "kochi.yaml"
    setup = json.dumps({"on_machine": f"[ -e {given} ] || {export}; touch {given}"})
    file.write_text(
        file.read_text().replace("{scheduler", f"{{load_env_script: {setup}, scheduler")
    )
    project.write_jobs(1)
    project.start()
    project.wait_for_beginnings(2)
    project.go()
    project.end_well()
    first, second = project.lines("began")["0"]
    assert first != second
    assert project.lines("done") == {"0": [second]}
    assert project.cluster.jobs() == {}


def test_an_allocation_that_the_user_has_slurm_requeue_starts_a_worker_again(
    project: ClusterProject,
) -> None:
    project.configure(max_workers=1, idle_timeout="30s", arguments=["--requeue"])
    project.start()
    allocation = project.wait_for_beginnings(2)[0]
    told = f"The scheduler requeued allocation {allocation}: its unfinished jobs are begun again"
    workers = 1
    # The run tells it if it has seen the worker, for which it looks twice a second.
    while told not in project.said and workers < 3:
        project.cluster.run("scontrol", "requeue", allocation)
        wait_until(lambda: list(project.cluster.jobs().values()) == ["PENDING"])
        # Slurm delays it for two minutes. A node does not launch a job in the second in which it
        # has killed it.
        project.cluster.run("scontrol", "update", f"JobId={allocation}", "StartTime=now+2")
        workers += 1
        project.wait_for_beginnings(2 * workers)
    assert told in project.said
    project.go()
    project.end_well()
    assert set(project.lines("done")) == {"0", "1"}
    assert {each for lines in project.lines("began").values() for each in lines} == {allocation}
    assert project.states() == ["left"] * workers
    assert project.cluster.jobs() == {}


def test_preempted_jobs_are_done_once_in_an_allocation_that_is_requested_at_once(
    project: ClusterProject,
) -> None:
    project.start()
    [first] = set(project.wait_for_beginnings(2))
    urgent = project.cluster.run(
        *("sbatch", "--parsable", "--partition=urgent", "--nodes=2", "--exclusive"),
        *("--output=/dev/null", "--wrap", "sleep 100"),
    )
    wait_until(lambda: project.states() == ["left"])
    told = f"The scheduler ended allocations of this run: {first} (PREEMPTED). "
    wait_until(lambda: told in project.said)
    wait_until(lambda: sorted(project.cluster.jobs().values()) == ["PENDING", "RUNNING"])
    project.cluster.run("scancel", urgent)
    # Slurm would delay the first one for two minutes.
    assert project.wait_for_beginnings(4, seconds=60).count(first) == 2
    project.go()
    project.end_well()
    assert project.cluster.jobs() == {}


@pytest.fixture
def broken_node(project: ClusterProject) -> Iterator[str]:
    """The node of the first allocation, which loses its slurmd, and gets it back afterwards."""
    node = "node1"
    yield node
    project.cluster.cancel_jobs()
    project.cluster.stop_node(node, signal.SIGKILL)
    project.cluster.start_node(node)
    # Its slurmd may have made it idle already: there is then nothing to resume.
    with contextlib.suppress(subprocess.CalledProcessError):
        project.cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
    project.cluster.wait_for_state("idle", node)


def fail(project: ClusterProject, node: str) -> None:
    project.cluster.stop_node(node, signal.SIGKILL)
    project.cluster.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=broken")


def test_a_worker_on_a_node_that_slurm_presumes_failed_stays_the_only_owner_of_its_jobs(
    project: ClusterProject, broken_node: str
) -> None:
    project.start("--jobs", "2")
    project.wait_for_beginnings(2)
    assert project.cluster.run("squeue", "--noheader", "--format=%N") == broken_node
    fail(project, broken_node)
    wait_until(lambda: "RUNNING" not in project.cluster.jobs().values())
    time.sleep(2)
    project.go()
    project.end_well()
    assert project.lines("began") == project.lines("done")
    # No process can end it any more: it ends by itself, since the run is over.
    wait_until(lambda: not project.worker_processes())
    assert project.cluster.jobs() == {}


def test_jobs_of_a_node_that_died_are_done_elsewhere(
    project: ClusterProject, broken_node: str
) -> None:
    project.start()
    project.wait_for_beginnings(2)
    [worker] = project.worker_processes()
    supervisor = worker.parent()
    fail(project, broken_node)
    for process in (supervisor, worker):
        assert process is not None
        process.kill()
    project.wait_for_beginnings(4, seconds=60)
    assert "(NODE_FAIL)" in project.said
    project.go()
    project.end_well()
    assert set(project.lines("done")) == {"0", "1"}
    assert project.cluster.jobs() == {}
