"""The order in which Snakemake starts the runs of batches, with any executor.

Whatever drifts while a batch runs, such as a temperature or the load of a file server, must not
look like an effect of a parameter. So the runs go in rounds, each with every point once in random
order, and begin when nothing is left to build for them.

Snakemake asks its DAG which jobs are ready and what priority each has, and both answers are changed
here. A `priority:` is one number for all jobs of a rule in older versions. An input that all runs
share would stop all of them with one failed build.

Of a batch that is repeated until ratios are known, the sides of a ratio are next to each other.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Collection, Sequence
from typing import Any

from snakemake_kochi.library.batch import BatchRules, RunRule
from snakemake_kochi.project.grid import Point

_ATTRIBUTE = "kochi_run_order"  # of a workflow


def in_order(batch: BatchRules) -> list[Point]:
    """The points of a batch in the order in which their runs start.

    It is drawn for the whole grid: a part of a batch, or what a killed run has left, keeps it.
    """
    points = list(batch.grid.points)
    if batch.seed is not None:
        # Batches of one seed and one grid must not have the same unbalanced order.
        generator = random.Random(f"{batch.seed} {batch.grid.batch}")
        rounds: dict[int, list[Point]] = {}
        for point in points:
            rounds.setdefault(point.duplicate, []).append(point)
        for own in rounds.values():
            generator.shuffle(own)
        repeat = batch.grid.repeat
        ordered = [rounds[number] for number in sorted(rounds)]
        if repeat is not None and repeat.by:
            ordered = [_side_by_side(own, repeat.by) for own in ordered]
        points = [point for own in ordered for point in own]
    return points


def _side_by_side(points: Sequence[Point], by: str) -> list[Point]:
    """The points of a round, with those next to each other that differ in one parameter only."""
    groups: dict[frozenset[tuple[str, str]], int] = {}

    def group(point: Point) -> int:
        shared = frozenset(each for each in point.parameters.items() if each[0] != by)
        return groups.setdefault(shared, len(groups))

    return sorted(points, key=group)


class RunOrder:
    """The order of the runs of one workflow; `batches` are called when the DAG exists."""

    def __init__(self, batches: Callable[[], Sequence[BatchRules]]) -> None:
        self._batches = batches
        self._by_point: dict[int, int] = {}  # priorities by id
        self._by_job: dict[Any, int] = {}
        self._rules: dict[Any, RunRule | None] = {}
        self._waiting: dict[Any, frozenset[str]] = {}  # the batches that use the output of a job
        self._begun: set[str] = set()

    def begin(self, workflow: Any) -> None:
        """Have the DAG of a workflow answer in this order."""
        setattr(workflow, _ATTRIBUTE, self)
        dag_class: Any = importlib.import_module("snakemake.dag").DAG
        if hasattr(dag_class, _ATTRIBUTE):
            return
        try:
            all_ready, given = dag_class.ready_jobs.fget, dag_class.priority
        except AttributeError as error:
            return _give_up(workflow, error)
        setattr(dag_class, _ATTRIBUTE, True)

        def ready_jobs(dag: Any) -> Collection[Any]:
            order: RunOrder | None = getattr(dag.workflow, _ATTRIBUTE, None)
            ready: Collection[Any] = all_ready(dag)
            if order is not None:
                try:
                    return order.ready(dag, ready)
                except AttributeError as error:
                    _give_up(dag.workflow, error)
            return ready

        def priority(dag: Any, job: Any) -> Any:
            order: RunOrder | None = getattr(dag.workflow, _ATTRIBUTE, None)
            return given(dag, job) or (0 if order is None else order.priority(job))

        dag_class.ready_jobs, dag_class.priority = property(ready_jobs), priority

    def priority(self, job: Any) -> int:
        """A run's priority, from 1: those of earlier batches, and earlier runs, are higher."""
        if not self._by_point:
            points = [id(point) for batch in self._batches() for point in in_order(batch)]
            self._by_point = {point: len(points) - at for at, point in enumerate(points)}
        if job not in self._by_job:
            run = self._run_of(job)
            point = None if run is None else run.group.point(job.wildcards_dict)
            self._by_job[job] = self._by_point.get(id(point), 0)
        return self._by_job[job]

    def ready(self, dag: Any, jobs: Collection[Any]) -> Collection[Any]:
        """The ready jobs, of the runs of batches only those whose turn it is.

        It is not their turn while a build, an installation or a preparation of their batch is ready
        or under way. A failed one holds up nothing: the runs with other builds begin.
        """
        if (scheduler := dag.workflow.scheduler) is None:
            return jobs  # no job starts yet
        runs: dict[str, list[Any]] = {}
        batches: dict[str, BatchRules] = {}
        others = []
        for job in jobs:
            if (run := self._run_of(job)) is None:
                others.append(job)
            else:
                batches[run.batch.name] = run.batch
                runs.setdefault(run.batch.name, []).append(job)
        waiting = {name for name, batch in batches.items() if batch.seed is not None} - self._begun
        if waiting:
            busy = (job for job in (*jobs, *dag._running) if job not in scheduler.failed)
            awaited = frozenset().union(*(self._batches_after(dag, job) for job in busy))
            for name in waiting - awaited:
                self._begun.add(name)
                if (count := len(runs[name])) > 1:
                    batch = batches[name]
                    _logger().info(
                        f"{batch.experiment.file}: batch {batch.grid.batch}: {count} runs start in "
                        f"rounds, in random order, seed {batch.seed}"
                    )
            waiting &= awaited
        ready = [job for name, own in runs.items() if name not in waiting for job in own]
        return [*others, *self._next(scheduler, ready)] if runs else jobs

    def _next(self, scheduler: Any, runs: Sequence[Any]) -> list[Any]:
        """The first of the runs, as many as there is room for.

        Snakemake would prefer two later runs with one core to an earlier one with two.
        """
        left = {
            name: amount
            for name, amount in scheduler.resources.items()
            if isinstance(amount, int) and name != "_job_count"  # set after this
        }
        first = []
        for job in sorted(runs, key=self.priority, reverse=True):
            first.append(job)
            needed = job.scheduler_resources
            left = {name: amount - needed.get(name, 0) for name, amount in left.items()}
            if any(amount < 0 for amount in left.values()):
                break
        return first

    def _batches_after(self, dag: Any, job: Any) -> frozenset[str]:
        """The batches whose runs use what a job makes, or what is made of it; none for a run."""
        if job not in self._waiting:
            after: set[str] = set()
            seen, left = {job}, [] if self._run_of(job) else [job]
            while left:
                group = left.pop()
                members = group.jobs if group.is_group() else (group,)
                for each in {user for member in members for user in dag.depending[member]} - seen:
                    seen.add(each)
                    if (run := self._run_of(each)) is None:
                        left.append(each)
                    else:
                        after.add(run.batch.name)
            self._waiting[job] = frozenset(after)
        return self._waiting[job]

    def _run_of(self, job: Any) -> RunRule | None:
        """The rule of a run; None for any other job, and for a group of jobs."""
        if job.is_group():
            return None
        if job.rule not in self._rules:
            functions = (getattr(value, "callable", None) or value for value in job.rule.params)
            own = (getattr(function, "run", None) for function in functions)
            self._rules[job.rule] = next((run for run in own if isinstance(run, RunRule)), None)
        return self._rules[job.rule]


def _logger() -> Any:
    return importlib.import_module("snakemake.logging").logger


def _give_up(workflow: Any, error: AttributeError) -> None:
    """Another version of Snakemake lacks a part: the runs start in its own order."""
    setattr(workflow, _ATTRIBUTE, None)
    _logger().warning(f"the runs of batches do not start in rounds with this Snakemake: {error}")
