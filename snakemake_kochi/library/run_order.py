"""The order in which Snakemake starts the runs of batches, with any executor.

Whatever drifts while a batch runs, such as a temperature or the load of a file server, must not
look like an effect of a parameter. So the runs go in rounds, each with every point once in random
order, and begin when nothing is left to build for them.

Snakemake asks its DAG which jobs are ready and what priority each has, and both answers are changed
here. A `priority:` is one number for all jobs of a rule in older versions. An input that all runs
share would stop all of them with one failed build.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from snakemake_kochi.library.batch import BatchRules
from snakemake_kochi.library.run_group import RunGroup
from snakemake_kochi.project.grid import Point

_ATTRIBUTE = "kochi_run_order"  # of a workflow


def in_order(batch: BatchRules) -> list[Point]:
    """The points of a batch in the order in which their runs start.

    It is drawn for the whole grid: a part of a batch, or what a killed run has left, keeps it.
    """
    if batch.seed is None:
        return list(batch.grid.points)
    rounds: dict[int, list[Point]] = {}
    for point in batch.grid.points:
        rounds.setdefault(point.duplicate, []).append(point)
    # Batches of one seed and one grid must not have the same unbalanced order.
    generator = random.Random(f"{batch.seed} {batch.grid.batch}")
    for own in rounds.values():
        generator.shuffle(own)
    return [point for number in sorted(rounds) for point in rounds[number]]


class RunOrder:
    """The order of the runs of one workflow; `batches` are called when the DAG exists."""

    def __init__(self, batches: Callable[[], Sequence[BatchRules]]) -> None:
        self._batches = batches
        self._lasts: dict[str, int] = {}  # the priority of the last run of each batch
        self._places: dict[str, dict[int, int]] = {}  # by id of the point
        self._priorities: dict[Any, int] = {}
        self._rules: dict[Any, tuple[BatchRules, RunGroup] | None] = {}
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
        if job not in self._priorities:
            of = self._run_of(job)
            self._priorities[job] = 0 if of is None else self._priority(job, *of)
        return self._priorities[job]

    def _priority(self, job: Any, batch: BatchRules, group: RunGroup) -> int:
        if batch.name not in self._places:
            points = in_order(batch)
            self._places[batch.name] = {id(point): place for place, point in enumerate(points)}
        if not self._lasts:
            last = 1
            for each in reversed(self._batches()):
                self._lasts[each.name] = last
                last += len(each.grid.points)
        places = self._places[batch.name]
        place = places[id(group.point(job.wildcards_dict))]
        return self._lasts[batch.name] + len(places) - 1 - place

    def ready(self, dag: Any, jobs: Collection[Any]) -> Collection[Any]:
        """The ready jobs, of the runs of batches only those whose turn it is.

        It is not their turn while a build, an installation or a preparation of their batch is ready
        or under way. A failed one holds up nothing: the runs with other builds begin.
        """
        if (scheduler := dag.workflow.scheduler) is None:
            return jobs  # no job starts yet
        runs: dict[str, list[Any]] = {}
        batches: dict[str, BatchRules] = {}
        for job in jobs:
            if (of := self._run_of(job)) is not None:
                batches[of[0].name] = of[0]
                runs.setdefault(of[0].name, []).append(job)
        if not runs:
            return jobs
        waiting = {
            name for name in runs if batches[name].seed is not None and name not in self._begun
        }
        if waiting:
            busy = (job for job in (*jobs, *dag._running) if job not in scheduler.failed)
            awaited = frozenset().union(*(self._batches_after(dag, job) for job in busy))
            for name in waiting - awaited:
                self._begun.add(name)
                _say(batches[name], len(runs[name]))
            waiting &= awaited
        ready = [job for name, own in runs.items() if name not in waiting for job in own]
        return [*(job for job in jobs if self._run_of(job) is None), *self._next(scheduler, ready)]

    def _next(self, scheduler: Any, runs: Sequence[Any]) -> list[Any]:
        """The first of the runs, as many as there is room for.

        Snakemake would prefer two later runs with one core to an earlier one with two.
        """
        left = {
            name: amount
            for name, amount in scheduler.resources.items()
            if isinstance(amount, int) and name != "_job_count"  # set after this
        }
        found = []
        for job in sorted(runs, key=self.priority, reverse=True):
            found.append(job)
            needed = job.scheduler_resources
            left = {name: amount - needed.get(name, 0) for name, amount in left.items()}
            if any(amount < 0 for amount in left.values()):
                break
        return found

    def _batches_after(self, dag: Any, job: Any) -> frozenset[str]:
        """The batches whose runs use what a job makes, or what is made of it; none for a run."""
        if job not in self._waiting:
            found: set[str] = set()
            seen = {job}
            left = [] if self._run_of(job) else [job]
            while left:
                for each in _depending(dag, left.pop()):
                    if each in seen:
                        continue
                    seen.add(each)
                    if (of := self._run_of(each)) is None:
                        left.append(each)
                    else:
                        found.add(of[0].name)
            self._waiting[job] = frozenset(found)
        return self._waiting[job]

    def _run_of(self, job: Any) -> tuple[BatchRules, RunGroup] | None:
        """The batch and the group of a run; None for any other job, and for a group of jobs."""
        if job.is_group():
            return None
        if job.rule not in self._rules:
            functions = (getattr(value, "callable", None) or value for value in job.rule.params)
            found = (getattr(function, "run_of", None) for function in functions)
            self._rules[job.rule] = next((of for of in found if of is not None), None)
        return self._rules[job.rule]


def _say(batch: BatchRules, runs: int) -> None:
    if runs > 1:
        _logger().info(
            f"{batch.experiment.file}: batch {batch.grid.batch}: {runs} runs start in rounds, in "
            f"random order, seed {batch.seed}"
        )


def _logger() -> Any:
    return importlib.import_module("snakemake.logging").logger


def _give_up(workflow: Any, error: AttributeError) -> None:
    """Another version of Snakemake lacks a part: the runs start in its own order."""
    setattr(workflow, _ATTRIBUTE, None)
    _logger().warning(f"the runs of batches do not start in rounds with this Snakemake: {error}")


def _depending(dag: Any, job: Any) -> Iterator[Any]:
    for each in job.jobs if job.is_group() else (job,):
        yield from dag.depending[each]
