"""Nodes that cannot begin an allocation, which Slurm then cancels."""

from __future__ import annotations

from pathlib import Path

from cluster_project import ClusterProject
from slurm_cluster import SlurmCluster

SNAKEFILE = """
    rule job:
        output: "out/0"
        shell: "echo $SLURM_JOB_ID $SLURMD_NODENAME > {output}"
"""


def test_an_allocation_that_its_node_cannot_begin_makes_the_run_request_another_one(
    tmp_path: Path, isolated_environment: Path
) -> None:
    prolog = tmp_path / "prolog"
    prolog.write_text('#!/bin/sh\n[ "$SLURMD_NODENAME" != node1 ]\n')
    prolog.chmod(0o755)
    # For the first one alone, and permanently: Slurm drains the node.
    with (
        SlurmCluster(nodes=2, cpus=1, settings=(f"Prolog={prolog}",)) as cluster,
        ClusterProject(tmp_path / "project", isolated_environment, cluster) as project,
    ):
        project.write_jobs(0, SNAKEFILE)
        project.start()
        assert project.runs[-1].wait(120) == 0, project.said
        # Slurm does not tell it from an allocation that a person cancelled.
        assert "Cancelled before a worker started, and not by this run: 1." in project.said
        assert "avoids node" not in project.said
        assert (project.directory / "out" / "0").read_text().split() == ["2", "node2"]
        assert cluster.jobs() == {}


def test_a_root_that_no_node_can_write_is_said_to_be_the_cause_and_no_node_is_blamed(
    tmp_path: Path, isolated_environment: Path
) -> None:
    with (
        SlurmCluster(nodes=3, cpus=1, apart=True) as cluster,
        ClusterProject(tmp_path / "project", isolated_environment, cluster) as project,
    ):
        isolated_environment.mkdir(exist_ok=True)
        root = str(isolated_environment)
        for node in ("node1", "node2", "node3"):
            cluster.run_on(node, "mount", "--bind", root, root)
            cluster.run_on(node, "mount", "-o", "remount,ro,bind", root)
        project.write_jobs(0, SNAKEFILE)
        project.start()
        assert project.runs[-1].wait(120) == 1, project.said
        allocations = project.machine.allocations
        (cause,) = (line for line in project.said.splitlines() if "no worker exists" in line)
        assert f"none starts: no log was written to {allocations} (JobLaunchFailure), each" in cause
        assert "in HOME, which may be read-only on them" in project.said
        assert "Tell the administrators" not in project.said
