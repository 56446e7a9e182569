"""Kochi's habits on a machine with an `alloc_script` and no `scheduler`, as Kochi users have it;
the script puts workers into a real Slurm."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from seen import list_workers
from slurm_cluster import SlurmCluster
from support import git, printed, run, wait_until, write

from snakemake_kochi.paths import MachinePaths, Root

KOCHI = (sys.executable, "-P", "-m", "snakemake_kochi.cli")
SCRIPT = (
    'sbatch --wrap="$KOCHI_WORKER_LAUNCH_CMD" -o /dev/null -w NODES '
    "-t ${KOCHI_ALLOC_TIME_LIMIT:-10}"
)
KOCHI_YAML = """
    machines:
      own:
        alloc_script: SCRIPT
        load_env_script:
          on_login_node: export LOADED=login
          on_machine: export LOADED=compute
    dependencies:
      fetched:
        script: echo $LOADED ${SLURM_JOB_ID-none} > $KOCHI_INSTALL_PREFIX/where
        recipes:
          - name: here
          - {name: there, on_machine: true}
"""
EXPERIMENT = """
    depends: [{name: fetched, recipe: RECIPE}]
    default_params: {n: 0}
    default_name: job_${n}
    default_queue: jobs
    batches:
      test:
        params: {n: [POINTS]}
        artifacts: [{type: stdout, dest: "${n}.log"}]
    build:
      script: echo ${SLURM_JOB_ID-none} > built
    run:
      depend_params: [n]
      script: |
        echo "$(cat built) ${SLURM_JOB_ID-none} $(cat $KOCHI_INSTALL_PREFIX_FETCHED/where) $LOADED"
"""


class Project:
    """A Kochi project; `submitted`: the number of calls of its script."""

    def __init__(self, directory: Path, root: Path, cluster: SlurmCluster) -> None:
        self.directory = directory
        self.cluster = cluster
        self.machine: MachinePaths = Root(root).machine("own")
        self._before = len(cluster.calls("sbatch"))
        directory.mkdir()
        git(directory, "init", "--quiet")
        write(directory / ".gitignore", "results/\n.snakemake/\nsaid\n")
        self.configure("node1", "here")

    def configure(self, nodes: str, recipe: str, points: str = "1, 2, 3") -> None:
        script = SCRIPT.replace("NODES", nodes)
        write(self.directory / "kochi.yaml", KOCHI_YAML.replace("SCRIPT", script))
        experiment = EXPERIMENT.replace("RECIPE", recipe).replace("POINTS", points)
        write(self.directory / "job.yaml", experiment)

    @property
    def environment(self) -> dict[str, str]:
        return {**self.cluster.environment, "KOCHI_DEFAULT_MACHINE": "own"}

    def kochi(self, *words: str) -> str:
        done = run(*KOCHI, *words, cwd=self.directory, env=self.environment)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        with open(self.directory / "said", "wb") as said:
            return subprocess.Popen(
                [*KOCHI, *words],
                cwd=self.directory,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )

    @property
    def said(self) -> str:
        return (self.directory / "said").read_text()

    @property
    def submitted(self) -> int:
        return len(self.cluster.calls("sbatch")) - self._before

    def where(self) -> list[list[str]]:
        """Of each point, the Slurm jobs of its build and its run, the environment and the Slurm job
        of the installation, and the environment of the run."""
        logs = sorted((self.directory / "results" / "own").glob("*.log"))
        return [printed(log.read_text()).split() for log in logs]


@pytest.fixture
def project(tmp_path: Path, isolated_environment: Path, cluster: SlurmCluster) -> Iterator[Project]:
    made = Project(tmp_path / "project", isolated_environment, cluster)
    yield made
    cluster.cancel_jobs()
    wait_until(lambda: all(worker.is_gone for worker in list_workers(made.machine)))


def test_a_batch_runs_on_the_nodes_of_the_script_and_installs_on_the_login_node(
    project: Project,
) -> None:
    # Of several points, some that take long enough would be worth one more allocation.
    project.configure("node1", "here", points="1")
    project.kochi("batch", "job.yaml", "test")
    ((built, ran, *rest),) = project.where()
    assert built == ran != "none"  # one allocation for the build and the run
    assert rest == ["login", "none", "compute"]
    # The login node had only the controller.
    assert all(worker.allocation is not None for worker in list_workers(project.machine))
    assert project.submitted == 1


def test_a_batch_finds_what_kochi_install_installed_on_a_compute_node(project: Project) -> None:
    project.configure("node1", "there")
    said = project.kochi("install", "-d", "fetched:there")
    assert "--executor kochi" in said
    assert project.submitted == 1
    said = project.kochi("batch", "job.yaml", "test")
    assert "install_fetched" not in said
    for _, _, loaded, installed, _ in project.where():
        assert loaded == "compute"
        assert installed != "none"


def test_a_batch_uses_workers_started_for_its_queue_before(project: Project) -> None:
    project.kochi("alloc", "-q", "jobs", "-b")
    wait_until(lambda: any(worker.state == "running" for worker in list_workers(project.machine)))
    project.kochi("batch", "job.yaml", "test")
    assert len({job for built, ran, *_ in project.where() for job in (built, ran)}) == 1
    assert project.submitted == 1
    assert len(list_workers(project.machine)) == 1


def test_a_batch_waits_for_workers_if_only_a_person_can_choose_the_nodes(
    project: Project,
) -> None:
    project.configure("$KOCHI_ALLOC_NODE_SPEC", "here")
    batch = project.start("batch", "job.yaml", "test")
    try:
        wait_until(lambda: "kochi alloc" in project.said or batch.poll() is not None)
        assert (
            "Queue jobs needs a worker that you start: machines: own: alloc_script in kochi.yaml "
            "reads $KOCHI_ALLOC_NODE_SPEC, but machines: own: allocation: node_spec in kochi.yaml "
            "is not set. To start one, "
        ) in project.said
        assert "type: kochi alloc -m own -q jobs -n SPEC" in project.said
        assert project.submitted == 0
        # Without -b, although the queue is empty for a moment after the build.
        project.kochi("alloc", "-m", "own", "-q", "jobs", "-n", "node2")
        assert batch.wait(120) == 0, project.said
    finally:
        batch.kill()
        batch.wait()
    assert len({job for built, ran, *_ in project.where() for job in (built, ran)}) == 1
    assert project.submitted == 1
    assert len(list_workers(project.machine)) == 1
