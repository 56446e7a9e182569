"""Runs on one and on two nodes of a real Slurm, whose tasks srun and Open MPI's mpirun start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from slurm_cluster import APART, SlurmCluster
from support import REPOSITORY, git, write

SLURM = APART
PROFILE = REPOSITORY / "profiles" / "cluster"
KOCHI = """
machines:
  own:
    scheduler: slurm
    allocation: {max_workers: 2, time: 10}
    # The tests may be root.
    load_env_script: export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    launchers: {template: 'srun --overlap -N {nodes} -n {tasks} -w {nodelist}'}
"""
# Both launchers take the same script. Each task prints the host on which it is.
EXPERIMENT = """
run:
  launcher: $launcher
  resources: {nodes: $nodes, tasks_per_node: 2, cpus_per_task: 1}
  script: |
    echo "nodes $KOCHI_NODELIST"
    cat "$KOCHI_HOSTFILE"
    $KOCHI_LAUNCH sh -c 'echo "host $(hostname)"'
batches:
  nodes:
    params: {nodes: [1, 2], launcher: [srun, mpirun, template]}
    artifacts:
      - {type: stdout, dest: "hosts/${launcher}_${nodes}.txt"}
      - {type: stats, dest: "hosts/${launcher}_${nodes}.json"}
  isolated:
    params: {nodes: 2, launcher: [srun, mpirun]}
    run:
      isolate: files
      script: $KOCHI_LAUNCH sh -c 'echo "host $(hostname)"; ls -d ~/private . /opt || :'
    artifacts:
      - {type: stdout, dest: "isolated/${launcher}.txt"}
"""


# Of this Slurm; others have it in /etc/slurm and /run/munge.
ISOLATION = "    isolation: {{visible: {directory}}}\n"


@pytest.fixture
def project(tmp_path: Path, cluster: SlurmCluster) -> Path:
    directory = tmp_path / "project"
    directory.mkdir()
    write(directory / "kochi.yaml", KOCHI + ISOLATION.format(directory=cluster.directory))
    write(directory / "hosts.yaml", EXPERIMENT)
    git(directory, "init", "--quiet")
    git(directory, "add", ".")
    git(directory, "commit", "--quiet", "--message", "hosts")
    return directory


def hosts_in(output: str) -> list[str]:
    return sorted(line[5:] for line in output.splitlines() if line.startswith("host "))


def test_one_script_runs_on_one_and_two_nodes_with_each_launcher(
    project: Path, cluster: SlurmCluster, snakemake
) -> None:
    variables = {**cluster.environment, "KOCHI_DEFAULT_MACHINE": "own"}
    workflow = str(REPOSITORY / "workflow" / "Snakefile")
    done = snakemake(
        *("hosts_nodes", "hosts_isolated", "--profile", str(PROFILE), "--snakefile", workflow),
        cwd=project,
        env=variables,
    )
    assert done.returncode == 0, done.stdout
    results = project / "results" / "own" / "hosts"
    for launcher in ("srun", "mpirun", "template"):
        for nodes in (1, 2):
            said = (results / f"{launcher}_{nodes}.txt").read_text()
            record = json.loads((results / f"{launcher}_{nodes}.json").read_text())
            hosts = hosts_in(said)
            # Both of the CPUs of each node have a task.
            assert len(hosts) == 2 * nodes, said
            assert len(set(hosts)) == nodes
            assert f"nodes {','.join(sorted(set(hosts)))}" in said
            assert f"{hosts[0]} slots=2" in said
            assert record["launcher"]["tasks"] == 2 * nodes
    for launcher in ("srun", "mpirun"):
        said = (project / "results" / "own" / "isolated" / f"{launcher}.txt").read_text()
        assert len(set(hosts_in(said))) == 2, said
        assert said.count("cannot access '/opt'") == said.count("cannot access") / 2 == 4, said


def test_a_run_that_fails_without_mpi_in_slurm_says_what_to_set(
    tmp_path: Path, cluster: SlurmCluster, snakemake
) -> None:
    write(tmp_path / "kochi.yaml", "machines: {own: {scheduler: slurm}}")
    write(
        tmp_path / "mpi.yaml",
        """
        run:
          launcher: auto
          script: $KOCHI_LAUNCH sh -c 'exit 3'
        batches:
          bare: {}
          typed: {run: {script: SLURM_MPI_TYPE=none $KOCHI_LAUNCH sh -c 'exit 3'}}
        """,
    )
    git(tmp_path, "init", "--quiet")
    variables = {**cluster.environment, "KOCHI_DEFAULT_MACHINE": "own"}
    workflow = str(REPOSITORY / "workflow" / "Snakefile")
    done = snakemake(
        *("mpi_bare", "mpi_typed", "--profile", str(PROFILE), "--snakefile", workflow),
        cwd=tmp_path,
        env=variables,
    )
    assert done.returncode == 1
    told = {
        batch: done.stdout.partition(f"Failed: run_mpi_{batch}")[2].partition("see: kochi")[0]
        for batch in ("bare", "typed")
    }
    assert "export SLURM_MPI_TYPE" not in told["typed"]
    assert "srun: error: node" in told["bare"]
    assert "this Slurm has MpiDefault=none" in told["bare"]
    assert "'export SLURM_MPI_TYPE=pmix'" in told["bare"]
