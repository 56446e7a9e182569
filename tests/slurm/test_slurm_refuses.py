"""Runs whose allocations Slurm refuses, for ever or for now."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from cluster_project import ClusterProject
from slurm_cluster import SlurmCluster
from support import REPOSITORY, git, wait_until, write

PROFILE = REPOSITORY / "profiles" / "cluster"
SNAKEFILE = """
    rule job:
        output: "out"
        shell: "touch {output}"
"""


@pytest.fixture
def run(tmp_path: Path, cluster: SlurmCluster, snakemake):
    git(tmp_path, "init", "--quiet")

    def call(allocation: str, snakefile: str = SNAKEFILE, path: str = ""):
        text = f"machines: {{own: {{scheduler: slurm, allocation: {{{allocation}}}}}}}\n"
        write(tmp_path / "kochi.yaml", text)
        write(tmp_path / "Snakefile", snakefile)
        environment = {**cluster.environment, "KOCHI_DEFAULT_MACHINE": "own"}
        environment["PATH"] = f"{path}:{environment['PATH']}"
        return snakemake("--profile", str(PROFILE), cwd=tmp_path, env=environment)

    return call


def submissions(cluster: SlurmCluster) -> int:
    return len(cluster.calls("sbatch"))


def test_an_unknown_partition_is_reported_before_any_submission(run, cluster):
    before = submissions(cluster)
    done = run("partition: mian")
    assert done.returncode == 1
    assert "Slurm knows no partition 'mian' with nodes: did you mean 'main'?" in done.stdout
    assert "machines: own: allocation: partition in kochi.yaml" in done.stdout
    assert "Traceback" not in done.stdout
    assert submissions(cluster) == before


def test_a_refusal_ends_the_run_once_in_sbatchs_words_with_the_key_to_change(run, cluster):
    before = submissions(cluster)
    done = run("constraint: nosuch")
    assert done.returncode == 1
    assert "Invalid feature specification" in done.stdout
    assert "See machines: own: allocation: constraint in kochi.yaml" in done.stdout
    assert "Traceback" not in done.stdout
    assert ".py" not in done.stdout.partition("Invalid feature specification")[2]
    assert submissions(cluster) == before + 1
    assert cluster.jobs() == {}


def test_a_submission_whose_answer_is_lost_is_one_allocation(run, cluster, tmp_path):
    programs = tmp_path / "programs"
    programs.mkdir()
    sbatch = programs / "sbatch"
    sbatch.write_text(
        f'#!/bin/sh\n{cluster.directory}/bin/sbatch "$@" >/dev/null\n'
        "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv "
        "operation' >&2\nexit 1\n"
    )
    sbatch.chmod(0o755)
    before = submissions(cluster)
    done = run("max_workers: 1", path=str(programs))
    assert done.returncode == 0
    assert submissions(cluster) == before + 1
    assert cluster.jobs() == {}


def test_a_run_without_squeue_and_without_a_database_succeeds(run, cluster, tmp_path):
    programs = tmp_path / "programs"
    programs.mkdir()
    for program in ("squeue", "sacct"):
        path = programs / program
        path.write_text("#!/bin/sh\necho 'Slurm accounting storage is disabled' >&2\nexit 1\n")
        path.chmod(0o755)
    done = run("max_workers: 1", path=str(programs))
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "out").exists()
    cluster.cancel_jobs()


def test_hopeless_waits_are_reported_with_the_settings_to_change(
    cluster, tmp_path, isolated_environment
):
    with ClusterProject(tmp_path / "project", isolated_environment, cluster) as project:
        project.configure(partition="short", time=10, max_workers=2)
        project.start()
        assert project.runs[-1].wait(90) != 0
        assert "the longest time of partition short is 0:02:00" in project.said
        # A QOS may allow more than the partition, but this one does not.
        project.configure(partition="short", time=10, max_workers=2, qos="normal")
        project.start()
        wait_until(lambda: "PartitionTimeLimit" in project.said)
        os.killpg(project.runs[-1].pid, signal.SIGINT)
        assert project.runs[-1].wait(90) != 0
        assert project.said.count("PartitionTimeLimit") == 1
        assert "PartitionTimeLimit. It does not begin by itself. Change machines: own: " in (
            project.said
        )
        assert cluster.jobs() == {}


def test_a_run_goes_on_while_nothing_can_be_submitted(run, cluster, tmp_path):
    programs = tmp_path / "programs"
    programs.mkdir()
    sbatch = programs / "sbatch"
    sbatch.write_text(
        f"#!/bin/sh\necho >> {tmp_path}/calls\n"
        f'[ $(wc -l < {tmp_path}/calls) -lt 3 ] || exec {cluster.directory}/bin/sbatch "$@"\n'
        "echo 'sbatch: error: Batch job submission failed: Unable to contact slurm controller "
        "(connect failure)' >&2\nexit 1\n"
    )
    sbatch.chmod(0o755)
    before = submissions(cluster)
    done = run("max_workers: 1", path=str(programs))
    assert done.returncode == 0, done.stdout
    assert submissions(cluster) == before + 1
    assert cluster.jobs() == {}
