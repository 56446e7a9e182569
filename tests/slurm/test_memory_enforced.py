"""A Slurm that ends allocations above their memory itself, and no cgroup that would tell."""

from __future__ import annotations

from cluster_project import ClusterProject
from support import write

SLURM = {
    "settings": (
        "JobAcctGatherType=jobacct_gather/linux",
        "JobAcctGatherParams=OverMemoryKill",
        "JobAcctGatherFrequency=1",
    )
}
# Twice what Slurm gives by default to one core.
GREEDY = """
    rule all:
        input: "out"
    rule greedy:
        output: "out"
        shell: "python3 -c 'import time; x = bytes(2**29) + b\\"x\\"; time.sleep(60)'; touch out"
"""


def test_a_job_that_slurm_kills_for_its_memory_says_so(project: ClusterProject) -> None:
    write(project.directory / "Snakefile", GREEDY)
    project.start()
    assert project.runs[-1].wait(120) != 0
    assert 'its allocation ran out of memory: "' in project.said
    assert "exceeded memory limit" in project.said
    assert "request more with the resource mem_mb; see: kochi show log worker " in project.said
