"""An idle worker on a node that jobs need which do not fit the worker."""

from __future__ import annotations

from cluster_project import ClusterProject

SNAKEFILE = """
    rule all:
        input: "out/large"

    rule small:
        output: "out/small"
        shell: "echo $SLURM_JOB_ID >> began-small; echo x >> done-small; touch {output}"

    rule large:
        input: "out/small"
        output: "out/large"
        threads: 2
        shell: "echo $SLURM_JOB_ID >> began-large; echo x >> done-large; touch {output}"
"""


SLURM = {"nodes": 1}


def test_a_worker_that_no_waiting_job_fits_leaves_long_before_its_idle_timeout(
    project: ClusterProject,
) -> None:
    project.configure(max_workers=3, idle_timeout="30m")
    project.write_jobs(0, SNAKEFILE)
    project.start()
    project.end_well()
    [small], [large] = project.lines("began")["small"], project.lines("began")["large"]
    assert f"Cancelled idle allocations to make room for other jobs: {small}" in project.said
    assert small != large
    assert project.states() == ["left", "left"]
