"""Runs whose workers are in allocations of a real Slurm."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster
from support import REPOSITORY, git, write

PROFILE = REPOSITORY / "profiles" / "cluster"
CONFIGURATION = "machines: {own: {scheduler: slurm, allocation: {max_workers: 2, time: 10}}}\n"
SNAKEFILE = """
    rule all:
        input: expand("out/{i}", i=range(COUNT))

    rule job:
        output: "out/{i}"
        shell: "echo $SLURM_JOB_ID $SLURMD_NODENAME > {output}"
"""


class Project:
    """A project on a machine with a Slurm; `submissions`: the arguments of each sbatch."""

    def __init__(self, directory: Path, cluster: SlurmCluster, snakemake: Callable) -> None:
        self.directory = directory
        self.cluster = cluster
        self._snakemake = snakemake
        self._before = len(cluster.calls("sbatch"))
        git(directory, "init", "--quiet")
        write(directory / "kochi.yaml", CONFIGURATION)

    @property
    def environment(self) -> dict[str, str]:
        return {**self.cluster.environment, "KOCHI_DEFAULT_MACHINE": "own"}

    def write(self, snakefile: str, count: int = 0) -> None:
        write(self.directory / "Snakefile", snakefile.replace("COUNT", str(count)))

    def run(self, *arguments: str):
        return self._snakemake(
            "--profile", str(PROFILE), *arguments, cwd=self.directory, env=self.environment
        )

    @property
    def submissions(self) -> list[str]:
        return self.cluster.calls("sbatch")[self._before :]

    def shown(self, format: str) -> list[str]:
        """What squeue says of the allocations of the last submission, ended ones included."""
        name = self.submissions[-1].partition("--job-name=")[2].split()[0]
        said = ("--states=all", "--noheader", f"--name={name}", f"--format={format}")
        return [line.strip() for line in self.cluster.run("squeue", *said).splitlines()]

    def outputs(self) -> dict[str, list[str]]:
        files = (self.directory / "out").iterdir()
        return {file.name: file.read_text().split() for file in files}


@pytest.fixture
def project(tmp_path: Path, cluster: SlurmCluster, snakemake) -> Project:
    directory = tmp_path / "project"
    directory.mkdir()
    return Project(directory, cluster, snakemake)


def test_many_jobs_run_in_few_allocations_and_none_is_left(project: Project) -> None:
    project.write(SNAKEFILE, 40)
    done = project.run()
    assert done.returncode == 0, done.stdout
    outputs = project.outputs()
    assert len(outputs) == 40
    assert {node for _, node in outputs.values()} <= {"node1", "node2"}
    assert len({job for job, _ in outputs.values()}) <= 2
    assert project.cluster.jobs() == {}
    (shown,) = set(project.shown("%j %T %k"))
    assert re.fullmatch(
        r"kochi-project-job-\d+-[0-9a-f]{8} COMPLETED kochi:project=project:rules=job", shown
    )
    # Without work nothing is submitted.
    for arguments in ((), ("-n", "--forceall")):
        assert project.run(*arguments).returncode == 0
    assert len(project.submissions) == 1


def test_workers_get_nothing_of_the_slurm_job_of_their_controller(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write(
        SNAKEFILE.replace(
            "$SLURM_JOB_ID $SLURMD_NODENAME", "${{SLURM_OUTER-none}} $SLURM_CPUS_PER_TASK"
        ),
        2,
    )
    for name, value in {"OUTER": "outer", "CPUS_PER_TASK": "7", "MEM_PER_NODE": "1"}.items():
        monkeypatch.setitem(os.environ, f"SLURM_{name}", value)
    done = project.run()
    assert done.returncode == 0, done.stdout
    assert list(project.outputs().values()) == [["none", "1"]] * 2


def test_a_job_finds_all_nodes_of_its_allocation_and_starts_steps_on_them(
    project: Project,
) -> None:
    write(project.directory / "kochi.yaml", CONFIGURATION.replace("time: 10", "nodes: 2"))
    project.write(
        """
        rule all:
            input: "out/0"

        rule job:
            output: "out/0"
            threads: 2
            shell:
                "echo $KOCHI_NODELIST ${{SLURM_CPU_BIND-none}} > {output}; "
                "cat $KOCHI_HOSTFILE >> {output}; "
                "srun --ntasks-per-node=1 printenv SLURMD_NODENAME | sort >> {output}"
        """
    )
    done = project.run()
    assert done.returncode == 0, done.stdout
    said = (project.directory / "out" / "0").read_text().splitlines()
    assert said == [
        "node1,node2 none",
        "node1 slots=2",
        "node2 slots=2",
        "node1",
        "node2",
    ]
    assert len(project.submissions) == 1
    assert project.cluster.jobs() == {}
