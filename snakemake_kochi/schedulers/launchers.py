"""Launchers of schedulers: they start the tasks of a job on the nodes of its allocation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from snakemake_kochi.schedulers.slurm import launcher as _slurm


@dataclass(frozen=True)
class Shape:
    """What a launcher starts.

    `tasks_per_node`: the largest number of tasks on one node. `cpus_per_task`: 0 if not known.
    """

    nodes: int = 1
    tasks: int = 1
    tasks_per_node: int = 1
    cpus_per_task: int = 0


# A shape as words. On one node the tasks stay on the CPUs of their job, which a launcher does not
# know: it has to leave them alone.
Words = Callable[[Shape], list[str]]

# What to do about a run that has failed if the launcher may be the cause, from the text that bash
# has executed for it; None if nothing is known.
Advice = Callable[[str], str | None]

# By the name of the launcher: the words, the scheduler in whose allocations it works, and advice.
LAUNCHERS: Mapping[str, tuple[Words, str, Advice]] = {
    "srun": (_slurm.words, "slurm", _slurm.advice)
}


def launcher_of(scheduler: str | None) -> str | None:
    """The launcher for allocations of a scheduler, if it has one."""
    return next((name for name, (_, own, _) in LAUNCHERS.items() if own == scheduler), None)
