"""Duplicates of a point go to different nodes of a real Slurm, if there are two."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from cluster_project import ClusterProject
from slurm_cluster import APART
from support import write

# Each node has a name of its own.
SLURM = APART
SNAKEFILE = """
    from snakemake_kochi import snakefile

    module kochi:
        snakefile: snakefile()
        config: config

    use rule * from kochi
    """
# The first run ends as soon as the second node has one, and its node is the first to take another
# one. Which one that is decides about all that follow, because they end when all have begun.
EXPERIMENT = """
    batches:
      all:
        params: {point: [a, b]}
        duplicates: 2
        artifacts: [{type: stdout, dest: "use/${point}_${duplicate}.log"}]
    run:
      spread: nodes
      depend_params: [point]
      script: |
        echo "$(hostname) $KOCHI_PARAM_POINT" | tee -a "$PLACE/begun"
        # Which one it is does not change while it asks.
        line="$(hostname) $KOCHI_PARAM_POINT"
        case $(grep -m 1 -n -x "$line" "$PLACE/begun" | cut -d : -f 1) in
          1) least=2 ;;
          2) least=3 ;;
          *) least=4 ;;
        esac
        until [ "$(wc -l < "$PLACE/begun")" -ge $least ]; do sleep 0.1; done
    """


def test_duplicates_of_a_point_run_on_different_nodes(
    project: ClusterProject, tmp_path: Path
) -> None:
    project.configure(max_workers=2, idle_timeout="2s")
    write(project.directory / "Snakefile", SNAKEFILE)
    write(project.directory / "use.yaml", EXPERIMENT.replace("$PLACE", str(tmp_path)))
    write(project.directory / ".gitignore", "results/\n.snakemake/\nsaid-*\n")
    run = project.start("use_all")
    assert run.wait(120) == 0, project.said
    nodes = defaultdict(list)
    for line in (tmp_path / "begun").read_text().splitlines():
        node, point = line.split()
        nodes[point].append(node)
    assert sorted(nodes) == ["a", "b"]
    assert all(sorted(own) == ["node1", "node2"] for own in nodes.values()), nodes
