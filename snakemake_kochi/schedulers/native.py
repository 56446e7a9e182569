"""The schedulers that Kochi knows natively, and the contents of each one's package.

All readers of kochi.yaml load its module `options`; `system` contains all the rest. The module
`environment` is for processes in an allocation; see `schedulers/environment.py`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from snakemake_kochi.schedulers.slurm import options as _slurm_options

if TYPE_CHECKING:
    from snakemake_kochi.schedulers.commands import Pace
    from snakemake_kochi.schedulers.interface import (
        AllocationSettings,
        ControllerJob,
        Description,
        Scheduler,
        SettingsAt,
        Wanted,
    )


# ---- options: a machine's settings for its allocations


class Options(Protocol):
    """The keys in a machine's `allocation:` that only this scheduler has."""

    PROGRAM: str
    """Its command that submits, which is on hosts that can use it."""
    CONSTRAINTS: tuple[str, ...]
    """The keys that become `constraints`."""
    INSTEAD_OF_NODE_SPEC: str
    """The alternative to `node_spec`, for a message."""

    def argument_problem(self, word: str) -> str | None:
        """The reason, for people, why `arguments` may not contain this word; None if they may."""

    def joined_options(self, words: Iterable[str]) -> list[str]:
        """Each option in one word with its value.

        Raises ValueError, for people, for a word that is neither.
        """


OPTIONS: Mapping[str, Options] = {"slurm": _slurm_options}


# ---- system: the rest


class BatchSystem(Protocol):
    """The scheduler of this host. Its methods raise RefusedError, or UnreachableError."""

    NAME: str
    """The value of `scheduler:` in a machine's settings."""
    TITLE: str
    """The name for people."""

    def allocations(
        self, name: str, settings: AllocationSettings, settings_at: SettingsAt, pace: Pace
    ) -> Scheduler:
        """The allocations of one owner, which are found again by `name`."""

    def is_there(self) -> bool:
        """Whether it answers at once; its commands may be here without it."""

    def cluster_name(self) -> str:
        """The cluster's name, usable as a machine's."""

    def describe_machine(self) -> Description:
        """The machine to which this host belongs."""

    def node_facts(
        self, settings: AllocationSettings, settings_at: SettingsAt
    ) -> Mapping[str, int]:
        """What one node has at most for jobs of these settings, as far as it is known.

        `cores`, `sockets`, `memory_mb` (MiB) and `gpus`, and `nodes`, their number in all. Asks
        once.
        """

    def submit_controller(
        self,
        name: str,
        command: str,
        output: Path,
        settings: AllocationSettings,
        limit: str | None,
        purpose: str,
    ) -> None:
        """Submit a job of this name that runs a command for bash on one core.

        `limit`: a time limit as a person wrote it. `purpose`: as in `Wanted`.
        """

    def find_controller(self, name: str) -> ControllerJob | None:
        """The job of that name; None when it has ended."""

    def has_ended(self, id: str) -> bool:
        """Whether the job with the id of an `OwnAllocation` neither runs nor may still run."""

    def interrupt_controller(self, job: ControllerJob) -> None:
        """Interrupt the controller as Ctrl-C does; cancel it if it waits."""

    ALLOCATION: str
    """In a process of an allocation, a word for bash: the allocation's id."""
    CORES_OF_ALLOCATION: str
    """Likewise: the number of the allocation's cores on the node."""

    def can_enter(self) -> bool:
        """Whether a program can be started in a running allocation from this host."""

    def words_inside(self, allocation: str, words: Sequence[str], has_terminal: bool) -> list[str]:
        """A command of this host that runs a program on the first node of a running allocation.

        It is beside all that runs there, and waits for nothing. With `has_terminal`, the program
        has a terminal of its own, joined to that of the command. The exit status is that of the
        program.
        """

    def words_in_new(
        self,
        name: str,
        settings: AllocationSettings,
        wanted: Wanted,
        words: Sequence[str],
        has_terminal: bool,
    ) -> list[str]:
        """A command of this host that requests an allocation, waits for it and runs a program.

        The program is on its first node, as for `words_inside`; the allocation ends with it.
        """


def system(name: str) -> BatchSystem:
    """The scheduler of this name, one of OPTIONS."""
    # Imported late: workers and readers of kochi.yaml do not need modules that are slow to import.
    from snakemake_kochi.schedulers.slurm import system as slurm

    systems: dict[str, BatchSystem] = {"slurm": slurm}
    return systems[name]


def installed_system() -> BatchSystem | None:
    """The scheduler whose commands are on this host; none of them is run."""
    # By the options: the rest is slow to import, and most computers have no scheduler.
    found = (name for name, options in OPTIONS.items() if shutil.which(options.PROGRAM))
    return next(map(system, found), None)


def system_of_host() -> BatchSystem:
    """The scheduler whose commands are on this host.

    If there is none, the first one: its errors say what is missing.
    """
    return installed_system() or system(next(iter(OPTIONS)))
