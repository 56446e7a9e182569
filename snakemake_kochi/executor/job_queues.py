"""The queues of a run: which one a job goes to, by what it requests of its allocation."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.executor.expected_jobs import point_of
from snakemake_kochi.files import LONGEST_NAME
from snakemake_kochi.notices import Notices
from snakemake_kochi.schedulers.interface import NO_REQUEST, AllocationRequest
from snakemake_kochi.schedulers.names import CONSTRAINTS, OTHER_TEXTS
from snakemake_kochi.schedulers.resources import read_request, requested, unknown
from snakemake_kochi.tickets.ticket import Resources


class Assignment(NamedTuple):
    """The queue of a job, and the resources that it takes on a worker."""

    queue: str
    resources: Resources
    request: AllocationRequest = NO_REQUEST


class JobQueues:
    """The run's own queues, one for each request."""

    def __init__(
        self,
        private: str,
        are_granted: bool,
        logger: LoggerExecutorInterface,
        usual_nodes: int = 1,
        have_one_size: bool = False,
    ) -> None:
        """Begin with no queue.

        `private`: the run's queue for jobs that name and request nothing. `are_granted`: whether
        the run's workers are in allocations to which requests apply, of `usual_nodes` each if
        nothing is requested. `have_one_size`: each has all of its nodes in any case.
        """
        self._have_one_size = have_one_size
        self._private = private
        self._are_granted = are_granted
        self._logger = logger
        self._usual_nodes = usual_nodes
        self._queues: dict[tuple[str, AllocationRequest], str] = {}
        self._requests: dict[str, AllocationRequest] = {}
        self._notices = Notices(logger)

    def assign(
        self, job: JobExecutorInterface, queue: str, wanted: Resources, is_ours: bool
    ) -> Assignment:
        """Assign a queue to a job.

        `queue`: the queue that the job goes to if it requests nothing. `wanted`: the resources that
        it takes then. `is_ours`: whether this run provides the workers of that queue. If a user
        does, these workers take the job, wherever they are, as far as they are large enough. Raises
        KochiError, naming the rule and the resource.
        """
        self._tell_unknown(job)
        if not self._are_granted:
            self._tell_ignored(job, requested(job.resources), queue)
            # A point of a batch is a measurement: on fewer nodes it would be another one.
            nodes = read_request(job.name, job.resources, wanted)[1].nodes if point_of(job) else 1
            return Assignment(queue, replace(wanted, nodes=nodes))
        is_alone = wanted.exclusive
        request, wanted = read_request(job.name, job.resources, wanted)
        if not is_ours:
            names = {*CONSTRAINTS, *OTHER_TEXTS} & set(requested(job.resources))
            self._tell_ignored(job, sorted(names), queue)
            return Assignment(queue, wanted)
        if request.nodes is None and self._usual_nodes > 1 and _has_one_node(job):
            request = replace(request, nodes=1)
        if (
            is_alone
            and not self._have_one_size
            and (request != NO_REQUEST or queue == self._private)
        ):
            # A worker without jobs may have only a part of a node, and share it with other users'
            # jobs.
            request = replace(request, whole_nodes=True)
        if request == NO_REQUEST:
            return Assignment(queue, wanted)
        if (queue, request) not in self._queues:
            own = self._name(queue, request)
            self._queues[queue, request], self._requests[own] = own, request
        return Assignment(self._queues[queue, request], wanted, request)

    def _name(self, queue: str, request: AllocationRequest) -> str:
        """The name of the queue for jobs with a request.

        It begins as that of the run's queue, with which it is removed, whatever queue they name.
        """
        room = LONGEST_NAME - len(f"{self._private}--{request.name}")
        named = f"{queue[:room]}-" if queue != self._private and room > 0 else ""
        return f"{self._private}-{named}{request.name}"

    def of(self, queue: str) -> AllocationRequest:
        """The request that all jobs of a queue share."""
        return self._requests.get(queue, NO_REQUEST)

    def _tell_unknown(self, job: JobExecutorInterface) -> None:
        for name, meant in unknown(job.resources).items():
            text = f"Rule {job.name}, resource {name} is not known; {meant}"
            self._notices.warning(text, key=("unknown", name))

    def _tell_ignored(self, job: JobExecutorInterface, names: list[str], queue: str) -> None:
        """Report ignored requests; as a warning only if the user may have meant them to count."""
        if not names or not self._notices.is_new(("ignored", queue)):
            return
        verb = "has" if len(names) == 1 else "have"
        said = f"Rule {job.name}: {', '.join(names)} {verb} no effect"
        if queue == self._private:
            self._logger.debug(f"{said} here: the run's workers are in no allocations.")
        else:
            self._logger.warning(f"{said} in queue {queue}, whose workers exist already.")


def _has_one_node(job: JobExecutorInterface) -> bool:
    return str(job.resources.get("nodes")).strip() == "1"
