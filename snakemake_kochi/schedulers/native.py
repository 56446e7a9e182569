"""The schedulers that Kochi knows natively, and what the folder of each provides.

Three modules of a folder are named here: `options` and `environment`, which kochi.yaml's reader and
workers load, and `system`, with all the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from snakemake_kochi.schedulers.slurm import environment as _slurm_environment
from snakemake_kochi.schedulers.slurm import options as _slurm_options

if TYPE_CHECKING:
    from snakemake_kochi.schedulers.commands import Pace
    from snakemake_kochi.schedulers.interface import Scheduler
    from snakemake_kochi.schedulers.request import AllocationSettings


# ---- options: what a machine says of its allocations


class Options(Protocol):
    """What a machine's `allocation:` may have for this scheduler alone."""

    CONSTRAINTS: tuple[str, ...]
    """The keys that become `constraints`."""
    INSTEAD_OF_NODE_SPEC: str
    """What people use instead of `node_spec`, for a message."""

    def argument_problem(self, word: str) -> str | None:
        """Why `arguments` may not have this word, for people; None where they may."""

    def joined_options(self, words: Iterable[str]) -> list[str]:
        """Each option in one word with its value. Raises ValueError, for people, for a word that is
        neither."""


OPTIONS: Mapping[str, Options] = {"slurm": _slurm_options}


# ---- environment: what a process in an allocation is told


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


_ENVIRONMENTS: tuple[Environment, ...] = (_slurm_environment,)


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


# ---- system: the rest


@dataclass(frozen=True)
class Description:
    """A machine's name, and an entry of `machines:` for it, without indentation."""

    machine: str
    text: str


@dataclass(frozen=True)
class ControllerJob:
    """The allocation of a controller, in the scheduler's words."""

    id: str
    state: str
    reason: str
    is_waiting: bool


class BatchSystem(Protocol):
    """The scheduler of this host. Its methods raise RefusedError, or UnreachableError."""

    NAME: str
    """As `scheduler:` of a machine has it."""
    TITLE: str
    """For people."""

    def allocations(self, name: str, settings: AllocationSettings, machine: str) -> Scheduler:
        """The allocations of one owner, which are found again by `name`. `machine`: its name, for
        people, with its file if that is not kochi.yaml: "own in FILE"."""

    def is_installed(self) -> bool:
        """Whether its commands are here. It asks nobody."""

    def is_there(self) -> bool:
        """Whether it answers at once; its commands may be here without it."""

    def cluster_name(self, pace: Pace, tell: Callable[[str], None] | None = None) -> str:
        """The cluster's name, as a machine's. `tell` is given what a person who waits should
        know."""

    def describe_machine(self) -> Description:
        """The machine to which this host belongs."""

    def submit_controller(
        self,
        name: str,
        command: str,
        output: Path,
        settings: AllocationSettings,
        limit: str | None,
    ) -> None:
        """Run a command for bash on one core, in a job of this name. `limit`: a time limit as a
        person wrote it."""

    def find_controller(self, name: str) -> ControllerJob | None:
        """The job of that name; None when it has ended."""

    def has_ended(self, id: str) -> bool:
        """Whether the job with the id of an `OwnAllocation` neither runs nor may come to run."""

    def interrupt_controller(self, job: ControllerJob) -> None:
        """Interrupt it as Ctrl-C does; cancel it if it waits."""


def system(name: str) -> BatchSystem:
    """The scheduler of this name, one of OPTIONS."""
    # Only now: workers and readers of kochi.yaml do not need what takes long to import.
    from snakemake_kochi.schedulers.slurm import system as slurm

    systems: dict[str, BatchSystem] = {"slurm": slurm}
    return systems[name]


def system_of_host() -> BatchSystem:
    """The scheduler whose commands are on this host. Where there is none, it is the first one: its
    errors say what is missing."""
    systems = [system(name) for name in OPTIONS]
    return next((each for each in systems if each.is_installed()), systems[0])
