"""Steps that a job starts in its allocation, if Slurm binds them to CPUs."""

from __future__ import annotations

from cluster_project import ClusterProject

SLURM = {"nodes": 1, "settings": ("TaskPlugin=task/affinity",)}


def test_a_job_binds_the_tasks_of_a_step_to_cores_of_its_own(project: ClusterProject) -> None:
    project.write_jobs(
        1,
        """
        rule job:
            output: "out"
            threads: 2
            shell:
                "srun --ntasks=2 --cpus-per-task=1 --cpu-bind=cores "
                "grep Cpus_allowed_list /proc/self/status | sort > {output}"
        """,
    )
    run = project.start()
    assert run.wait(120) == 0, project.said
    said = (project.directory / "out").read_text()
    assert said == "Cpus_allowed_list:\t0\nCpus_allowed_list:\t1\n"
