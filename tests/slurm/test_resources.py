"""Resources of rules in the words of Snakemake's Slurm executor, and the requests to a real
Slurm."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster
from support import REPOSITORY, git, write

from snakemake_kochi.paths import Root

PROFILE = REPOSITORY / "profiles" / "cluster"
CONFIGURATION = """
    machines:
      own:
        scheduler: slurm
        allocation: {partition: main, time: 10, idle_timeout: "0:00:01"}
"""
ECHO = "echo $SLURM_JOB_ID $SLURM_JOB_PARTITION $SLURMD_NODENAME > {output}"


class Project:
    """A project on a machine with a Slurm; `submissions`: the arguments of each sbatch."""

    def __init__(self, directory: Path, cluster: SlurmCluster, snakemake: Callable) -> None:
        self.directory = directory
        self._cluster = cluster
        self._snakemake = snakemake
        self._before = len(cluster.calls("sbatch"))
        directory.mkdir()
        git(directory, "init", "--quiet")
        write(directory / "kochi.yaml", CONFIGURATION)

    def run(self, snakefile: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        write(self.directory / "Snakefile", snakefile.replace("ECHO", ECHO))
        environment = {**self._cluster.environment, "KOCHI_DEFAULT_MACHINE": "own"}
        return self._snakemake(
            *("--profile", str(PROFILE), *arguments),
            cwd=self.directory,
            env=environment,
        )

    @property
    def submissions(self) -> list[str]:
        return self._cluster.calls("sbatch")[self._before :]

    def said(self, name: str) -> list[str]:
        return (self.directory / name).read_text().split()


@pytest.fixture
def project(tmp_path: Path, cluster: SlurmCluster, snakemake) -> Project:
    return Project(tmp_path / "project", cluster, snakemake)


def test_jobs_run_in_allocations_by_their_resources_and_equal_jobs_share_them(
    project: Project, cluster: SlurmCluster, isolated_environment: Path
) -> None:
    done = project.run(
        """
        rule all:
            input: expand("{rule}{i}", rule=["long", "big", "plain"], i=range(2))

        rule long:
            output: "long{i}"
            resources: slurm_partition="long", tasks=1, nodes=1
            shell: "ECHO"

        rule big:
            output: "big{i}"
            resources: constraint="big", slurm_extra="'--comment=mine --nice=3'"
            shell: "ECHO"

        rule plain:
            output: "plain{i}"
            resources: disk_mb=10**9
            shell: "ECHO"
        """
    )
    assert done.returncode == 0
    said = {name: [project.said(f"{name}{i}") for i in range(2)] for name in ("long", "big")}
    assert {tuple(words[1:]) for words in said["long"]} == {("long", "node2")}
    assert {words[1] for words in said["big"]} == {"main"}
    assert {project.said(f"plain{i}")[1] for i in range(2)} == {"main"}
    assert len(project.submissions) == 3
    (big,) = [call for call in project.submissions if "--constraint=big" in call]
    assert "--comment=mine --nice=3" in big
    assert "--partition=main" in big
    assert cluster.jobs() == {}
    assert list(Root(isolated_environment).machine("own").queues.iterdir()) == []


def test_a_workflow_profile_made_for_the_slurm_executor_works_unchanged(project: Project) -> None:
    write(
        project.directory / "for-slurm" / "config.yaml",
        """
        default-resources:
          slurm_partition: long
          slurm_account: "'me'"
          runtime: 5
          mem_mb_per_cpu: 100
          cpus_per_task: 2
          slurm_extra: "'--comment=mine'"
        set-resources:
          b:
            slurm_partition: main
            mem: 300M
            mem_mb_per_cpu: 0
        """,
    )
    done = project.run(
        """
        rule all:
            input: "a", "b"

        rule a:
            output: "a"
            shell: "ECHO"

        rule b:
            output: "b"
            shell: "ECHO"
        """,
        *("--workflow-profile", "for-slurm"),
    )
    assert done.returncode == 0
    assert (project.said("a")[1], project.said("b")[1]) == ("long", "main")
    a, b = sorted(project.submissions, key=lambda call: "--partition=main" in call)
    for call in (a, b):
        assert "--account=me" in call
        assert "--cpus-per-task=2 " in call
        assert "--comment=mine" in call
    # The memory of the job, and the worker's.
    assert f"--mem={200 + 512}M" in a
    assert f"--mem={300 + 512}M" in b


def test_an_mpi_job_has_an_allocation_of_its_own_over_several_nodes(project: Project) -> None:
    done = project.run(
        """
        rule all:
            input: "many", "one"

        rule many:
            output: "many"
            resources: mpi="srun", tasks_per_node=2, nodes=2, mem_mb=200, runtime=5
            shell: "{resources.mpi} bash -c 'echo $SLURM_PROCID-$SLURMD_NODENAME' > {output}"

        rule one:
            output: "one"
            shell: "ECHO"
        """
    )
    assert done.returncode == 0
    assert sorted(project.said("many")) == ["0-node1", "1-node1", "2-node2", "3-node2"]
    (call,) = [call for call in project.submissions if "--ntasks-per-node=2" in call]
    assert "--nodes=2" in call
    assert f"--mem={200 + 512}M" in call
    assert "--exclusive" not in call


def test_idle_workers_make_room_for_jobs_that_request_another_allocation(
    project: Project,
) -> None:
    """The cluster has no more nodes."""
    write(
        project.directory / "kochi.yaml",
        """
        machines:
          own:
            scheduler: slurm
            allocation: {time: 10, idle_timeout: 10, arguments: [--nodelist=node2]}
        """,
    )
    done = project.run(
        """
        rule all:
            input: "b"

        rule a:
            output: "a"
            threads: 2
            shell: "ECHO"

        rule b:
            input: "a"
            output: "b"
            resources: slurm_partition="long"
            shell: "ECHO"
        """
    )
    # With the idle timeout of ten minutes it would not have ended yet.
    assert done.returncode == 0
    assert [project.said(name)[1] for name in "ab"] == ["main", "long"]
    assert len(project.submissions) == 2
    idle = project.said("a")[0]
    assert f"Ended idle allocations to make room for other jobs: {idle}" in done.stdout


def test_the_resources_of_a_group_count_together(project: Project) -> None:
    done = project.run(
        """
        rule all:
            input: "b"

        rule a:
            output: "a"
            group: "ab"
            resources: slurm_partition="long", mem_mb=100, runtime=2
            shell: "ECHO"

        rule b:
            input: "a"
            output: "b"
            group: "ab"
            resources: slurm_partition="long", mem_mb=300, runtime=3
            shell: "ECHO"
        """
    )
    assert done.returncode == 0
    assert project.said("a") == project.said("b")
    assert project.said("a")[1:] == ["long", "node2"]
    (call,) = project.submissions
    assert f"--mem={300 + 512}M" in call


def test_jobs_in_a_named_queue_get_allocations_as_they_request_them(project: Project) -> None:
    done = project.run(
        """
        rule all:
            input: "0", "1"

        rule a:
            output: "{i}"
            resources: slurm_partition="long", slurm_qos="x", kochi_queue="q"
            shell: "ECHO"
        """
    )
    assert done.returncode == 0
    assert "no effect" not in done.stdout
    assert done.stdout.count("resource slurm_qos is not known; did you mean 'qos'?") == 1
    assert project.said("0")[1] == "long"


def test_a_retry_that_requests_too_much_fails_and_others_go_on(project: Project) -> None:
    done = project.run(
        """
        rule all:
            input: "a", "b"

        rule a:
            output: "a"
            resources: mem_mb=lambda wildcards, attempt: 3000 * attempt
            retries: 1
            shell: "touch begun; exit 1"

        rule b:
            output: "b"
            shell: "while [ ! -e go ]; do [ ! -e begun ] || {{ sleep 2; touch go; }}; done; ECHO"
        """,
        "--keep-going",
    )
    assert done.returncode == 1
    said = (
        "rule a: no allocation on machine own can run it: 6000 MiB of memory needed, 4096 available"
    )
    assert said in done.stdout
    assert "Traceback" not in done.stdout
    assert project.said("b")[1] == "main"
    assert not (project.directory / "a").exists()
