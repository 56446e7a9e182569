"""Values for rules: params that Snakemake uses as they are, and what jobs request.

A value that all jobs of a rule share is a constant: Snakemake inspects the signature of a function
again and again for each job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from snakemake_kochi.project.requests import Request

# A value of `params:`, or a function of the wildcards that ignores them.
Verbatim = Any
# A value of `resources:` or `threads:`, or a function of the wildcards.
Resource = Any
RequestOf = Callable[[Mapping[str, str]], Request]


def rule_resources(requests: Iterable[Request], request_of: RequestOf) -> dict[str, Resource]:
    """The resources of a rule whose jobs have these requests; `request_of` finds that of a job."""
    each = _different(requests)
    names = dict.fromkeys(name for request in each for name in request.of_rule)
    return {name: _resource(name, each, request_of) for name in names}


def _resource(name: str, requests: Iterable[Request], request_of: RequestOf) -> Resource:
    values = {request.of_rule.get(name) for request in requests}
    if len(values) == 1:
        return verbatim(values.pop())
    return lambda wildcards: request_of(wildcards).of_rule.get(name)


def rule_threads(requests: Iterable[Request], request_of: RequestOf, least: int) -> Resource:
    """The threads of a rule: the cores that its jobs request on one node, at least so many."""
    threads = {max(least, request.threads or least) for request in _different(requests)}
    if len(threads) <= 1:
        return threads.pop() if threads else least
    return lambda wildcards: max(least, request_of(wildcards).threads or least)


def limits_of_phase(request: Request, resources: Any) -> list[str]:
    """What a job may use, as options of its phase.

    `resources`: those that Snakemake gives the job, which a profile or an option may have changed.
    A changed `runtime` replaces the timeout.
    """
    from snakemake_kochi.schedulers.names import NUMBERS

    given = {name: resources.get(name) for name in request.of_rule if name in NUMBERS}
    words = [f"--resource={name}={value}" for name, value in given.items() if _is_number(value)]
    if request.timeout is not None:
        runtime = given["runtime"]
        is_changed = _is_number(runtime) and runtime != request.of_rule["runtime"]
        words.append(f"--timeout={60 * runtime if is_changed else request.timeout}")
    return words


def _is_number(value: object) -> bool:
    # Not a text: a dry run has "<TBD>" for what is not known.
    return isinstance(value, int) and not isinstance(value, bool)


def _different(requests: Iterable[Request]) -> list[Request]:
    # Points with the same values share one, and there may be a million points.
    return list({id(request): request for request in requests}.values())


def verbatim(value: Any) -> Verbatim:
    """A value for a rule's `params:` that Snakemake uses as it is: in plain text it would look for
    wildcards, and find the `${HOME}` of a script."""
    texts = value if isinstance(value, list) else [value]
    if all(isinstance(t, bool | int) or (isinstance(t, str) and "{" not in t) for t in texts):
        # Snakemake inspects the signature of a function again and again for each job: with the ten
        # functions of a run that took a fifth of the time of a large batch's DAG.
        return value
    return lambda wildcards: value
