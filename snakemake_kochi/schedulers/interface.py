"""The interface of any scheduler, Slurm or an alloc_script, to the rest of Kochi."""

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
    """A scheduler gave no answer: the state is unknown."""


@dataclass(frozen=True)
class Limits:
    """The limits of a request.

    At most `workers` at the same time, each with at most `node`, for at most `seconds` (None: no
    limit). If `takes_nodes`, each has all of a node. `nodes`: the largest nodes, if they are of
    several kinds; `node` is then the maximum of each amount, which perhaps no node has together. If
    jobs do not say how long they take, workers are requested for `usual` seconds. Without `usual`,
    they are requested for `seconds` if the scheduler `asks_for_all`, else for its default time.
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
        """The seconds for which a worker is requested whose jobs do not say how long they take."""
        return self.seconds if self.usual is None and self.asks_for_all else self.usual


@dataclass(frozen=True)
class Allocation:
    """An allocation as its scheduler reports it.

    `id`: its worker has it as `allocation`. `reason`: the scheduler's own word for why it waits.
    `advice`: what a person can do about it, if it would wait for ever. `is_certain` is false if no
    scheduler can say whether it will begin. `has_failed`: nodes could not begin it, and the
    scheduler holds it for that reason. `was_cancelled`: it was cancelled, or others were preferred,
    and no node is at fault. `may_be_blind`: it began, and ended as on a node that does not see
    KOCHI_ROOT.
    """

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
    """The reason why no allocation can be requested, and the missing options of `kochi alloc`."""

    reason: str
    options: str


class WorkerScript(Protocol):
    """The script of an allocation: it starts a worker."""

    @property
    def grace(self) -> float:
        """The seconds before the end of its time at which a worker must be told."""

    def script(
        self, allocation: str, cores: str | None, output: Path | None = None, index: str = "0"
    ) -> str:
        """A script for bash.

        `allocation`, the allocation's id, and `cores`, the number of cores in it, are words for
        bash. `index`: which of the allocations of one submission this is, as arithmetic of bash,
        from 0. `output`: a file for the output, if the scheduler has none.
        """

    def log(self, allocation: str) -> Path:
        """The file for an allocation's output other than that of its jobs."""


class Scheduler(Protocol):
    """The allocations of one controller.

    If it `takes_requests`, it heeds a job's request for its allocation. If it `can_exclude`, it
    accepts nodes to avoid. If it `lacks` something that only a person can say, no allocation can be
    requested.
    """

    takes_requests: bool
    can_exclude: bool

    @property
    def lacks(self) -> Lack | None:
        """The information that a person must give before any allocation can be requested."""

    def limits(self, request: AllocationRequest = NO_REQUEST) -> Limits:
        """The limits for a job's request. Raises RefusedError, or UnreachableError."""

    def submit(self, wanted: Wanted, worker: WorkerScript, known: Collection[str]) -> list[str]:
        """Request allocations with a worker each; returns their ids.

        `known`: all earlier ids. Tries again for some minutes. Raises RefusedError, or
        UnreachableError.
        """

    def find(self) -> dict[str, Allocation] | None:
        """The allocations by id that have not ended, and those that ended before they began.

        The latter are included as far as they are known, with the reason. Neither includes
        cancelled ones. It takes one question. None if there is no scheduler to ask. Raises
        UnreachableError.
        """

    def ends(self, ids: Collection[str]) -> dict[str, Allocation]:
        """How these allocations ended, if it is still known, each with the first of its nodes.

        It takes one question or two. Raises UnreachableError.
        """

    def cancel(self, ids: Iterable[str] = ()) -> None:
        """Cancel some, or all, by one command, as far as that is possible.

        Raises RefusedError, or UnreachableError.
        """

    def give_up(self) -> None:
        """From another thread, end a `submit` that tries again, and submit nothing more.

        Other questions are still answered.
        """

    @property
    def how_to_cancel(self) -> str:
        """The command that a person types to cancel all."""

    @property
    def cancels_waiting(self) -> tuple[str, ...]:
        """The command that cancels all that have not begun, on any node; empty if none exists."""


def not_ended(found: Mapping[str, Allocation]) -> dict[str, Allocation]:
    """The allocations in an answer of `Scheduler.find` that run, or may still run."""
    return {id: each for id, each in found.items() if each.state != "ended"}
