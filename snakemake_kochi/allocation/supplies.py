"""What the workers of a run can do, by their own account."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from snakemake_kochi.allocation.packing import Supply
from snakemake_kochi.queue import Resources, WorkerState, seconds_for_jobs, seconds_in_all


def supply_of(worker: WorkerState, resources: Mapping[int, Resources], reserve: float) -> Supply:
    """What a worker can do now.

    `resources`: those of its jobs, by their numbers. `reserve`: seconds before the end of its time
    in which it begins no job.
    """
    begun = (resources[job] for job in (*worker.running, *worker.ahead) if job in resources)
    return Supply(worker.capacity, seconds_for_jobs(worker, reserve=reserve), tuple(begun))


def idle_supplies(workers: Iterable[WorkerState], reserve: float) -> dict[str, Supply]:
    """What each worker, by its allocation, could do if it were idle."""
    return {
        worker.allocation: supply_of(replace(worker, running={}, ahead=()), {}, reserve)
        for worker in workers
        if worker.is_live and worker.allocation is not None
    }


def initial_supplies(workers: Sequence[WorkerState], reserve: float) -> dict[str, Supply]:
    """The resources of each worker at its beginning, however late it is first seen."""
    seconds = {worker.allocation: seconds_in_all(worker) for worker in workers}
    return {
        name: replace(each, seconds_left=seconds[name])
        for name, each in idle_supplies(workers, reserve).items()
    }
