"""How a worker behaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from snakemake_kochi.queue.processes import ProcessIdentity
from snakemake_kochi.queue.ticket import Kind
from snakemake_kochi.worker.walltime import Walltime

# Seconds that a worker that leaves when its queues are empty waits for a run that goes on: it takes
# so long at most to hand over what depends on a job that has ended. On a cluster Snakemake waits
# for a minute for a job's outputs (`--latency-wait` of the profile `cluster` and of `kochi batch`).
BETWEEN_JOBS = 75.0


@dataclass(frozen=True)
class WorkerSettings:
    """How a worker behaves.

    `environment`: what its jobs start from; `stay`: whether it waits when its queues are empty, and
    then for `idle_timeout` seconds, or for ever (None); `idle_wait`: seconds after which an idle
    worker looks by itself, for what happened on other nodes; `grace`: seconds between SIGTERM and
    SIGKILL for a job that is to end; `cancel_waiting`: a command that cancels the allocations of
    its controller that have not begun; `walltime`: when the worker itself has to be gone; `first`:
    the kinds of jobs that it claims before others; `between_jobs`: seconds for which one that does
    not stay waits for further jobs of a run that goes on.
    """

    environment: Mapping[str, str]
    stay: bool = False
    idle_timeout: float | None = None
    parent: ProcessIdentity | None = None
    idle_wait: float = 2.0
    grace: float = 5.0
    cancel_waiting: tuple[str, ...] = ()
    walltime: Walltime = field(default_factory=lambda: Walltime(None, 0.0))
    first: tuple[Kind, ...] = ()
    between_jobs: float = BETWEEN_JOBS
