"""The keys `resources` and `timeout` of experiments and recipes, which several levels may have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from snakemake_kochi.project.document import optional_text, section
from snakemake_kochi.project.problems import KeyPath, Problems
from snakemake_kochi.project.requests import Request, plain_request


def merged(above: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a phase or recipe, and over them those of a batch or of one recipe.

    Resources are merged by name. The time limit is one key with two names: `timeout` replaces a
    `runtime` in `resources`, and the reverse.
    """
    resources = section(above, "resources") | section(own, "resources")
    keys = {**above, **own}
    if "timeout" in own:
        resources.pop("runtime", None)
    elif "runtime" in section(own, "resources"):
        keys.pop("timeout", None)
    return {**keys, "resources": resources}


def check_request_keys(data: Mapping[str, Any], path: KeyPath, problems: Problems) -> None:
    """Note two time limits in the section at a key path."""
    if "runtime" in section(data, "resources") and optional_text(data.get("timeout")):
        problems.add(
            (*path, "timeout"),
            "there is a 'runtime' in 'resources', too; leave out one of the two: a timeout is "
            "exact, and gives a runtime",
        )


def plain_request_of(
    above: Mapping[str, Any], own: Mapping[str, Any], path: KeyPath, problems: Problems
) -> Request:
    """The request of a recipe, whose values are plain; `path` is that of its own section."""
    for place, data in ((path[:2], above), (path, own)):
        check_request_keys(data, place, problems)
    data = merged(above, own)
    resources = {name: value.value_text for name, value in section(data, "resources").items()}
    request, wrong = plain_request(resources, optional_text(data.get("timeout")) or "")
    for key, said in wrong.items():
        problems.add(problems.source_map.first((*path, *key), (*path[:2], *key)), said)
    return request
