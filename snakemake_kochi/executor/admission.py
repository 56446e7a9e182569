"""Admission: the resources and the queue of each job of a run, and the jobs that never can run."""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.errors import KochiError, nearest
from snakemake_kochi.executor.internals import TO_BE_DETERMINED
from snakemake_kochi.executor.job_queues import (
    ExpectedJob,
    JobQueues,
    expected_job,
    has_functions,
    kind_of_point,
    needed_only_for,
    point_of,
)
from snakemake_kochi.executor.tickets import SPREAD_RESOURCE
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.phases.products import NEEDLESS, Failure, is_of_our_rules, write_failure
from snakemake_kochi.schedulers.interface import (
    OF_JOB,
    AllocationRequest,
    UnreachableError,
)
from snakemake_kochi.schedulers.resources import NAMES
from snakemake_kochi.tickets.ticket import Resources

if TYPE_CHECKING:
    from snakemake_kochi.executor.allocated import AllocatedWorkers
    from snakemake_kochi.executor.workers import LocalWorkers

QUEUE = "kochi_queue"  # the resource in which a job names a queue
# The number of jobs that are examined, of a rule and of all rules whose resources are functions:
# each takes half a millisecond.
_LOOKED_AT = 1_000
_LOOKED_AT_IN_ALL = 3_000
_MOST_TOLD = 20  # lines of one error
_MOST_OF_RULE = 3  # of them, those of one rule
# The resources that matter here, also by their names within Snakemake.
_LOOKED_AT_NAMES = frozenset(
    {*NAMES, "mem", "mem_mb", "mem_mib", "gpu", "runtime", "kochi_exclusive", QUEUE}
)
_ALL_RULES = "to see all rules, type: snakemake --list-rules"


# Each with the resources that it takes on a worker.
Jobs = Sequence[tuple[JobExecutorInterface, Resources]]
Refused = Sequence[tuple[JobExecutorInterface, KochiError]]


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
        workers: LocalWorkers | AllocatedWorkers,
        logger: LoggerExecutorInterface,
        private: str,
        forced: str | None,
        has_workers: bool,
    ) -> None:
        """Prepare the decisions.

        `private`: the run's own queue, for jobs that name none. `forced`: the queue of all jobs, if
        the user named one. `has_workers`: whether the run starts workers.
        """
        self._workflow = workflow
        self._machine = machine
        self._workers = workers
        self._private = private
        self._forced = forced
        self._has_workers = has_workers
        self._in_vain: Collection[JobExecutorInterface] = frozenset()
        self._queues = JobQueues(
            *(private, workers.takes_requests, logger),
            *(workers.usual_nodes, workers.have_one_size),
        )

    def request_of(self, queue: str) -> AllocationRequest:
        """The allocation request that all jobs of a queue share."""
        return self._queues.of(queue)

    def admit(self, jobs: Sequence[JobExecutorInterface]) -> tuple[dict[str, Jobs], Refused]:
        """The admitted jobs by queue, and the refused ones with the reasons."""
        is_ours: dict[str, bool] = {}
        by_queue: dict[str, list[tuple[JobExecutorInterface, Resources]]] = {}
        refused = []
        for job in jobs:
            try:
                if job in self._in_vain:
                    raise KochiError(f"rule {job.name}: {NEEDLESS}")
                queue, wanted = self._assign(job, is_ours)
            except KochiError as error:
                refused.append((job, _naming(error, point_of(job))))
            else:
                by_queue.setdefault(queue, []).append((job, wanted))
        return {name: _in_turn(own) for name, own in by_queue.items()}, refused

    def _assign(self, job: Any, is_ours: dict[str, bool]) -> tuple[str, Resources]:
        named = self._queue_of(job)
        is_served = self._serves(named, is_ours)
        queue, wanted, request = self._queues.assign(job, named, resources_of(job), is_served)
        if self._serves(queue, is_ours):
            # An unknown limit refuses nothing: the allocation request checks it again.
            with contextlib.suppress(UnreachableError):
                wanted = self._workers.fit(job.name, wanted, request)
        return queue, wanted

    def _serves(self, queue: str, known: dict[str, bool]) -> bool:
        if queue not in known:
            known[queue] = self._workers.will_serve(queue)
        return known[queue]

    def _queue_of(self, job: Any) -> str:
        """The queue of a job that requests nothing. Raises KochiError."""
        if self._forced is not None:
            return self._forced
        named = queue_of(job, self._machine)
        if named is None and job.resources.get(self.JOINS):
            for queue in self.named_queues:
                if self._workers.have_one_size or not self._workers.will_serve(queue):
                    return queue
        if named is None and not self._has_workers:
            raise KochiError(
                f"rule {job.name} names no queue, and with --kochi-workers 0 the run's own queue "
                "has no worker: the job would wait for ever",
                "Give the rule a queue (resources: kochi_queue=...), name one for all jobs with "
                "--kochi-queue, or leave out --kochi-workers 0.",
            )
        return named or self._private

    @cached_property
    def named_queues(self) -> tuple[str, ...]:
        """The queues that jobs name, as far as one job of each rule shows."""
        jobs = self._of_each_rule((), defaultdict(list))
        named = (job.resources.get(QUEUE) for _, job in jobs)
        return tuple(dict.fromkeys(str(queue) for queue in named if queue))

    def what_never_runs(self, known: Collection[JobExecutorInterface]) -> str:
        """What to say, before the first submission, of jobs that will fail for want of a worker.

        These are all points of batches that can never run, and all rules of which a job never can,
        as far as this is seen without the `known` jobs; "" if there is none. From then on, jobs
        that only they need are refused, too.
        """
        refused: dict[Hashable, KochiError] = {}
        is_ours: dict[str, bool] = {}
        jobs: dict[Hashable, list[Any]] = defaultdict(list)
        for kind, job in self._of_each_rule(known, jobs):
            try:
                self._assign(job, is_ours)
            except KochiError as error:
                refused[kind] = _naming(error, job.point)
        if not refused:
            return ""
        hopeless = [(job, error) for kind, error in refused.items() for job in jobs[kind]]
        self._in_vain = needed_only_for({job for job, _ in hopeless}, self._workflow)
        note_refused(hopeless)
        return f"These jobs will fail:\n{described(hopeless)}"

    def _of_each_rule(
        self, known: Collection[JobExecutorInterface], alike: dict[Hashable, list[Any]]
    ) -> Iterator[tuple[Hashable, ExpectedJob]]:
        """One job of each rule that must be executed, without the `known` jobs, and its kind.

        Of a rule whose resources are functions, many jobs, as far as they differ. Of a batch, one
        point of each request, however many points there are. `alike` gets all jobs by their kind.
        """
        differ: dict[str, bool] = {}
        looked_at: Counter[str] = Counter()
        kind: Hashable
        for job in self._workflow.dag.needrun_jobs():
            if job in known or job.is_local:
                continue
            if job.name not in differ:
                differ[job.name] = has_functions(job, _LOOKED_AT_NAMES)
            found = None
            if (of_point := kind_of_point(job)) is not None:
                kind = (job.name, of_point)
            elif differ[job.name]:
                looked_at[job.name] += 1
                if looked_at[job.name] > _LOOKED_AT or looked_at.total() > _LOOKED_AT_IN_ALL:
                    continue
                if (found := expected_job(job)) is None:
                    continue
                values = {(n, v) for n, v in found.resources.items() if n in _LOOKED_AT_NAMES}
                kind = (job.name, found.threads, frozenset(values))
            else:
                kind = (job.name,)
            alike[kind].append(job)
            if len(alike[kind]) == 1 and (found or (found := expected_job(job))):
                yield kind, found


def _in_turn(jobs: Jobs) -> Jobs:
    """The jobs, with the first of each point before the second ones, where duplicates spread."""
    counts: Counter[str] = Counter()
    turns = []
    for job, _ in jobs:
        spread = str(job.resources.get(SPREAD_RESOURCE) or "")
        turns.append(counts[spread] if spread else 0)
        counts[spread] += 1
    if not any(turns):
        return jobs
    return [jobs[index] for index in sorted(range(len(jobs)), key=turns.__getitem__)]


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


def _naming(error: KochiError, point: str) -> KochiError:
    """The error of a job, with the point that it runs, if any, and the file that requests it."""
    if not point:
        return error
    file = point.partition(":")[0]
    hint = error.hint.replace(OF_JOB, f"run: resources in {file}") if error.hint else error.hint
    return KochiError(f"{point}: {error.message}", hint)


def described(refused: Refused) -> str:
    """The first messages about the jobs of each rule, the number of the others, and each hint."""
    by_rule: dict[str, list[str]] = defaultdict(list)
    for job, error in refused:
        by_rule[job.name].append(error.message)
    lines = []
    for rule, messages in by_rule.items():
        first = sorted(set(messages), key=_natural)[:_MOST_OF_RULE]
        lines += first
        if (more := len(messages) - len(first)) > 0:
            lines.append(f"... and {more} more of rule {rule}, {len(messages)} in all")
    if (left_out := len(lines) - _MOST_TOLD) > 0:
        lines[_MOST_TOLD:] = [f"... and {left_out} more"]
    hints = dict.fromkeys(error.hint for _, error in refused if error.hint)
    return "\n".join([*lines, *hints])


def note_refused(refused: Sequence[tuple[Any, KochiError]]) -> None:
    """Note beside the outputs of our rules why each job fails: one message stands for many."""
    for job, why in refused:
        for output in map(str, job.output):
            if is_of_our_rules(output):
                failure = Failure(why.message.partition("\n")[0], told=True)
                write_failure(Path(output), failure)


def _natural(text: str) -> list[object]:
    """A key for sorting that has n=2 before n=10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", text)]


# ---- what a job requests


def queue_of(job: JobExecutorInterface, machine: MachinePaths) -> str | None:
    """The queue that a job names in its resource `kochi_queue`, or None.

    Raises KochiError, naming the rule, for an invalid name.
    """
    queue = job.resources.get(QUEUE)
    if queue is None or queue == "":
        return None
    try:
        return machine.queue(str(queue))
    except KochiError as error:
        raise KochiError(
            f"rule {job.name}, resource {QUEUE}: {error.message}", error.hint
        ) from error


def resources_of(job: JobExecutorInterface) -> Resources:
    """The resources that a job requests.

    Raises KochiError, naming the rule, for an invalid resource.
    """
    runtime = _amount(job, "runtime")
    return Resources(
        cores=max(1, job.threads),
        exclusive=bool(job.resources.get("kochi_exclusive", 0)),
        pinned=bool(job.resources.get("kochi_pinned", 1)),
        memory_mb=_amount(job, "mem_mb"),
        gpus=_amount(job, "gpu") or 0,
        # Snakemake counts it in minutes. A function of small inputs gives 0.
        runtime_seconds=60 * runtime if runtime else None,
    )


def _amount(job: JobExecutorInterface, name: str) -> int | None:
    """A numeric resource; None if the job has none, or if it is not known before the job runs."""
    value = job.resources.get(name)
    if value is None or value in (TO_BE_DETERMINED, ""):
        return None
    number = _number(value)
    if number is None or number < 0:
        raise KochiError(
            f"rule {job.name}, resource {name}: {value} cannot be used: a number from 0 was "
            "expected"
        )
    return number


def _number(value: object) -> int | None:
    """A number, also one written as text, as a profile may contain it."""
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    if isinstance(value, int | float) and math.isfinite(value):
        return math.ceil(value)
    return None
