"""A scaling study over nodes: points of one batch with allocations of different shapes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import SlurmCluster
from support import REPOSITORY, git, write

from snakemake_kochi.worker import start_command

PROFILE = REPOSITORY / "profiles" / "cluster"
CONFIGURATION = "machines: {own: {scheduler: slurm, allocation: {idle_timeout: 1s}}}\n"
STUDY = """
    default_queue: study
    build: {script: 'echo "$SLURM_JOB_NUM_NODES" > built'}
    run:
      exclusive: false
      resources:
        nodes: $nodes
        tasks_per_node: $tasks
        mem_mb: "`100 * $tasks`"
        runtime: 5
      script: |
        srun printenv SLURMD_NODENAME | sort | tr '\\n' ' '
        echo "$SLURM_JOB_NUM_NODES"
    batches:
      all:
        params: {nodes: [COUNTS], tasks: 2}
        artifacts: [{type: stdout, dest: "study/${nodes}_${tasks}.txt"}]
    """
SNAKEFILE = """
    from snakemake_kochi import snakefile

    module kochi:
        snakefile: snakefile()
        config: config

    use rule * from kochi
    """


@pytest.fixture
def run(tmp_path: Path, cluster: SlurmCluster, snakemake: Callable[..., Any]) -> Callable[..., Any]:
    """Run the study with these numbers of nodes."""

    def call(nodes: str, *arguments: str) -> Any:
        write(tmp_path / "study.yaml", STUDY.replace("COUNTS", nodes))
        write(tmp_path / "Snakefile", SNAKEFILE)
        write(tmp_path / "kochi.yaml", CONFIGURATION)
        write(tmp_path / ".gitignore", "results/\n.snakemake/\n")
        git(tmp_path, "init", "--quiet")
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "--quiet", "-m", "study")
        environment = {**cluster.environment, "KOCHI_DEFAULT_MACHINE": "own"}
        command = ("--profile", str(PROFILE), "study_all", *arguments)
        return snakemake(*command, cwd=tmp_path, env=environment, timeout=100)

    return call


def test_points_of_one_batch_have_allocations_of_different_shapes(
    run: Callable[..., Any], tmp_path: Path, cluster: SlurmCluster
) -> None:
    before = len(cluster.calls("sbatch"))
    done = run("1, 2")
    assert done.returncode == 0, done.stdout
    found = {
        file.stem: file.read_text().splitlines()[-3].split()
        for file in (tmp_path / "results/own/study").glob("*.txt")
    }
    node = found["1_2"][0]
    assert found == {
        "1_2": [node, node, "1"],
        "2_2": ["node1", "node1", "node2", "node2", "2"],
    }
    shapes = [
        call.partition(" --nodes=")[2].split()[0] for call in cluster.calls("sbatch")[before:]
    ]
    # For the build first, and then for each point at once.
    assert shapes[0] == "1" and sorted(shapes[1:]) == ["1", "2"]
    # As `kochi show pipeline` says beforehand and afterwards.
    words = ["show", "pipeline", "study.yaml", "all", "-w", "nodes=2", "--json"]
    shown = subprocess.run(
        [sys.executable, "-P", "-m", "snakemake_kochi.cli", *words],
        cwd=tmp_path,
        env={
            **cluster.environment,
            "KOCHI_DEFAULT_MACHINE": "own",
            "KOCHI_ROOT": os.environ["KOCHI_ROOT"],
        },
        capture_output=True,
        timeout=60,
    )
    assert shown.returncode == 0, shown.stderr
    found = json.loads(shown.stdout)["stages"]
    stages = {each["name"]: each["text"] for each in found}
    assert stages["allocation"], found[1]["note"]
    program, *options = shlex.split(stages["allocation"].partition(" <<")[0])
    of_two_nodes = next(c for c in cluster.calls("sbatch")[before:] if "--nodes=2" in c)
    assert program == "sbatch"
    assert _without_names(options) == _without_names(of_two_nodes.split())
    # That of this environment, in which nothing chooses the next queue.
    start = shlex.join(start_command("")).removesuffix(" ''")
    assert f"\nexec {start} " in stages["allocation"]
    # Named after the queue that the batch names, and removed with the run.
    assert "-study-2_nodes_2_tasks" in done.stdout
    names = (Path(os.environ["KOCHI_ROOT"]) / "machines/own/queues").iterdir()
    assert [each.name for each in names if each.name.startswith("run-")] == []


def _without_names(options: Sequence[str]) -> list[str]:
    """Options of sbatch without those that have the number of a run."""
    return [each for each in options if not each.startswith(("--job-name=", "--output="))]


def test_a_point_with_too_many_nodes_is_named_beforehand_and_fails_alone(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    done = run("1, 3")
    assert done.returncode == 1
    told, _, _ = done.stdout.partition(" steps (")
    assert (
        "study.yaml: batch all, nodes=3: rule run_study_all: one allocation requests 3 nodes, but "
        "partition main has 2" in told
    )
    assert "nodes=1" not in told
    # The profile has --keep-going.
    made = (tmp_path / "results/own/study").glob("*.txt")
    assert [file.name for file in made] == ["1_2.txt"]
