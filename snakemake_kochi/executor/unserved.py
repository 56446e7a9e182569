"""Saying of a queue that nobody serves it, or nobody who can ever run a job."""

from __future__ import annotations

from collections.abc import Collection

from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.files import is_there
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import Ticket, WorkerState, seconds_for_jobs, shared_workers


class Unserved:
    """Says it once of each queue. The run goes on, for a worker may come."""

    def __init__(
        self, machine: MachinePaths, controller: str, logger: LoggerExecutorInterface
    ) -> None:
        self._machine = machine
        self._controller = controller
        self._logger = logger
        self._told: set[str] = set()

    def look(self, queue: str, tickets: Collection[Ticket], has_own_workers: bool) -> None:
        """`tickets` are those of the queue that have not ended; a run that `has_own_workers`
        serves by itself what nobody else does. Raises OSError where that is not known now."""
        if queue in self._told:
            return
        workers = shared_workers(self._machine, queue, self._controller)
        if has_own_workers and all(worker.controller is not None for worker in workers):
            return  # the run gets others for what those that are there cannot run
        if workers:
            self._look_for_what_never_fits(queue, tickets, workers)
        else:
            self._tell(
                queue,
                f"No worker serves queue {queue} yet; start one with: kochi work -q {queue} -b",
            )

    def _look_for_what_never_fits(
        self, queue: str, tickets: Collection[Ticket], workers: Collection[WorkerState]
    ) -> None:
        # As many as there are kinds of jobs, not as there are jobs.
        for resources, ticket in {ticket.resources: ticket for ticket in tickets}.items():
            obstacles = [
                (worker.worker, worker.capacity.obstacle(resources, seconds_for_jobs(worker)))
                for worker in workers
            ]
            if any(obstacle is None for _, obstacle in obstacles):
                continue
            if is_there(self._machine.job(ticket.job).attempt(1)):
                continue  # it runs already; the time left is less than what it asked for
            rule = ticket.labels.get("rule", ticket.name)
            named = "; ".join(f"worker {number}: {why}" for number, why in obstacles[:3])
            self._tell(
                queue,
                f"No worker of queue {queue} can ever run kochi job {ticket.job} of rule {rule} "
                f"({named}). It waits until one comes that can; see: kochi show job {ticket.job}",
            )
            return

    def _tell(self, queue: str, what: str) -> None:
        self._told.add(queue)
        self._logger.warning(what)
