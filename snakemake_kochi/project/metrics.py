"""Metrics: what is read off the output of a run, and how figures call and count it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.document import Scalar, optional_text, section
from snakemake_kochi.project.problems import KeyPath, Problems
from snakemake_kochi.project.values import has_control_character, metric_problem

SECONDS = "run_seconds"


@dataclass(frozen=True)
class Quantity:
    """How a measurement is shown: plain texts, empty if not given."""

    unit: str = ""
    label: str = ""


QUANTITIES: Mapping[str, Quantity] = FrozenDict({SECONDS: Quantity("s")})


def read_metrics(data: Mapping[str, Any], path: KeyPath, problems: Problems) -> dict[str, str]:
    """The expressions below a key `metrics`, each given alone or beside its unit."""
    patterns = {}
    for name, value in data.items():
        pattern = value.get("pattern") if isinstance(value, dict) else value
        if not isinstance(pattern, Scalar):
            continue  # which was noted
        patterns[name] = str(pattern)
        if wrong := metric_problem(name):
            problems.add((*path, name), wrong)
        try:
            groups = re.compile(str(pattern)).groups
        except (re.error, RecursionError, OverflowError) as error:
            problems.add((*path, name), f"not a Python regular expression: {error}")
            continue
        if groups != 1:
            problems.add(
                (*path, name),
                f"one group (...) around the number was expected, not {groups}; "
                "write other groups as (?:...)",
            )
    return patterns


def batch_metrics(
    top: Mapping[str, Any],
    batch: Mapping[str, Any],
    path: KeyPath,
    has_output: bool | None,
    problems: Problems,
) -> Mapping[str, str]:
    """The expressions of the file and of one of its batches, at a key path.

    `has_output`: whether an artifact has the output from which they are read; None: unknown. There
    are none without it, which is a mistake only if the batch itself has metrics.
    """
    own = read_metrics(section(batch, "metrics"), (*path, "metrics"), problems)
    if has_output:
        return FrozenDict(read_metrics(section(top, "metrics"), ("metrics",), problems) | own)
    if own and has_output is False:
        problems.add(
            (*path, "metrics"),
            "metrics are read from a run's standard output; add an artifact of type stdout",
        )
    return FrozenDict()


def batch_quantities(
    top: Mapping[str, Any], batch: Mapping[str, Any], path: KeyPath, problems: Problems
) -> Mapping[str, Quantity]:
    """How the measurements of the file and of one of its batches are shown."""
    found = dict(QUANTITIES)
    for data, place in ((top, ()), (batch, path)):
        for name, value in section(data, "metrics").items():
            keys = value if isinstance(value, dict) else {}
            texts = {key: optional_text(keys.get(key)) or "" for key in ("unit", "label")}
            for key, text in texts.items():
                if has_control_character(text):
                    problems.add((*place, "metrics", name, key), "one line of text was expected")
            found[name] = Quantity(**texts)
    return FrozenDict(found)
