"""Room for jobs that wait where workers have nothing to do any more."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.allocation.asked_for import AskedFor
from snakemake_kochi.allocation.sizing import Supply
from snakemake_kochi.queue import Resources, Ticket, WorkerState


class Room:
    """Lets workers go that have nothing to do, for the jobs of other queues and, where those that
    wait do not fit them, for those of their own."""

    def __init__(
        self,
        asked: AskedFor,
        cancel: Callable[[Sequence[str]], bool],
        logger: LoggerExecutorInterface,
        steady: float,
    ) -> None:
        """`cancel`: whether it could; `steady`: seconds for which nobody wants a worker, before it
        is let go: short jobs come and go."""
        self._asked = asked
        self._cancel = cancel
        self._logger = logger
        self._steady = steady
        # By queue that waits: since when it was seen that they keep it waiting.
        self._idle: dict[str, dict[str, float]] = {}
        self._let_go: set[str] = set()

    def make(
        self,
        queue: str,
        waiting: Collection[Resources],
        pending: Mapping[str, Sequence[Ticket]],
        workers: Mapping[str, Sequence[WorkerState]],
        supply: Mapping[str, Supply],
        room: int,
    ) -> None:
        """For the jobs of one queue. `supply`: what its workers, by allocation, have in all;
        `room`: how many more workers there may be."""
        found = []
        if waiting:
            found = self._in_the_way(queue, waiting, pending, workers, supply, room)
        now, before = time.monotonic(), self._idle.get(queue, {})
        self._idle[queue] = {each: before.get(each, now) for each in found}
        idle = [each for each, since in self._idle[queue].items() if now - since >= self._steady]
        if idle and self._cancel(idle):
            self._let_go.update(idle)
            self._asked.drop(idle)
            self._logger.info(f"Given back to make room for others: {', '.join(idle)}")

    def _in_the_way(
        self,
        queue: str,
        waiting: Collection[Resources],
        pending: Mapping[str, Sequence[Ticket]],
        workers: Mapping[str, Sequence[WorkerState]],
        supply: Mapping[str, Supply],
        room: int,
    ) -> list[str]:
        there = [worker for worker in workers[queue] if worker.is_live]
        coming = self._asked.coming(queue)
        # A node that is free is given at once: what has waited for longer needs one of another's.
        is_kept_waiting = self._asked.coming_for(self._steady, queue)
        supplies = list(supply.values())
        is_full = room <= 0 and is_without(waiting, [*supplies, *(each.supply for each in coming)])
        if there and not is_full and not is_kept_waiting:
            return []
        kept = set(self._let_go)
        if not is_full and not (is_kept_waiting and is_without(waiting, supplies)):
            # Else also those that stay though they have no job: these jobs would wait for ever.
            kept.update(asked.id for asked in self._asked.all() if asked.lasting)
        found = idle_elsewhere(queue, workers, pending, kept)
        by_name = {worker.allocation: worker for worker in there if worker.allocation}
        pairs = {name: (by_name[name], each) for name, each in supply.items() if name not in kept}
        return found + idle_in_vain(waiting, pairs)


def idle_elsewhere(
    queue: str,
    workers: Mapping[str, Sequence[WorkerState]],
    pending: Mapping[str, Sequence[Ticket]],
    needed: Collection[str] = (),
) -> list[str]:
    """The allocations of workers that only keep a node from others: they have no job, and all jobs
    of their queues have ended. `needed` are allocations that stay. Without this, jobs of which
    each step requests another kind of allocation would wait for an idle timeout at each step."""
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
