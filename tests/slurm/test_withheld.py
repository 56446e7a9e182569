"""Nodes of which Slurm keeps a part, and partitions that give less than a node has."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_project import ClusterProject
from slurm_cluster import SlurmCluster

from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.machines import Machine
from snakemake_kochi.schedulers.interface import AllocationSettings
from snakemake_kochi.schedulers.native import system

PARTITIONS = (
    "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE",
    "PartitionName=small Nodes=ALL MaxTime=INFINITE MaxCPUsPerNode=2 MaxMemPerNode=1500",
)
MANY = """
    rule all:
        input: expand("out/{i}", i=range(6))

    rule job:
        output: "out/{i}"
        resources: mem_mb=490
        shell: "echo $SLURM_CPUS_ON_NODE $SLURM_MEM_PER_NODE > {output}"
"""
AFTER_ANOTHER = """
    rule build:
        output: "built"
        shell: "echo $SLURM_CPUS_ON_NODE > {output}"

    rule job:
        input: "built"
        output: "out/0"
        resources: kochi_exclusive=1
        shell: "echo $SLURM_CPUS_ON_NODE $SLURM_MEM_PER_NODE > {output}"
"""


SLURM = {
    "nodes": 1,
    "cpus": 4,
    "partitions": PARTITIONS,
    "of_nodes": ("CoreSpecCount=1 MemSpecLimit=1000",),
}


def test_no_more_is_requested_than_jobs_can_have(
    tmp_path: Path, isolated_environment: Path, cluster: SlurmCluster
) -> None:
    with ClusterProject(tmp_path / "project", isolated_environment, cluster) as project:
        project.configure(partition="small", max_workers=1)
        project.write_jobs(0, MANY)
        project.start()
        assert project.runs[-1].wait(120) == 0, project.said
        assert (project.directory / "out" / "0").read_text().strip() == "2 1492"


def test_an_exclusive_job_does_not_begin_on_a_part_of_a_node(
    tmp_path: Path, isolated_environment: Path, cluster: SlurmCluster
) -> None:
    with ClusterProject(tmp_path / "project", isolated_environment, cluster) as project:
        project.configure(max_workers=2)
        project.write_jobs(0, AFTER_ANOTHER)
        project.start("out/0")
        assert project.runs[-1].wait(120) == 0, project.said
        given = [(project.directory / name).read_text().strip() for name in ("built", "out/0")]
        assert given == ["1", "3 3096"]
        assert "exclusive node" in project.said


def test_the_facts_of_the_machine_are_what_jobs_can_have(
    cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    for partition, cores, memory in ((None, 3, 3096), ("small", 2, 1500)):
        wanted = FrozenDict({} if partition is None else {"partition": partition})
        settings = AllocationSettings(wanted)
        facts = dict(system("slurm").node_facts(settings, Machine("own").allocation_at))
        sockets = facts.pop("sockets")  # as the daemon of the node found them, or configured
        assert sockets >= 1
        assert facts == {"cores": cores, "memory_mb": memory, "gpus": 0, "nodes": 1}
