"""Which queue each job of a run goes to, and which job can never run there."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from snakemake_interface_executor_plugins.jobs import JobExecutorInterface

from snakemake_kochi.allocation.workers import WorkerProvider
from snakemake_kochi.errors import KochiError, nearest
from snakemake_kochi.executor.job_queues import JobQueues
from snakemake_kochi.executor.translate import QUEUE, resources_of
from snakemake_kochi.queue import Resources
from snakemake_kochi.schedulers.interface import UnreachableError

# What Snakemake has for a value that depends on files that are not there yet; and for one that
# depends on a checkpoint, which is as if nothing was said.
_NOT_KNOWN = ("<TBD>", 0)
# Of one rule: to ask a job takes half a millisecond.
_LOOKED_AT = 1_000
_ALL_RULES = "all rules are shown by: snakemake --list-rules"


@dataclass(frozen=True)
class Admitted:
    """Jobs by queue, each with what it takes of a worker there, and those that are refused, each
    with why."""

    by_queue: Mapping[str, Sequence[tuple[JobExecutorInterface, Resources]]]
    refused: Sequence[tuple[JobExecutorInterface, KochiError]]


@dataclass(frozen=True)
class _Foreseen:
    """A job that may not be ready, as it will be as far as that can be told."""

    name: str
    threads: int
    resources: Mapping[str, Any]


class Admission:
    """For one run. `queue_for`: the queue a job names, else the run's own; it raises KochiError."""

    # The resource of a rule whose jobs may go to a queue that others of the run name: what a
    # benchmark is built for is then where it runs, and no allocation is asked for only to build it.
    JOINS = "kochi_joins"

    def __init__(
        self,
        workflow: Any,
        requests: JobQueues,
        workers: WorkerProvider,
        queue_for: Callable[[JobExecutorInterface], str],
        own_queue: str | None,
    ) -> None:
        """`own_queue`: that of jobs that name none; None where all go to another one."""
        self._workflow = workflow
        self._requests = requests
        self._workers = workers
        self._queue_for = queue_for
        self._own_queue = own_queue

    def admit(self, jobs: Sequence[JobExecutorInterface]) -> Admitted:
        is_ours: dict[str, bool] = {}
        by_queue: dict[str, list[tuple[JobExecutorInterface, Resources]]] = {}
        refused = []
        for job in jobs:
            try:
                queue, wanted = self._place(job, is_ours)
            except KochiError as error:
                refused.append((job, error))
            else:
                by_queue.setdefault(queue, []).append((job, wanted))
        return Admitted(by_queue, refused)

    def _place(self, job: Any, is_ours: dict[str, bool]) -> tuple[str, Resources]:
        placed = self._requests.place(job, self._queue_of(job), resources_of(job))
        queue, wanted = placed.queue, placed.resources
        if queue not in is_ours:
            is_ours[queue] = self._workers.will_serve(queue)
        if is_ours[queue]:
            # Where nothing is known, nothing is refused: it is asked again for the allocation.
            with contextlib.suppress(UnreachableError):
                wanted = self._workers.fit(job.name, wanted, placed.request)
        return queue, wanted

    def _queue_of(self, job: Any) -> str:
        """Raises KochiError."""
        joins = job.resources.get(self.JOINS) and not job.resources.get(QUEUE)
        if joins and self._own_queue is not None:
            for queue in self._named_queues:
                if self._workers.have_one_size or not self._workers.will_serve(queue):
                    return queue
        return self._queue_for(job)

    @cached_property
    def _named_queues(self) -> tuple[str, ...]:
        """As far as one job of each rule tells."""
        jobs = self._of_each_rule(())
        named = (job.resources.get(QUEUE) for job in jobs)
        return tuple(dict.fromkeys(str(queue) for queue in named if queue))

    def refuse_what_never_runs(
        self,
        jobs: Sequence[JobExecutorInterface],
        refused: Collection[tuple[JobExecutorInterface, KochiError]],
    ) -> None:
        """Before anything is handed over: raise one KochiError for all of these `jobs` that are
        `refused`, and for all rules of which no job can ever run, as far as that can be told."""
        errors = [error for _, error in refused]
        for job in self._of_each_rule(frozenset(jobs)):
            try:
                self._place(job, {})
            except KochiError as error:
                errors.append(error)
        if errors:
            raise _all_of(errors)

    def _of_each_rule(self, known: Collection[JobExecutorInterface]) -> Iterator[_Foreseen]:
        """One job of each rule that is to be executed, but for the `known` ones; where a function
        gives a rule its threads, one for each number of them."""
        counts: Counter[str] = Counter()
        seen = set()
        for job in self._workflow.dag.needrun_jobs():
            if job in known or counts[job.name] >= (_LOOKED_AT if _has_function(job) else 1):
                continue
            counts[job.name] += 1
            if job.is_local or (found := _foresee(job)) is None:
                continue
            if (found.name, found.threads) not in seen:
                seen.add((found.name, found.threads))
                yield found


def unknown_rules(workflow: Any) -> Iterator[str]:
    """What to tell about each rule that an option names and the workflow does not have: Snakemake
    says nothing, and the rule that was meant goes without."""
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
                # All rules of a workflow may be hundreds.
                said = close if close.startswith("did you mean") else _ALL_RULES
                yield f"{option}: there is no rule '{name}'; {said}"


def _has_function(job: Any) -> bool:
    """Whether a function gives the job's rule its threads."""
    try:
        threads = job.rule.resources["_cores"]
        return not isinstance(getattr(threads, "value", threads), int)
    except Exception:
        # Newer versions of Snakemake refuse to say the value of a function; in others there may be
        # something else in its place.
        return True


def _foresee(job: Any) -> _Foreseen | None:
    """None where its resources cannot be told yet. They are computed beside the job: what it would
    keep of them might be another value when its input is there."""
    try:
        # It waits for a checkpoint to know its input; and what a group takes together is known
        # when it is ready.
        if job.incomplete_input_expand or job.group is not None:
            return None
        found = job.rule.expand_resources(
            job.wildcards_dict, job.input, job.attempt, skip_evaluation={"tmpdir"}
        )
        values = {name: value for name, value in found.items() if value not in _NOT_KNOWN}
        return _Foreseen(job.name, int(found.get("_cores")), values)
    except Exception:
        # Whatever it is: a function of the user's that reads a file which is not there yet, or
        # another Snakemake. The job is looked at when it is ready.
        return None


def _all_of(errors: Sequence[KochiError]) -> KochiError:
    """One error, with a line for each that says something else."""
    messages = sorted({error.message for error in errors})
    hints = sorted({error.hint for error in errors if error.hint})
    return KochiError("\n".join(messages), "\n".join(hints) or None)
