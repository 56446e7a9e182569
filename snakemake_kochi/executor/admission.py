"""Admission: the resources and the queue of each job of a run, and the jobs that never can run."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.allocation.workers import WorkerProvider
from snakemake_kochi.errors import KochiError, nearest
from snakemake_kochi.executor.internals import (
    TO_BE_DETERMINED,
    ExpectedJob,
    expected_job,
    has_threads_function,
)
from snakemake_kochi.notices import Notices
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import Resources
from snakemake_kochi.schedulers.interface import NO_REQUEST, AllocationRequest, UnreachableError
from snakemake_kochi.schedulers.resources import read_request, requested, unknown

QUEUE = "kochi_queue"  # the resource in which a job names a queue
# The number of jobs of one rule that are examined: each takes half a millisecond.
_LOOKED_AT = 1_000
_ALL_RULES = "to see all rules, type: snakemake --list-rules"


@dataclass(frozen=True)
class Admitted:
    """Admitted jobs by queue, and refused jobs with the reasons.

    Each admitted job has the resources that it takes on a worker there.
    """

    by_queue: Mapping[str, Sequence[tuple[JobExecutorInterface, Resources]]]
    refused: Sequence[tuple[JobExecutorInterface, KochiError]]


@dataclass(frozen=True)
class Assignment:
    """The queue of a job, and the resources that it takes on a worker."""

    queue: str
    resources: Resources
    request: AllocationRequest = NO_REQUEST


class JobQueues:
    """The run's own queues, one for each request. Queues that others may serve have none."""

    def __init__(
        self, own_queue: str | None, are_granted: bool, logger: LoggerExecutorInterface
    ) -> None:
        """Begin with no queue.

        `own_queue`: the run's queue, None if all jobs go to another one. `are_granted`: whether its
        workers are in allocations, to which requests apply.
        """
        self._own_queue = own_queue
        self._are_granted = are_granted
        self._logger = logger
        self._queues: dict[AllocationRequest, str] = {}
        self._requests: dict[str, AllocationRequest] = {}
        self._notices = Notices(logger)

    def assign(self, job: JobExecutorInterface, queue: str, wanted: Resources) -> Assignment:
        """Assign a queue to a job.

        `queue`: the queue that the job goes to. `wanted`: the resources that it takes if it
        requests none. Raises KochiError, naming the rule and the resource.
        """
        self._tell_unknown(job)
        names = requested(job.resources)
        if not self._are_granted:
            self._tell_ignored(job, names, queue)
            return Assignment(queue, wanted)
        is_alone = wanted.exclusive
        request, wanted = read_request(job.name, job.resources, wanted)
        if queue != self._own_queue:
            self._tell_ignored(job, names if request != NO_REQUEST else [], queue)
            return Assignment(queue, wanted)
        if is_alone:
            # A worker without jobs may have only a part of a node, and share it with other users'
            # jobs.
            request = replace(request, whole_nodes=True)
        if request == NO_REQUEST:
            return Assignment(queue, wanted)
        if request not in self._queues:
            own = f"{queue}-{request.name}"
            self._queues[request], self._requests[own] = own, request
        return Assignment(self._queues[request], wanted, request)

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
        if queue == self._own_queue:
            self._logger.debug(f"{said} here: the run's workers are in no allocations.")
        else:
            self._logger.warning(f"{said} in queue {queue}, whose workers exist already.")


class Admission:
    """Decides about the jobs of one run."""

    # The resource of a rule whose jobs may join a queue that other jobs of the run name. A
    # benchmark is then built on the machine where it runs, and no allocation is requested only to
    # build it.
    JOINS = "kochi_joins"

    def __init__(
        self,
        workflow: Any,
        machine: MachinePaths,
        workers: WorkerProvider,
        logger: LoggerExecutorInterface,
        queue: str,
        is_forced: bool,
        has_workers: bool,
    ) -> None:
        """Prepare the decisions.

        `queue`: the queue of jobs that name none or, if it `is_forced`, of all jobs; otherwise it
        is the run's own. `has_workers`: the workers that the run starts, if any.
        """
        self._workflow = workflow
        self._machine = machine
        self._workers = workers
        self._default_queue = queue
        self._own_queue = None if is_forced else queue
        self._has_workers = has_workers
        self._queues = JobQueues(self._own_queue, workers.takes_requests, logger)

    def request_of(self, queue: str) -> AllocationRequest:
        """The allocation request that all jobs of a queue share."""
        return self._queues.of(queue)

    def admit(self, jobs: Sequence[JobExecutorInterface]) -> Admitted:
        is_ours: dict[str, bool] = {}
        by_queue: dict[str, list[tuple[JobExecutorInterface, Resources]]] = {}
        refused = []
        for job in jobs:
            try:
                queue, wanted = self._assign(job, is_ours)
            except KochiError as error:
                refused.append((job, error))
            else:
                by_queue.setdefault(queue, []).append((job, wanted))
        return Admitted(by_queue, refused)

    def _assign(self, job: Any, is_ours: dict[str, bool]) -> tuple[str, Resources]:
        assigned = self._queues.assign(job, self._queue_of(job), resources_of(job))
        queue, wanted = assigned.queue, assigned.resources
        if queue not in is_ours:
            is_ours[queue] = self._workers.will_serve(queue)
        if is_ours[queue]:
            # An unknown limit refuses nothing: the allocation request checks it again.
            with contextlib.suppress(UnreachableError):
                wanted = self._workers.fit(job.name, wanted, assigned.request)
        return queue, wanted

    def _queue_of(self, job: Any) -> str:
        """The queue of a job. Raises KochiError."""
        if self._own_queue is None:
            return self._default_queue
        named = queue_of(job, self._machine)
        if named is None and job.resources.get(self.JOINS):
            for queue in self._named_queues:
                if self._workers.have_one_size or not self._workers.will_serve(queue):
                    return queue
        if named is None and not self._has_workers:
            raise KochiError(
                f"rule {job.name} names no queue, and with --kochi-workers 0 the run's own queue "
                "has no worker: the job would wait for ever",
                "Give the rule a queue (resources: kochi_queue=...), name one for all jobs with "
                "--kochi-queue, or leave out --kochi-workers 0.",
            )
        return named or self._own_queue

    @cached_property
    def _named_queues(self) -> tuple[str, ...]:
        """The queues that jobs name, as far as one job of each rule shows."""
        jobs = self._of_each_rule(())
        named = (job.resources.get(QUEUE) for job in jobs)
        return tuple(dict.fromkeys(str(queue) for queue in named if queue))

    def refuse_what_never_runs(
        self,
        jobs: Sequence[JobExecutorInterface],
        refused: Collection[tuple[JobExecutorInterface, KochiError]],
    ) -> None:
        """Refuse, before the first submission, jobs that can never run.

        Raises one KochiError for all of these `jobs` that are `refused`, and for all rules of which
        no job can ever run, as far as this is known.
        """
        errors = [error for _, error in refused]
        for job in self._of_each_rule(frozenset(jobs)):
            try:
                self._assign(job, {})
            except KochiError as error:
                errors.append(error)
        if errors:
            raise _all_of(errors)

    def _of_each_rule(self, known: Collection[JobExecutorInterface]) -> Iterator[ExpectedJob]:
        """One job of each rule that must be executed, without the `known` rules.

        If a function gives a rule its threads, one job for each number of threads.
        """
        counts: Counter[str] = Counter()
        seen = set()
        for job in self._workflow.dag.needrun_jobs():
            if job in known or counts[job.name] >= (_LOOKED_AT if has_threads_function(job) else 1):
                continue
            counts[job.name] += 1
            if job.is_local or (found := expected_job(job)) is None:
                continue
            if (found.name, found.threads) not in seen:
                seen.add((found.name, found.threads))
                yield found


def unknown_rules(workflow: Any) -> Iterator[str]:
    """A message about each rule that an option names and the workflow does not have.

    Snakemake says nothing, and the rule that was meant would not get the option.
    """
    settings = workflow.resource_settings
    named = {
        "--set-threads": settings.overwrite_threads,
        "--set-resources": settings.overwrite_resources,
        "--groups": workflow.group_settings.overwrite_groups,
    }
    rules = [rule.name for rule in workflow.rules]
    for option, names in named.items():
        for name in names:
            if name not in rules:
                close = nearest(name, rules)
                # A workflow may have hundreds of rules.
                said = close if close.startswith("did you mean") else _ALL_RULES
                yield f"{option}: there is no rule '{name}'; {said}"


def _all_of(errors: Sequence[KochiError]) -> KochiError:
    """One error, with a line for each different message."""
    messages = sorted({error.message for error in errors})
    hints = sorted({error.hint for error in errors if error.hint})
    return KochiError("\n".join(messages), "\n".join(hints) or None)


# ---- what a job requests


def queue_of(job: JobExecutorInterface, machine: MachinePaths) -> str | None:
    """The queue that a job names in its resource `kochi_queue`, or None.

    Raises KochiError, naming the rule, for an invalid name.
    """
    queue = job.resources.get(QUEUE)
    if queue is None or queue == "":
        return None
    try:
        return machine.queue(str(queue)).name
    except KochiError as error:
        raise KochiError(
            f"rule {job.name}, resource {QUEUE}: {error.message}", error.hint
        ) from error


def resources_of(job: JobExecutorInterface) -> Resources:
    """The resources that a job requests.

    Raises KochiError, naming the rule, for an invalid resource.
    """
    runtime = _amount(job, "runtime", 1)
    return Resources(
        cores=max(1, job.threads),
        exclusive=bool(job.resources.get("kochi_exclusive", 0)),
        pinned=bool(job.resources.get("kochi_pinned", 1)),
        memory_mb=_amount(job, "mem_mb", 0),
        gpus=_amount(job, "gpu", 0) or 0,
        # Snakemake counts it in minutes.
        runtime_seconds=None if runtime is None else 60 * runtime,
    )


def _amount(job: JobExecutorInterface, name: str, least: int) -> int | None:
    """A numeric resource; None if the job has none, or if it is not known before the job runs."""
    value = job.resources.get(name)
    if value is None or value in (TO_BE_DETERMINED, ""):
        return None
    number = _number(value)
    if number is None or number < least:
        raise KochiError(
            f"rule {job.name}, resource {name}: {value} cannot be used: a number from {least} was "
            "expected"
        )
    return number


def _number(value: object) -> int | None:
    """A number, also one written as text, as a profile may contain it."""
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    return math.ceil(value) if isinstance(value, int | float) else None
