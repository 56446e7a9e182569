"""A script once per node: in the allocations of a run on two nodes of a real Slurm."""

from __future__ import annotations

import json
import os
from pathlib import Path

from cluster_project import ClusterProject
from support import printed, wait_until, write

# Each node has processes, and a name, of its own.
SLURM = {"apart": True}
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
