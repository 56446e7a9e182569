"""How large the allocations are that a real Slurm is asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster_project import ClusterProject
from slurm_cluster import SlurmCluster

from snakemake_kochi.queue import list_workers

LONGEST = """
    rule all:
        input: "out/0"

    rule job:
        output: "out/0"
        resources: runtime=3, mem_mb=650
        shell: "echo $SLURM_JOB_ID >> done-0; touch {output}"
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    partitions = ("PartitionName=main Nodes=ALL Default=YES MaxTime=3",)
    with SlurmCluster(nodes=2, cpus=4, partitions=partitions) as cluster:
        yield cluster


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
    # The worker asks nobody for its end.
    assert not [call for call in project.cluster.calls("squeue") if "%L" in call]
