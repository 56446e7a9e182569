"""The interface of any scheduler, Slurm or an alloc_script, to the rest of Kochi.

Requests, from a machine's settings, a job and a submission; reports; and the protocol.
"""

from __future__ import annotations

import hashlib
import math
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from humanfriendly.text import pluralize

from snakemake_kochi.errors import KochiError
from snakemake_kochi.frozen import FrozenDict

if TYPE_CHECKING:
    from snakemake_kochi.tickets.capacity import Capacity

State = Literal["pending", "running", "ended"]
# Says, for people, where keys of a machine's `allocation` are set, or may be:
# "machines: own: allocation: time, qos in kochi.yaml".
SettingsAt = Callable[[Iterable[str]], str]

# An unspecified amount: as much as there is.
UNKNOWN = sys.maxsize
# Where a job's request is, for people.
OF_JOB = "the rule's resources"
_MOST_LETTERS = 24
_NONE: FrozenDict[str, str] = FrozenDict()


class RefusedError(KochiError):
    """A scheduler refused, and would refuse again."""


class UnreachableError(KochiError):
    """A scheduler gave no answer: the state is unknown."""


# ---- requests


@dataclass(frozen=True)
class AllocationSettings:
    """A machine's settings for its allocations, and the limit of their number.

    None leaves a setting to the scheduler, or to the needs of the jobs. `time` and `idle_timeout`
    are in seconds, `memory_mb` in MiB. `cores`, `memory_mb` and `gpus` are those of one node: the
    most that a job can have there. `constraints` limit by name where an allocation may be, and who
    pays for it: `partition`, `account`. Each scheduler has its own names. `arguments` are further
    ones of its submission command. `node_spec` names nodes, or gives their number, in the
    scheduler's words. With fewer than `min_workers`, more are requested although no job waits.
    """

    constraints: FrozenDict[str, str] = _NONE
    arguments: tuple[str, ...] = ()
    node_spec: str | None = None
    nodes: int = 1
    time: float | None = None
    cores: int | None = None
    memory_mb: int | None = None
    gpus: int | None = None
    min_workers: int = 0
    max_workers: int = 8
    idle_timeout: float = 60.0


@dataclass(frozen=True)
class AllocationRequest:
    """A job's request for the allocation in which it runs, beyond its resources on a worker.

    None stands for the machine's settings. `constraints` override the settings' of the same name;
    an empty text means none at all. With `tasks`, `tasks_per_node` or several `nodes` a job has an
    allocation to itself, of that shape, with `cpus_per_task` for each task, and MiB of memory for
    each node or core. With `whole_nodes` no other user's jobs are on its nodes. `arguments` are
    further ones of the scheduler's submission command, after all others.
    """

    constraints: FrozenDict[str, str] = _NONE
    gpu_model: str | None = None
    nodes: int | None = None
    tasks: int | None = None
    tasks_per_node: int | None = None
    cpus_per_task: int | None = None
    memory_mb: int | None = None
    memory_mb_of_core: int | None = None
    gpus: int = 0
    whole_nodes: bool = False
    arguments: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """A unique name of the request, with a readable beginning; "" for no request.

        It is short enough for a part of a queue's name.
        """
        if self == AllocationRequest():
            return ""
        letters = re.sub(r"[^A-Za-z0-9]+", "_", self.describe()).strip("_")
        values = [getattr(self, field.name) for field in fields(self)[1:]]
        digest = hashlib.sha256(repr([sorted(self.constraints.items()), *values]).encode())
        return f"{letters[:_MOST_LETTERS].strip('_') or 'own'}-{digest.hexdigest()[:8]}"

    @property
    def has_shape(self) -> bool:
        """Whether it gives the shape of its allocations; else waiting jobs determine the shape."""
        return self.tasks is not None or self.tasks_per_node is not None or (self.nodes or 1) > 1

    def with_room_for_worker(self, memory_mb: int, node: Capacity) -> AllocationRequest:
        """The request with that much more memory on the first node of its shape.

        The amount is limited by the memory of nodes.
        """
        if self.memory_mb_of_core is not None:
            # That node has at least this number of cores.
            cores = (self.cpus_per_task or 1) * (self.tasks_per_node or 1)
            wanted = self.memory_mb_of_core + math.ceil(memory_mb / cores)
            most = max(self.memory_mb_of_core, node.memory_mb // max(1, node.cores))
            return replace(self, memory_mb_of_core=min(wanted, most))
        if self.memory_mb is not None:
            most = max(self.memory_mb, node.memory_mb)
            return replace(self, memory_mb=min(self.memory_mb + memory_mb, most))
        return self

    def describe(self) -> str:
        """A text for people: "partition long, account me, 2 nodes"; "" for no request."""
        said = [f"{name} {value}" for name, value in self.constraints.items() if value]
        if self.gpu_model:
            said.append(f"gpu model {self.gpu_model}")
        if self.nodes is not None:
            said.append(pluralize(self.nodes, "node"))
        if self.tasks is not None:
            said.append(pluralize(self.tasks, "task"))
        if self.tasks_per_node is not None:
            said.append(f"{pluralize(self.tasks_per_node, 'task')} on each")
        if self.whole_nodes:
            said.append("exclusive node" if self.nodes in (None, 1) else "exclusive nodes")
        return ", ".join([*said, *self.arguments])


NO_REQUEST = AllocationRequest()


@dataclass(frozen=True)
class Wanted:
    """The contents of one submission: `count` allocations alike, each for one worker.

    `memory_mb` 0 and `seconds` None leave them to the scheduler. None of the allocations is on an
    `excluded` node, if the scheduler accepts such a list. `purpose`: what they are for, to be
    read in the scheduler's list of jobs. `comes_back`: the scheduler may begin one
    again whose nodes it took, because nobody would request another one.
    """

    cores: int
    memory_mb: int = 0
    gpus: int = 0
    seconds: float | None = None
    whole_node: bool = False
    count: int = 1
    excluded: tuple[str, ...] = ()
    request: AllocationRequest = NO_REQUEST
    purpose: str = ""
    comes_back: bool = False

    def describe(self) -> str:
        """A text for people: "4 cores, 8000 MiB, 1 GPU, 2:00:00"."""
        said = [pluralize(self.cores, "core") if self.cores < UNKNOWN else "all cores of a node"]
        if 0 < self.memory_mb < UNKNOWN:
            said.append(f"{self.memory_mb} MiB")
        if self.gpus:
            said.append(pluralize(self.gpus, "GPU"))
        if self.whole_node and not self.request.whole_nodes:
            said.append("exclusive node")
        if self.request.has_shape:
            said = []  # the request gives it
        if self.seconds is not None:
            said.append(time_limit(self.seconds))
        return ", ".join(filter(None, [*said, self.request.describe()]))


def time_limit(seconds: float) -> str:
    """A time limit in the format of Slurm and PBS: hours:minutes:seconds."""
    whole = max(1, round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


# ---- what a scheduler reports


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
    KOCHI_ROOT. `was_taken`: the scheduler ended it, for a more urgent one or because a node failed,
    and `reason` says which.
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
    was_taken: bool = False


@dataclass(frozen=True)
class Lack:
    """The reason why no allocation can be requested, and the missing options of `kochi alloc`."""

    reason: str
    options: str


# ---- the protocol


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

    If it `can_exclude`, it accepts nodes to avoid. If it `lacks` something that only a person can
    say, no allocation can be requested.
    """

    can_exclude: bool

    @property
    def lacks(self) -> Lack | None:
        """The information that a person must give before any allocation can be requested."""

    def limits(self, request: AllocationRequest = NO_REQUEST) -> Limits:
        """The limits for a job's request. Raises RefusedError, or UnreachableError."""

    def check(self, request: AllocationRequest, gpus: int) -> None:
        """Raise RefusedError if a job's request, with that many GPUs, would have no effect."""

    def submit(self, wanted: Wanted, worker: WorkerScript, known: Collection[str]) -> list[str]:
        """Request allocations with a worker each; returns their ids.

        `known`: all earlier ids. Tries again for some minutes. Raises RefusedError, or
        UnreachableError.
        """

    def text(self, wanted: Wanted, worker: WorkerScript) -> str:
        """What `submit` would execute, for people, as a text for bash. Nothing is executed."""

    def find(self) -> dict[str, Allocation] | None:
        """The allocations by id that have not ended, that ended before they began, or were taken.

        The last two are included as far as they are known, with the reason. None includes cancelled
        ones. It takes one question. None if there is no scheduler to ask. Raises
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

    def tell_to_leave(self, ids: Collection[str]) -> None:
        """Tell the workers in these allocations, one at least, to leave.

        The allocations then end as completed ones. Raises RefusedError, or UnreachableError.
        """

    def give_up(self) -> None:
        """From another thread, end a `submit` that tries again, and submit nothing more.

        Other questions are still answered.
        """

    @property
    def how_to_cancel(self) -> str:
        """The command that a person types to cancel all."""


def not_ended(found: Mapping[str, Allocation]) -> dict[str, Allocation]:
    """The allocations in an answer of `Scheduler.find` that run, or may still run."""
    return {id: each for id, each in found.items() if each.state != "ended"}


@dataclass(frozen=True)
class Description:
    """A machine's name, and an entry for it in `machines:`, without indentation."""

    machine: str
    text: str


@dataclass(frozen=True)
class ControllerJob:
    """The allocation of a controller, in the scheduler's words."""

    id: str
    state: str
    reason: str
    is_waiting: bool
