"""The queues of a run, by what jobs request, and what is known of jobs that are not ready.

As in `internals.py`, each use of Snakemake has a fall-back: a job is judged when it is ready, and a
message names its rule alone.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.executor.internals import TO_BE_DETERMINED
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


# ---- jobs that are not ready

# A resource that depends on a checkpoint is 0, which counts as not given.
_NOT_KNOWN = (TO_BE_DETERMINED, 0)


@dataclass(frozen=True)
class ExpectedJob:
    """A job that may not be ready, with its future resources as far as they are known."""

    name: str
    threads: int
    resources: Mapping[str, Any]
    point: str = ""  # see `point_of`


def expected_job(job: Any) -> ExpectedJob | None:
    """A job with its resources; None if they cannot be determined yet.

    They are computed beside the job: the value that it would keep might differ from the one it has
    when its input exists.
    """
    try:
        # The job waits for a checkpoint to know its input. For a group, the sum of its resources is
        # known when it is ready.
        if job.incomplete_input_expand or job.group is not None:
            return None
        found = job.rule.expand_resources(
            job.wildcards_dict, job.input, job.attempt, skip_evaluation={"tmpdir"}
        )
        values = {name: value for name, value in found.items() if value not in _NOT_KNOWN}
        return ExpectedJob(job.name, int(found.get("_cores")), values, point_of(job))
    except Exception:
        # Any error: a user's function may read a file that does not exist yet, or this may be
        # another version of Snakemake.
        return None


def has_functions(job: Any, names: Collection[str]) -> bool:
    """Whether functions of its own give a job's rule its threads, or resources of these names.

    True if this is not known. Those of `--default-resources`, which all rules share, do not count.
    """
    try:
        defaults = _default_resources(job.rule.workflow.resource_settings)
        return any(
            _is_function(value) and not _is_same(value, defaults.get(name))
            for name, value in job.rule.resources.items()
            if name == "_cores" or name in names
        )
    except Exception:
        return True


def _default_resources(settings: Any) -> Mapping[str, Any]:
    found = getattr(settings, "_parsed_default_resources", None)
    if found is None:
        found = getattr(settings.default_resources, "parsed", None)
    return found or {}


def _is_function(value: Any) -> bool:
    if hasattr(value, "is_evaluable"):
        return bool(value.is_evaluable())
    return callable(value) or bool(getattr(value, "callable", None))


def _is_same(value: Any, other: Any) -> bool:
    # An older Snakemake copies the defaults, functions and all.
    return value is other or (isinstance(value, str) and value == other)


def needed_only_for(jobs: Collection[Any], workflow: Any) -> Collection[Any]:
    """The jobs that must be executed only because some jobs need them; empty if not known."""
    found: set[Any] = set()
    with suppress(Exception):
        dag = workflow.dag
        others: dict[Any, int] = {}  # how many more need a job; a build may have thousands
        left = list(jobs)
        while left:
            for job in dag.dependencies.get(left.pop(), ()):
                if job in jobs or job in dag.targetjobs:
                    continue
                if job not in others:
                    others[job] = sum(map(dag.needrun, dag.depending[job]))
                others[job] -= 1
                if not others[job]:
                    found.add(job)
                    left.append(job)
    return found


# ---- points of batches


def _of_point(job: Any) -> Any:
    """The function among the params of a job that our library made for a point; None otherwise."""
    with suppress(Exception):
        for value in job.rule.params:
            function = getattr(value, "callable", None) or value
            if hasattr(function, "describe") and hasattr(function, "kind"):
                return function
    return None


def point_of(job: Any) -> str:
    """The point that a job runs, for people; "" for any other job."""
    if isinstance(job, ExpectedJob):
        return job.point
    with suppress(Exception):
        return str(_of_point(job).describe(job.wildcards_dict))
    return ""


def kind_of_point(job: Any) -> Hashable:
    """A key that is the same for points that request the same; None for any other job."""
    with suppress(Exception):
        kind: Hashable = _of_point(job).kind(job.wildcards_dict)
        return kind
    return None
