"""Room for one queue's jobs where workers of another have nothing to do any more."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from snakemake_kochi.queue import Ticket, WorkerState


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
