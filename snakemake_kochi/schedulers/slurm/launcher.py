"""srun as a launcher of a job's tasks."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snakemake_kochi.schedulers.launchers import Shape

_PATIENCE = 5.0  # seconds: the run has failed anyway
_TYPE = "SLURM_MPI_TYPE"
_NO_MPI = re.compile(r"^MpiDefault\s*=\s*(none|\(null\))\s*$", re.MULTILINE)


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


def advice(script: str) -> str | None:
    """See `schedulers.launchers.Advice`."""
    if _TYPE in os.environ or _TYPE in script or "--mpi" in script:
        return None
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["scontrol", "show", "config"]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE
        )
        if _NO_MPI.search(done.stdout):
            return (
                "If MPI could not begin: this Slurm has MpiDefault=none, so srun tells MPI nothing "
                f"about its tasks. Put 'export {_TYPE}=pmix', or another type of those that "
                "'srun --mpi=list' lists, into load_env_script; or use 'launcher: mpirun'."
            )
    return None
