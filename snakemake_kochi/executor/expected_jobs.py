"""What is known of jobs that are not ready, and of the points of batches that jobs run.

As in `internals.py`, each use of Snakemake has a fall-back: a job is judged when it is ready, and a
message names its rule alone.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from snakemake_kochi.executor.internals import TO_BE_DETERMINED

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
