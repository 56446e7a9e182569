"""Which queue a job goes to, so that only workers of the allocations that it requests claim it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.queue import Resources
from snakemake_kochi.schedulers.request import NO_REQUEST, AllocationRequest
from snakemake_kochi.schedulers.resources import read_request, requested, unknown


@dataclass(frozen=True)
class Placed:
    """Where a job goes, and what it takes of a worker there."""

    queue: str
    resources: Resources
    request: AllocationRequest = NO_REQUEST


class JobQueues:
    """One queue of the run's own for each request. Queues that others may serve have none."""

    def __init__(
        self, own_queue: str | None, are_granted: bool, logger: LoggerExecutorInterface
    ) -> None:
        """`own_queue`: the run's, None where all jobs go to another one; `are_granted`: whether
        its workers are in allocations to which requests mean something."""
        self._own_queue = own_queue
        self._are_granted = are_granted
        self._logger = logger
        self._queues: dict[AllocationRequest, str] = {}
        self._requests: dict[str, AllocationRequest] = {}
        self._told: set[str] = set()

    def place(self, job: JobExecutorInterface, queue: str, wanted: Resources) -> Placed:
        """`queue`: the one the job goes to, `wanted`: what it takes, if it requests nothing. Raises
        KochiError, naming the rule and the resource."""
        self._tell_unknown(job)
        names = requested(job.resources)
        if not self._are_granted:
            self._tell_ignored(job, names, queue)
            return Placed(queue, wanted)
        is_alone = wanted.exclusive
        request, wanted = read_request(job.name, job.resources, wanted)
        if queue != self._own_queue:
            self._tell_ignored(job, names if request != NO_REQUEST else [], queue)
            return Placed(queue, wanted)
        if is_alone:
            # A worker without jobs may have a part of a node only, and other users' jobs beside it.
            request = replace(request, whole_nodes=True)
        if request == NO_REQUEST:
            return Placed(queue, wanted)
        if request not in self._queues:
            own = f"{queue}-{request.name}"
            self._queues[request], self._requests[own] = own, request
        return Placed(self._queues[request], wanted, request)

    def of(self, queue: str) -> AllocationRequest:
        """The request that all jobs of a queue have."""
        return self._requests.get(queue, NO_REQUEST)

    def _tell_unknown(self, job: JobExecutorInterface) -> None:
        for name, meant in unknown(job.resources).items():
            if name not in self._told:
                self._told.add(name)
                self._logger.warning(f"Rule {job.name}, resource {name} is not known; {meant}")

    def _tell_ignored(self, job: JobExecutorInterface, names: list[str], queue: str) -> None:
        """Loud only where somebody may have meant them to count."""
        if not names or queue in self._told:
            return
        self._told.add(queue)
        verb = "has" if len(names) == 1 else "have"
        said = f"Rule {job.name}: {', '.join(names)} {verb} no effect"
        if queue == self._own_queue:
            self._logger.debug(f"{said} here: the run's workers are in no allocations of Slurm.")
        else:
            self._logger.warning(f"{said} in queue {queue}, whose workers are there already.")
