"""What is asked of schedulers, in one way for all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from humanfriendly.text import pluralize

from snakemake_kochi.allocation.launch import Launch
from snakemake_kochi.allocation.sizing import Limits
from snakemake_kochi.errors import KochiError

State = Literal["pending", "running", "ended"]


class RefusedError(KochiError):
    """A scheduler refused, and would another time, too."""


class UnreachableError(KochiError):
    """A scheduler gave no answer now: nothing is known."""


@dataclass(frozen=True)
class Wanted:
    """What one submission asks for: `count` allocations alike, each for one worker. `memory_mb` 0
    leaves it to the scheduler, as `seconds` None does; `arguments` are further ones, after all
    others."""

    cores: int
    memory_mb: int = 0
    gpus: int = 0
    seconds: float | None = None
    whole_node: bool = False
    count: int = 1
    arguments: tuple[str, ...] = ()

    def describe(self) -> str:
        """For people: "4 cores, 8000 MiB, 1 GPU, 2:00:00"."""
        said = [pluralize(self.cores, "core")]
        if self.memory_mb:
            said.append(f"{self.memory_mb} MiB")
        if self.gpus:
            said.append(pluralize(self.gpus, "GPU"))
        if self.whole_node:
            said.append("nobody beside it")
        if self.seconds is not None:
            said.append(time_limit(self.seconds))
        return ", ".join(said)


@dataclass(frozen=True)
class Allocation:
    """An allocation as its scheduler tells of it. `id`: what its worker has as `allocation`;
    `reason`: the scheduler's own word for why it waits."""

    id: str
    state: State
    reason: str = ""
    nodes: str = ""


class Scheduler(Protocol):
    """The allocations of one controller."""

    def limits(self) -> Limits:
        """What may be asked for. Raises RefusedError, or UnreachableError."""

    def submit(self, wanted: Wanted, launch: Launch, known: Collection[str]) -> list[str]:
        """Ask for allocations with a worker each; returns their ids. `known`: all ids of before.

        Tries again for some minutes. Raises RefusedError, or UnreachableError.
        """

    def find(self) -> dict[str, Allocation] | None:
        """All that have not ended, by id, by one question; None where nobody can be asked. Raises
        UnreachableError."""

    def cancel(self, ids: Iterable[str] = ()) -> None:
        """Cancel some, or all, by one command, as far as that is possible. Raises RefusedError, or
        UnreachableError."""

    @property
    def how_to_cancel(self) -> str:
        """What a person types to cancel all."""


def time_limit(seconds: float) -> str:
    """As Slurm and PBS read it: hours:minutes:seconds."""
    whole = max(1, round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
