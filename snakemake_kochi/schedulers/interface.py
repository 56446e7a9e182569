"""What is asked of schedulers, in one way for all of them."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from humanfriendly.text import pluralize

from snakemake_kochi.errors import KochiError
from snakemake_kochi.queue.capacity import Capacity
from snakemake_kochi.schedulers.request import NO_REQUEST, AllocationRequest
from snakemake_kochi.schedulers.worker_command import WorkerCommand

# An amount that nobody has told: as much as there is.
UNKNOWN = sys.maxsize

State = Literal["pending", "running", "ended"]


class RefusedError(KochiError):
    """A scheduler refused, and would another time, too."""


class UnreachableError(KochiError):
    """A scheduler gave no answer now: nothing is known."""


@dataclass(frozen=True)
class Limits:
    """What may be asked for: at most `workers` at the same time, each with at most `node`, for at
    most `seconds` (None: nothing limits them). Where `takes_nodes`, each has all of a node.

    `nodes`: where they are of several kinds, the largest ones; `node` is then the most of each
    amount, which none may have together. Where jobs do not say how long they take, workers are
    asked for `usual` seconds or, without that, for `seconds` if it `asks_for_all`, else for as long
    as the scheduler gives by default.
    """

    workers: int
    node: Capacity
    seconds: float | None = None
    takes_nodes: bool = False
    nodes: tuple[Capacity, ...] = ()
    asks_for_all: bool = True
    usual: float | None = None

    @property
    def usual_seconds(self) -> float | None:
        """For how long a worker is asked for whose jobs do not say how long they take."""
        return self.seconds if self.usual is None and self.asks_for_all else self.usual


@dataclass(frozen=True)
class Wanted:
    """What one submission asks for: `count` allocations alike, each for one worker. `memory_mb` 0
    leaves it to the scheduler, as `seconds` None does; `arguments` are further ones, after all
    others. Nodes that are `excluded` get none, if the scheduler can be told so."""

    cores: int
    memory_mb: int = 0
    gpus: int = 0
    seconds: float | None = None
    whole_node: bool = False
    count: int = 1
    arguments: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    request: AllocationRequest = NO_REQUEST

    def describe(self) -> str:
        """For people: "4 cores, 8000 MiB, 1 GPU, 2:00:00"."""
        said = [pluralize(self.cores, "core") if self.cores < UNKNOWN else "all cores of a node"]
        if 0 < self.memory_mb < UNKNOWN:
            said.append(f"{self.memory_mb} MiB")
        if self.gpus:
            said.append(pluralize(self.gpus, "GPU"))
        if self.whole_node and not self.request.whole_nodes:
            said.append("nobody beside it")
        if self.request.shape:
            said = []  # it is the request's
        if self.seconds is not None:
            said.append(time_limit(self.seconds))
        return ", ".join(filter(None, [*said, self.request.describe()]))


@dataclass(frozen=True)
class Allocation:
    """An allocation as its scheduler tells of it. `id`: what its worker has as `allocation`;
    `reason`: the scheduler's own word for why it waits; `advice`: what a person can do about it,
    where it would wait for ever. Where nobody can be asked it is not `is_certain` that it will
    come. `has_failed`: nodes could not begin it, and the scheduler holds it back for that;
    `was_cancelled`: somebody ended it, or others were preferred, and no node is to blame;
    `may_be_blind`: it began, and ended as on a node that does not see KOCHI_ROOT."""

    id: str
    state: State
    reason: str = ""
    nodes: str = ""
    advice: str = ""
    is_certain: bool = True
    has_failed: bool = False
    was_cancelled: bool = False
    may_be_blind: bool = False


@dataclass(frozen=True)
class Lack:
    """Why none can be asked for, and the options of `kochi alloc` that say what is missing."""

    reason: str
    options: str


class Scheduler(Protocol):
    """The allocations of one controller. Where it `takes_requests`, what a job requests of its
    allocation means something; where it `can_exclude`, nodes can be named on which none is to be.
    Where it `lacks` something that only a person can say, no allocation can be asked for.
    """

    takes_requests: bool
    can_exclude: bool

    @property
    def lacks(self) -> Lack | None:
        """What a person has to say before any allocation can be asked for."""

    def limits(self, request: AllocationRequest = NO_REQUEST) -> Limits:
        """What may be asked for, with a request. Raises RefusedError, or UnreachableError."""

    def submit(self, wanted: Wanted, worker: WorkerCommand, known: Collection[str]) -> list[str]:
        """Ask for allocations with a worker each; returns their ids. `known`: all ids of before.

        Tries again for some minutes. Raises RefusedError, or UnreachableError.
        """

    def find(self) -> dict[str, Allocation] | None:
        """All that have not ended, and those of which it is known why they ended before they began,
        by id, by one question; none of either that were cancelled. None where nobody can be asked.
        Raises UnreachableError."""

    def ends(self, ids: Collection[str]) -> dict[str, Allocation]:
        """How those of the allocations ended of which that is still known, each with the first of
        its nodes, by one question or two. Raises UnreachableError."""

    def cancel(self, ids: Iterable[str] = ()) -> None:
        """Cancel some, or all, by one command, as far as that is possible. Raises RefusedError, or
        UnreachableError."""

    def give_up(self) -> None:
        """From another thread: end a `submit` that tries again, and submit nothing more. The others
        go on to be answered."""

    @property
    def how_to_cancel(self) -> str:
        """What a person types to cancel all."""

    @property
    def cancels_waiting(self) -> tuple[str, ...]:
        """The command that cancels all that have not begun, on any node; none where there is
        none."""


def not_ended(found: Mapping[str, Allocation]) -> dict[str, Allocation]:
    """Those of an answer of `Scheduler.find` that run, or may come to."""
    return {id: each for id, each in found.items() if each.state != "ended"}


def time_limit(seconds: float) -> str:
    """As Slurm and PBS read it: hours:minutes:seconds."""
    whole = max(1, round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
