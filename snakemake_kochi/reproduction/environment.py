"""How the environment of a run differs from that of the record that it repeats.

Compared are the node, its hardware and system, the facts of the user, and what determined the
installations of recipes. The load is not compared: it is never the same.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from snakemake_kochi.phases.freeze import Freeze
from snakemake_kochi.phases.install import expected_digests
from snakemake_kochi.phases.node import hardware, system
from snakemake_kochi.project.recipes import Recipe

_NOT_RECORDED = "not recorded"
# Where a record has each, and its name for people.
_NAMES = {
    ("node",): "node",
    ("machine",): "machine",
    ("hardware", "architecture"): "architecture",
    ("hardware", "cpu_model"): "CPU",
    ("hardware", "sockets"): "sockets",
    ("hardware", "cores"): "cores",
    ("hardware", "threads"): "hardware threads",
    ("hardware", "memory_mb"): "memory in MiB",
    ("system", "os"): "system",
    ("system", "kernel"): "kernel",
    ("system", "governor"): "CPU governor",
    ("system", "turbo"): "turbo",
}


@dataclass(frozen=True)
class Difference:
    """What differs, for people, and its two values."""

    what: str
    recorded: str
    now: str

    def __str__(self) -> str:
        return f"{self.what}: {self.recorded} -> {self.now}"


def environment_here(freeze: Freeze, recipes: list[Recipe]) -> dict[str, Any]:
    """The environment of a run on this host, in the form of a record, as far as it is known before
    the run: without the user's facts, which are found out by the run."""
    return {
        "node": platform.node(),
        "machine": freeze.machine_name,
        "hardware": hardware(),
        "system": system(None),
        "recipes": [
            {"dependency": recipe.dependency, "recipe": recipe.name, "digest": digest}
            for recipe, digest in expected_digests(freeze, recipes)
        ],
    }


def differences(record: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """What `now` has and the record has otherwise, or not at all."""
    was = _described(record)
    return [
        Difference(what, was.get(what, _NOT_RECORDED), value)
        for what, value in _described(now).items()
        if was.get(what, _NOT_RECORDED) != value
    ]


def _described(record: Mapping[str, Any]) -> dict[str, str]:
    return dict(_values(record))


def _values(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for (first, *rest), what in _NAMES.items():
        value = record.get(first)
        for key in rest:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            yield what, str(value)
    for recipe in record.get("recipes") or ():
        # An installation made again has a number after its digest.
        digest = str(recipe["digest"]).partition("-")[0]
        yield f"recipe {recipe['dependency']}:{recipe['recipe']}", digest
    facts = record.get("facts")
    for name, fact in facts.items() if isinstance(facts, Mapping) else ():
        if isinstance(fact, Mapping):
            yield str(name), str(fact.get("output", "")).strip()
