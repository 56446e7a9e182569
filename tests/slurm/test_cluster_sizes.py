"""The number of allocations of a run as jobs come and go, on a real Slurm."""

from __future__ import annotations

import time

from cluster_project import ClusterProject
from support import wait_until

# Two jobs that stay until they may go, one that waits for them, and one that may begin later. Each
# takes a node.
SNAKEFILE = """
    rule all:
        input: "out/first", "out/second", "out/third"

    rule job:
        output: "out/{name}"
        input: lambda job: ["out/gate"] if job.name in ("second", "third") else []
        threads: 2
        shell:
            "echo $SLURM_JOB_ID >> began-{wildcards.name}; "
            "while [ ! -e go-{wildcards.name} ]; do sleep 0.1; done; "
            "echo $SLURM_JOB_ID >> done-{wildcards.name}; touch {output}"
"""

PAUSING = """
    localrules: all, pause

    rule all:
        input: "out/second"

    rule first:
        output: "out/first"
        shell: "echo $SLURM_JOB_ID >> done-first; touch {output}"

    rule pause:
        input: "out/first"
        output: "out/pause"
        shell: "while [ ! -e go-pause ]; do sleep 0.1; done; touch {output}"

    rule second:
        input: "out/pause"
        output: "out/second"
        shell: "echo $SLURM_JOB_ID >> done-second; touch {output}"
"""


def go(project: ClusterProject, *names: str) -> None:
    for name in names:
        (project.directory / f"go-{name}").touch()


def test_workers_are_requested_as_jobs_wait_and_leave_while_others_run(
    project: ClusterProject,
) -> None:
    project.configure(max_workers=2, idle_timeout="2s")
    project.write_jobs(0, SNAKEFILE)
    project.start()
    wait_until(lambda: set(project.lines("began")) == {"first", "gate"})
    assert len(project.cluster.jobs()) == 2
    # One of two is idle, and leaves.
    go(project, "gate")
    wait_until(
        lambda: (
            set(project.lines("began")) == {"first", "gate", "second"}
            or (set(project.lines("began")) == {"first", "gate", "third"})
        )
    )
    assert len(project.cluster.jobs()) == 2
    go(project, "second", "third")
    wait_until(lambda: {"second", "third"} <= set(project.lines("done")))
    wait_until(lambda: len(project.cluster.jobs()) == 1)
    assert "first" not in project.lines("done")
    go(project, "first")
    project.end_well()
    assert project.cluster.jobs() == {}


def test_an_allocation_for_which_no_job_waits_any_more_is_cancelled(
    project: ClusterProject,
) -> None:
    project.cluster.run(
        "sbatch", "--output=/dev/null", "--nodelist=node1", "--exclusive", "--wrap", "sleep 1000"
    )
    project.configure(max_workers=2, idle_timeout="30s")
    project.write_jobs(0, SNAKEFILE)
    project.start("out/first", "out/gate")
    project.wait_for_beginnings(1)
    wait_until(lambda: "PENDING" in project.cluster.jobs().values())
    # The existing worker takes the other job.
    [begun] = project.lines("began")
    go(project, begun)
    wait_until(lambda: "PENDING" not in project.cluster.jobs().values())
    # The run says so when it knows it.
    wait_until(lambda: "Cancelled allocations for which no job waits" in project.said)
    go(project, "first", "gate")
    project.end_well()


def test_min_workers_stay_although_no_job_waits(
    project: ClusterProject,
) -> None:
    project.configure(max_workers=1, min_workers=1, idle_timeout="1s")
    project.write_jobs(0, PAUSING)
    project.start()
    wait_until(lambda: "first" in project.lines("done"))
    before = project.cluster.jobs()
    time.sleep(5)
    assert project.cluster.jobs() == before
    go(project, "pause")
    project.end_well()
    assert project.lines("done")["first"] == project.lines("done")["second"]
    assert project.cluster.jobs() == {}
