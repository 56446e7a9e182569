"""Values for rules: params that Snakemake uses as they are, and what jobs request.

A value that all jobs of a rule share is a constant: Snakemake inspects the signature of a function
again and again for each job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from snakemake_kochi.project.grid import Request
from snakemake_kochi.schedulers.names import NUMBERS

# A value of a rule, or a function of the wildcards.
Value = Any


def verbatim(value: Any) -> Value:
    """A value for a rule's `params:` that Snakemake uses as it is: in plain text it would look for
    wildcards, and find the `${HOME}` of a script."""
    texts = value if isinstance(value, list) else [value]
    if all(isinstance(t, bool | int) or (isinstance(t, str) and "{" not in t) for t in texts):
        return value
    return lambda wildcards: value


def shared(values: Iterable[Any], value_of: Callable[[Mapping[str, str]], Any]) -> Value:
    """The value of all jobs of a rule if it is one, else the function."""
    distinct = set(values)
    return verbatim(distinct.pop()) if len(distinct) == 1 else value_of


def rule_resources(
    requests: Iterable[Request], request_of: Callable[[Mapping[str, str]], Request]
) -> dict[str, Value]:
    """The resources of a rule whose jobs have these requests; `request_of` finds that of a job."""
    # Points with the same values share one, and there may be a million points.
    distinct = list({id(request): request for request in requests}.values())

    def resource(name: str) -> Value:
        values = (request.of_rule.get(name) for request in distinct)
        return shared(values, lambda wildcards: request_of(wildcards).of_rule.get(name))

    names = dict.fromkeys(name for request in distinct for name in request.of_rule)
    return {name: resource(name) for name in names}


def limits_of_phase(request: Request, resources: Any) -> list[str]:
    """What a job may use, as options of its phase.

    `resources`: those that Snakemake gives the job, which a profile or an option may have changed.
    A changed `runtime` replaces the timeout.
    """
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
