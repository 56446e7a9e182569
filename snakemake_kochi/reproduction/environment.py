"""How the environment of a run differs from that of the record that it repeats.

Compared are the node, its hardware and system, the facts of the user, and what determined the
installations of recipes. The load is not compared: it is never the same.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from snakemake_kochi.phases.freeze import Freeze
from snakemake_kochi.phases.make import expected_digests
from snakemake_kochi.phases.node import Facts, hardware, system
from snakemake_kochi.phases.products import Install
from snakemake_kochi.phases.script import Environment
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


def environment_here(
    freeze: Freeze, recipes: Sequence[Recipe], commands: Mapping[str, str], build: str
) -> dict[str, Any]:
    """The environment of runs with these recipes on this host, in the form of a record.

    Nothing is executed: `commands` are those of facts, and of these only what runs of the same
    `build` found on this node, not long ago, is told.
    """
    digests = dict(expected_digests(freeze, recipes))
    return {
        "node": platform.node(),
        "machine": freeze.machine_name,
        "hardware": hardware(),
        "system": system(None),
        "facts": _facts(freeze, digests, commands, build) if len(digests) == len(recipes) else {},
        "recipes": [
            {"dependency": recipe.dependency, "recipe": recipe.name, "digest": digest}
            for recipe, digest in digests.items()
        ],
    }


def _facts(
    freeze: Freeze, digests: Mapping[Recipe, str], commands: Mapping[str, str], build: str
) -> dict[str, Any]:
    installs = [
        Install(recipe.dependency, recipe.name, digest, "", {}, recipe.activate_script)
        for recipe, digest in digests.items()
    ]
    around = Environment(freeze.machine.load_env_on_machine, installs, {})
    return Facts(commands, around, build).known(freeze.paths.machine(freeze.machine_name))


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
