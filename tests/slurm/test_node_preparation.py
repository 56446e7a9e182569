"""A script once per node: in allocations of one and of two nodes of a real Slurm."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from cluster_project import ClusterProject
from slurm_cluster import APART
from support import printed, wait_until, write

from snakemake_kochi.artifacts.record import contradictions, todays_form

# Each node has processes, and a name, of its own.
SLURM = APART
SNAKEFILE = """
    from snakemake_kochi import snakefile

    module kochi:
        snakefile: snakefile()
        config: config

    use rule * from kochi
    """
# A run goes on when both nodes are prepared, so no node has all runs.
EXPERIMENT = """
    prepare_node:
      script: |
        echo "$SLURM_JOB_ID $SLURMD_NODENAME" > "$KOCHI_SCRATCH/data"
        echo "$SLURM_JOB_ID" >> "$PLACE/prepared"
    finish_node:
      script: cat data >> "$PLACE/finished"
    batches:
      all:
        params: {n: [1, 2, 3, 4]}
        artifacts: [{type: stdout, dest: "use/${n}.log"}]
    run:
      script: |
        until [ "$(sort -u "$PLACE/prepared" | wc -l)" = 2 ]; do sleep 0.1; done
        cat "$KOCHI_SCRATCH/data"
        test "$(cut -d ' ' -f 1 "$KOCHI_SCRATCH/data")" = "$SLURM_JOB_ID"
    """
# Each task prints what its node has, and whose it is.
ON_TWO_NODES = """
    prepare_node:
      script: |
        echo "prepared $(hostname)" >> "$PLACE/prepared"
        hostname > "$KOCHI_SCRATCH/data"
        test "$(hostname)" = node1 || test ! -e "$PLACE/broken"
    finish_node:
      script: cat data >> "$PLACE/finished"
    batches:
      all:
        params: {n: [1, 2], launcher: [srun, mpirun]}
        run: {launcher: $launcher, isolate: files}
        artifacts:
          - {type: stdout, dest: "use/${launcher}_${n}.log"}
          - {type: stats, dest: "use/${launcher}_${n}.json"}
      alone:
        artifacts: [{type: stdout, dest: "use/alone.log"}]
        run: {script: 'mkdir "$PLACE/running" && sleep 1000 || :'}
    run:
      resources: {nodes: 2, tasks_per_node: 1, cpus_per_task: 1, runtime: 5}
      script: $KOCHI_LAUNCH sh -c 'echo "$(hostname) has that of $(cat "$KOCHI_SCRATCH/data")"'
    """


def make_project(project: ClusterProject, experiment: str, place: Path, storage: Path) -> None:
    """With two workers at most, which leave soon, and `storage` for data of a node."""
    write(
        project.directory / "kochi.yaml",
        f"""
        machines:
          own:
            scheduler: slurm
            scratch_dir: {storage}
            allocation: {{max_workers: 2, idle_timeout: 2s}}
            isolation: {{visible: {project.cluster.directory}}}
            load_env_script: export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
        """,
    )
    write(project.directory / "Snakefile", SNAKEFILE)
    write(project.directory / "use.yaml", experiment.replace("$PLACE", str(place)))
    write(project.directory / ".gitignore", "results/\n.snakemake/\nsaid-*\n")


def left_on(project: ClusterProject, node: str) -> list[str]:
    """The names of the user's directories on the own storage of a node, without the lock."""
    top = project.cluster.node_storage / f"kochi-{os.geteuid()}"
    said = project.cluster.run_on(node, "sh", "-c", f"mkdir -p -m 700 {top}; ls -A {top}")
    return [name for name in said.split() if name != "lock"]


def test_each_node_of_a_run_on_two_is_prepared_once_per_allocation(
    project: ClusterProject, tmp_path: Path
) -> None:
    make_project(project, ON_TWO_NODES, tmp_path, project.cluster.node_storage)
    run = project.start("use_all")
    assert run.wait(120) == 0, project.said
    results = project.directory / "results/own/use"
    has = ["node1 has that of node1", "node2 has that of node2"]
    for name in ("srun_1", "srun_2", "mpirun_1", "mpirun_2"):
        lines = printed((results / f"{name}.log").read_text()).splitlines()
        assert sorted(line for line in lines if " has " in line) == has, lines
        record = json.loads((results / f"{name}.json").read_text())
        assert contradictions(todays_form(record, "a record")) == []
        prepared = record["preparation"]["prepare_node"]
        assert prepared["node"] == "node1"
        assert [other["node"] for other in prepared["others"]] == ["node2"]
    # All runs were in one allocation.
    prepared = (tmp_path / "prepared").read_text().splitlines()
    assert sorted(prepared) == ["prepared node1", "prepared node2"], project.said
    wait_until(lambda: set(project.states()) == {"left"})
    wait_until(lambda: left_on(project, "node1") == left_on(project, "node2") == [])
    assert sorted((tmp_path / "finished").read_text().split()) == ["node1", "node2"]


def test_a_run_fails_with_the_node_that_could_not_be_prepared_and_the_next_one_tries_again(
    project: ClusterProject, tmp_path: Path
) -> None:
    experiment = ON_TWO_NODES.replace("n: [1, 2]", "n: 1").replace("[srun, mpirun]", "srun")
    make_project(project, experiment, tmp_path, project.cluster.node_storage)
    (tmp_path / "broken").touch()
    run = project.start("use_all")
    assert run.wait(120) == 1
    assert "use.yaml: the prepare_node script ended with exit status 1 on node2" in project.said
    assert "Traceback" not in project.said
    (tmp_path / "broken").unlink()
    run = project.start("use_all")
    assert run.wait(120) == 0, project.said


def test_what_a_killed_worker_leaves_on_another_node_is_removed_by_the_next_one_there(
    project: ClusterProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_project(project, ON_TWO_NODES, tmp_path, project.cluster.node_storage)
    monkeypatch.setenv("KOCHI_HEARTBEAT", "0.5")
    run = project.start("use_alone")
    wait_until((tmp_path / "running").exists, "the run has begun", seconds=60)
    (left,) = left_on(project, "node2")
    assert left_on(project, "node1") == [left]
    (job,) = (job for job, state in project.cluster.jobs().items() if state == "RUNNING")
    project.cluster.run("scancel", "--signal=KILL", "--full", str(job))
    # Its run is repeated by another worker, for which the nodes are prepared again.
    assert run.wait(120) == 0, project.said
    assert len((tmp_path / "prepared").read_text().splitlines()) == 4, project.said
    wait_until(lambda: left_on(project, "node1") == left_on(project, "node2") == [])


def test_each_of_two_nodes_is_prepared_once_per_allocation(
    project: ClusterProject, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    project.configure(max_workers=2, idle_timeout="2s")
    file = project.directory / "kochi.yaml"
    own = f"{{scratch_dir: {json.dumps(str(scratch))}, scheduler"
    file.write_text(file.read_text().replace("{scheduler", own))
    write(project.directory / "Snakefile", SNAKEFILE)
    write(project.directory / "use.yaml", EXPERIMENT.replace("$PLACE", str(tmp_path)))
    write(project.directory / ".gitignore", "results/\n.snakemake/\nsaid-*\n")
    results = project.directory / "results/own/use"
    run = project.start(*(f"results/own/use/{n}.log" for n in (1, 2, 3, 4)))
    assert run.wait(120) == 0, project.said
    found = [printed(log.read_text()).split() for log in results.glob("*.log")]
    # Which one takes the last run depends on which is free first.
    assert len({job for job, _ in found}) == len({node for _, node in found}) == 2
    prepared = (tmp_path / "prepared").read_text().split()
    assert sorted(prepared) == sorted({job for job, _ in found})
    # Each worker has removed what its allocation had on its node.
    top = scratch / f"kochi-{os.geteuid()}"
    wait_until(lambda: sorted(path.name for path in top.iterdir()) == ["lock"])
    finished = (tmp_path / "finished").read_text().splitlines()
    assert {tuple(line.split()) for line in finished} == {tuple(pair) for pair in found}
    assert len(finished) == 2
