"""srun as a launcher of a job's tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snakemake_kochi.schedulers.launchers import Shape


def words(shape: Shape) -> list[str]:
    """See `schedulers.launchers.Words`."""
    found = [
        "srun",
        # Otherwise the step would wait for what another step of the job holds, maybe for ever: that
        # in which the worker runs, or that of another job of the worker.
        *("--overlap", "--mem=0"),
        *(f"--nodes={shape.nodes}", f"--ntasks={shape.tasks}"),
        f"--ntasks-per-node={shape.tasks_per_node}",
    ]
    if shape.nodes == 1:
        return [*found, "--cpu-bind=none"]
    if shape.cpus_per_task:
        found.append(f"--cpus-per-task={shape.cpus_per_task}")
    return [*found, "--cpu-bind=cores"]
