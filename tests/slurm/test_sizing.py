"""The sizes of allocations that are requested from a real Slurm."""

from __future__ import annotations

import re

from cluster_project import ClusterProject
from seen import list_workers

LONGEST = """
    rule all:
        input: "out/0"

    rule job:
        output: "out/0"
        resources: runtime=3, mem_mb=650
        shell: "echo $SLURM_JOB_ID >> done-0; touch {output}"
"""


MIX = """
    rule all:
        input: expand("out/{n}", n=range(22))

    rule job:
        output: "out/{n}"
        resources:
            runtime=lambda job: 3 if job.n == "21" else 1,
            mem_mb=lambda job: 3400 if job.n == "20" else 50,
        shell: "echo $SLURM_JOB_ID >> done-{wildcards.n}; touch {output}"
"""


SLURM = {"cpus": 4, "partitions": ("PartitionName=main Nodes=ALL Default=YES MaxTime=3",)}


def test_a_job_may_take_all_the_time_of_a_partition_and_its_worker_keeps_memory_to_itself(
    project: ClusterProject,
) -> None:
    project.write_jobs(0, LONGEST)
    project.start()
    project.end_well()
    (call,) = project.cluster.calls("sbatch")
    assert "--time=0:03:00" in call
    assert f"--mem={650 + 512}M" in call
    (worker,) = list_workers(project.machine)
    assert worker.capacity.memory_mb == 650
    # The worker asks no command for its end.
    assert not [call for call in project.cluster.calls("squeue") if "%L" in call]


def test_short_large_and_long_jobs_are_requested_by_their_size(
    project: ClusterProject,
) -> None:
    project.configure(max_workers=8)
    project.write_jobs(0, MIX)
    before = len(project.cluster.calls("sbatch"))
    project.start()
    project.end_well()
    calls = project.cluster.calls("sbatch")[before:]
    asked = [
        (
            int(_said(call, r"--cpus-per-task=(\d+)")),
            int(_said(call, r"--mem=(\d+)M")) - 512,
            int(_said(call, r"--time=0:0(\d):00")),
            int(_said(call, r"--array=1-(\d+)", "1")),
        )
        for call in calls
    ]
    # More may have been requested if the first ones took long to begin.
    assert (1, 3400, 2, 1) in asked[:3]
    used = 20 + 1 + 3
    assert sum(cores * minutes * count for cores, _, minutes, count in asked[:3]) <= 1.5 * used
    assert len(calls) <= 10


def _said(call: str, pattern: str, default: str = "") -> str:
    found = re.search(pattern, call)
    return default if found is None else found[1]
