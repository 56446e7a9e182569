"""The allocation and the node of a process, from its scheduler's environment variables."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from snakemake_kochi.schedulers.slurm import environment as _slurm

# Variables that a record of a run keeps; a * ends the beginning of a name. The last ones are of
# schedulers for which an alloc_script asks.
RECORDED_VARIABLES = (
    *_slurm.RECORDED_VARIABLES,
    *("PBS_JOBID", "PBS_QUEUE", "LSB_JOBID", "LSB_QUEUE", "FLUX_JOB_ID", "COBALT_JOBID"),
)
# Variables by which the programs of a scheduler find their allocation; a * as above.
ALLOCATION_VARIABLES = (
    *_slurm.ALLOCATION_VARIABLES,
    *("PBS_*", "LSB_*", "FLUX_*", "COBALT_*"),
)
_ON_NODE = "on node "
# The longest line with the name of a node, in bytes.
_LONGEST = 512


class Environment(Protocol):
    """The information in a scheduler's environment variables."""

    NODE_VARIABLE: str
    """The variable with the node's name."""

    def own_allocation(self, environment: Mapping[str, str]) -> OwnAllocation | None:
        """The allocation of the process that has this environment.

        None if it is in no allocation of this scheduler.
        """


class OwnAllocation(Protocol):
    """The allocation in which a process runs, from its environment. None: not known from it."""

    @property
    def scheduler(self) -> str:
        """The name of the scheduler, as in kochi.yaml."""

    @property
    def id(self) -> str:
        """The id in the form that the scheduler's commands take."""

    @property
    def began(self) -> float | None:
        """The beginning, in seconds since the epoch."""

    @property
    def memory_mb(self) -> int | None:
        """The MiB that the allocation has on this node, if its memory is limited."""

    @property
    def nodes(self) -> int | None:
        """The number of its nodes."""

    def seconds_left(self, expected: float | None) -> float | None:
        """The seconds until the allocation ends; None also if it has no limit.

        `expected`: the rest of the requested time; with it, the scheduler is not asked.
        """

    def hosts(self) -> dict[str, int]:
        """The names of its nodes, each with the number of CPUs that it has there.

        Raises OSError, ValueError or SubprocessError.
        """

    @property
    def tasks(self) -> list[int]:
        """The number of tasks that it has on each of its nodes, in their order; [] if not known."""

    @property
    def cpus_per_task(self) -> int | None:
        """The CPUs that it has for each task."""

    def variables_for(self, tasks: Sequence[int]) -> dict[str, str]:
        """Variables with which launchers start this number of tasks on each node of a job.

        Without them they would start those of the allocation, or wait for what its other jobs
        hold.
        """

    def is_for_jobs(self, name: str) -> bool:
        """Whether a worker passes this environment variable on to its jobs."""


_ENVIRONMENTS: tuple[Environment, ...] = (_slurm,)


def own_allocation(environment: Mapping[str, str]) -> OwnAllocation | None:
    """The allocation of the process that has this environment; None outside of one."""
    found = (each.own_allocation(environment) for each in _ENVIRONMENTS)
    return next((each for each in found if each is not None), None)


def print_node() -> str:
    """A command for bash that prints the node's name, in its scheduler's words, for `node_of`."""
    name = "$HOSTNAME"
    for each in _ENVIRONMENTS:
        name = f"${{{each.NODE_VARIABLE}:-{name}}}"
    return f'echo "{_ON_NODE}{name}"'


def node_of(log: Path) -> str:
    """The name of a node from the first line of a log, which `print_node` wrote; "" if unknown."""
    with contextlib.suppress(OSError), log.open("rb") as stream:
        first = stream.readline(_LONGEST).decode(errors="replace").strip()
        if first.startswith(_ON_NODE):
            return first.removeprefix(_ON_NODE)
    return ""
