"""The allocation of a process, as its scheduler's environment variables tell it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from snakemake_kochi.schedulers.slurm import environment as _slurm


class Environment(Protocol):
    """What a scheduler's environment variables tell."""

    NODE_VARIABLE: str
    """The variable with the node's name."""

    def own_allocation(self, environment: Mapping[str, str]) -> OwnAllocation | None:
        """The allocation of the process that has this environment, if it is this scheduler's."""


class OwnAllocation(Protocol):
    """The allocation in which a process runs, as its environment tells. None: it does not."""

    @property
    def id(self) -> str:
        """As the scheduler's commands take it."""

    @property
    def began(self) -> float | None:
        """In seconds since the epoch."""

    @property
    def memory_mb(self) -> int | None:
        """The MiB that the allocation has on this node, if they are limited."""

    def seconds_left(self, expected: float | None) -> float | None:
        """Until the allocation ends. `expected`: what is left of the requested time; with it, the
        scheduler is not asked. None also where nothing limits it."""

    def hosts(self) -> dict[str, int]:
        """The names of its nodes, each with the number of CPUs that it has there. Raises OSError,
        ValueError or SubprocessError."""

    def is_for_jobs(self, name: str) -> bool:
        """Whether a worker hands this environment variable on to its jobs."""


_ENVIRONMENTS: tuple[Environment, ...] = (_slurm,)


def own_allocation(environment: Mapping[str, str]) -> OwnAllocation | None:
    """The allocation of the process that has this environment; None outside of one."""
    found = (each.own_allocation(environment) for each in _ENVIRONMENTS)
    return next((each for each in found if each is not None), None)


def node_for_bash() -> str:
    """For bash on a node: the node's name, as its scheduler has it."""
    name = "$HOSTNAME"
    for each in _ENVIRONMENTS:
        name = f"${{{each.NODE_VARIABLE}:-{name}}}"
    return name
