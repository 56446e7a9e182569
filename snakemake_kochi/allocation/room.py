"""Room for jobs that wait where workers have nothing to do any more."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from snakemake_kochi.allocation.sizing import Supply
from snakemake_kochi.queue import Resources, Ticket, WorkerState


def idle_elsewhere(
    queue: str,
    workers: Mapping[str, Sequence[WorkerState]],
    pending: Mapping[str, Sequence[Ticket]],
    needed: Collection[str] = (),
) -> list[str]:
    """The allocations of workers that only keep a node from others: they have no job, and all jobs
    of their queues have ended. `needed` are allocations that stay. Without this, jobs of which
    each step wishes another kind of allocation would wait for an idle timeout at each step."""
    return sorted(
        {
            worker.allocation
            for name, found in workers.items()
            if name != queue and not pending.get(name)
            for worker in found
            if worker.allocation is not None
            and worker.is_live
            and not (worker.running or worker.ahead)
            and worker.allocation not in needed
        }
    )


def is_without(waiting: Iterable[Resources], supply: Collection[Supply]) -> bool:
    """Whether one of the jobs that wait fits into none of the workers, even if they had no job.
    Their `supply` is what they have in all."""
    return any(all(each.obstacle(kind) for each in supply) for kind in waiting)


def idle_in_vain(
    waiting: Collection[Resources], workers: Mapping[str, tuple[WorkerState, Supply]]
) -> list[str]:
    """The allocations, by which the workers of a queue are given, of those without a job that none
    of the jobs that wait fits."""
    return sorted(
        allocation
        for allocation, (worker, supply) in workers.items()
        if worker.is_live
        and not (worker.running or worker.ahead)
        and all(supply.obstacle(kind) for kind in waiting)
    )
