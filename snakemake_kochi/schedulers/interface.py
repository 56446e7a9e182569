"""What the rest of Kochi asks of any scheduler, Slurm or an alloc_script."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from snakemake_kochi.errors import KochiError
from snakemake_kochi.queue.workers import Capacity
from snakemake_kochi.schedulers.request import NO_REQUEST, AllocationRequest, Wanted

State = Literal["pending", "running", "ended"]


class RefusedError(KochiError):
    """A scheduler refused, and would refuse again."""


class UnreachableError(KochiError):
    """A scheduler gave no answer now: nothing is known."""


@dataclass(frozen=True)
class Limits:
    """What may be requested: at most `workers` at the same time, each with at most `node`, for at
    most `seconds` (None: nothing limits them). Where `takes_nodes`, each has all of a node.

    `nodes`: where they are of several kinds, the largest ones; `node` is then the most of each
    amount, which no node may have together. Where jobs do not say how long they take, workers are
    requested for `usual` seconds or, without that, for `seconds` if it `asks_for_all`, else for as
    long as the scheduler gives by default.
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
        """For how long a worker is requested whose jobs do not say how long they take."""
        return self.seconds if self.usual is None and self.asks_for_all else self.usual


@dataclass(frozen=True)
class Allocation:
    """An allocation as its scheduler reports it. `id`: what its worker has as `allocation`;
    `reason`: the scheduler's own word for why it waits; `advice`: what a person can do about it,
    where it would wait for ever. Where nobody can be asked, it is not `is_certain` that it will
    begin. `has_failed`: nodes could not begin it, and the scheduler holds it for that reason;
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
    """Why no allocation can be requested, and the options of `kochi alloc` that say what is
    missing."""

    reason: str
    options: str


class WorkerScript(Protocol):
    """What an allocation runs: a worker."""

    @property
    def grace(self) -> float:
        """The seconds before the end of its time at which a worker is to be told."""

    def script(
        self, allocation: str, cores: str | None, output: Path | None = None, index: str = "0"
    ) -> str:
        """A script for bash. `allocation`, the allocation's id, and `cores`, the number of cores in
        it, are words for bash; `index`: which of the allocations of one submission this is, as
        arithmetic of bash, from 0; `output`: a file for the output, if the scheduler has none."""

    def log(self, allocation: str) -> Path:
        """The file for the output of an allocation that is not its jobs'."""


class Scheduler(Protocol):
    """The allocations of one controller. Where it `takes_requests`, it heeds what a job requests of
    its allocation; where it `can_exclude`, it can be given nodes to avoid. Where it `lacks`
    something that only a person can say, no allocation can be requested.
    """

    takes_requests: bool
    can_exclude: bool

    @property
    def lacks(self) -> Lack | None:
        """What a person has to say before any allocation can be requested."""

    def limits(self, request: AllocationRequest = NO_REQUEST) -> Limits:
        """What may be requested, with a job's request. Raises RefusedError, or UnreachableError."""

    def submit(self, wanted: Wanted, worker: WorkerScript, known: Collection[str]) -> list[str]:
        """Request allocations with a worker each; returns their ids. `known`: all earlier ids.

        Tries again for some minutes. Raises RefusedError, or UnreachableError.
        """

    def find(self) -> dict[str, Allocation] | None:
        """By id, all allocations that have not ended, and those known to have ended before they
        began, with the reason; neither includes cancelled ones. It takes one question. None where
        nobody can be asked. Raises UnreachableError."""

    def ends(self, ids: Collection[str]) -> dict[str, Allocation]:
        """How these allocations ended, as far as that is still known, each with the first of its
        nodes. It takes one question or two. Raises UnreachableError."""

    def cancel(self, ids: Iterable[str] = ()) -> None:
        """Cancel some, or all, by one command, as far as that is possible. Raises RefusedError, or
        UnreachableError."""

    def give_up(self) -> None:
        """From another thread: end a `submit` that tries again, and submit nothing more. Other
        questions are still answered."""

    @property
    def how_to_cancel(self) -> str:
        """What a person types to cancel all."""

    @property
    def cancels_waiting(self) -> tuple[str, ...]:
        """The command that cancels all that have not begun, on any node; empty if there is none."""


def not_ended(found: Mapping[str, Allocation]) -> dict[str, Allocation]:
    """The allocations in an answer of `Scheduler.find` that run, or may come to run."""
    return {id: each for id, each in found.items() if each.state != "ended"}
