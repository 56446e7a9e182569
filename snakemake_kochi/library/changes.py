"""Why a result is stale: what of its record differs from what would run now, in words.

Whether it is stale is one comparison: the digest of what determines a run (`BatchRules.identity`)
contains the names of its build and of what was prepared, and these contain all that determines
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from snakemake_kochi.errors import KochiError
from snakemake_kochi.library.batch import BatchRules
from snakemake_kochi.phases.batch_freeze import shown_variables
from snakemake_kochi.phases.build import sources_of
from snakemake_kochi.phases.freeze import Freeze
from snakemake_kochi.project.grid import Phase, Point
from snakemake_kochi.project.recipes import Recipe
from snakemake_kochi.snapshot import list_entries

_MOST_FILES = 3
_SHORT = 12  # digits of an id
_OTHER_CODE = "source files or recipes changed (KOCHI_ROOT does not have the code of that run)"
EDITED = "its record was edited"
OTHER_PRODUCTS = "made with another installation or build than the one that is in use here"
_OBJECT = re.compile(r"[0-9a-f]{40,64}")
_UNNAMED = (
    "load_env_script, strict, the text of a launcher or the details of isolation changed, or "
    "something else that records do not have"
)

_Sources = dict[str, tuple[str, str]]  # path -> object, mode


class Changes:
    """Compares records of a batch with what would run now. They may be of anybody, and edited."""

    def __init__(self, batch: BatchRules) -> None:
        self._batch = batch
        self._sources: dict[str, _Sources | None] = {}

    def since(self, record: Mapping[str, Any], point: Point) -> str:
        """What differs, the most telling first, as far as records tell; never empty."""
        try:
            found = list(dict.fromkeys(self._since(record, point)))
            if not found and self._sources_in(str(record["snapshot"]["tree"])) is None:
                found = [_OTHER_CODE]
        except (KeyError, TypeError, AttributeError):
            found = [EDITED]
        return "; ".join(found) or _UNNAMED

    def _since(self, record: Mapping[str, Any], point: Point) -> Iterator[str]:
        grid, variant = self._batch.grid, self._batch.variants.at(point)
        if record["run_script"] != grid.run.script:
            yield "run script changed"
        if record["build_script"] != grid.build.script:
            yield "build script changed"
        yield from self._in_sources(str(record["snapshot"]["tree"]), variant.freeze)
        yield from _in_parameters(record["run_parameters"], grid.run, point)
        yield from _in_parameters(record["build_parameters"], grid.build, point)
        yield from self._in_recipes(record["recipes"], variant.recipes)
        made = {(each["type"], each["dest"], each["src"]) for each in record["artifacts"]}
        if made != {(each.type, each.dest, each.src) for each in point.artifacts}:
            yield "artifacts changed"
        if (record.get("isolation") is None) != (grid.run.isolation is None):
            yield "isolation of the run changed"
        launcher = self._batch.placement(point).launcher.name
        if (record.get("launcher") or {}).get("name", "") != launcher:
            yield "launcher changed"
        prepared = (record.get("preparation") or {}).get("prepare") or {}
        if prepared.get("script") != (grid.prepare.script if grid.prepare else None):
            yield "prepare script changed"

    def _in_sources(self, tree: str, freeze: Freeze) -> Iterator[str]:
        if tree == freeze.snapshot.tree:
            return
        present, before = self._sources_in(freeze.snapshot.tree), self._sources_in(tree)
        if before is None or present is None:
            return
        paths = [
            path for path in sorted({*before, *present}) if before.get(path) != present.get(path)
        ]
        for path in paths[:_MOST_FILES]:
            if path not in before:
                yield f"{path} is new"
            else:
                yield f"{path} changed" if path in present else f"{path} is gone"
        if (more := len(paths) - _MOST_FILES) > 0:
            yield f"{more} more source file{'s' if more > 1 else ''} changed"

    def _sources_in(self, tree: str) -> _Sources | None:
        """The source files of the experiment in a snapshot; None if it is not there any more."""
        if tree not in self._sources:
            self._sources[tree] = None
            if not _OBJECT.fullmatch(tree):  # a record of somebody else: it is no option of git
                return None
            freeze = self._batch.freeze
            with suppress(KochiError):
                entries = list_entries(freeze.paths.store, tree)
                own = sources_of(entries, freeze, self._batch.experiment)
                self._sources[tree] = {each.path: (each.object, each.mode) for each in own}
        return self._sources[tree]

    def _in_recipes(
        self, recorded: Iterable[Mapping[str, Any]], recipes: Iterable[Recipe]
    ) -> Iterator[str]:
        used = {str(each["dependency"]): each for each in recorded}
        needed = {each.dependency: each for each in recipes}
        for dependency in needed.keys() | used.keys():
            before = f"{dependency}:{used[dependency]['recipe']}" if dependency in used else ""
            recipe = needed.get(dependency)
            if recipe is None:
                yield f"recipe {before} is not used any more"
            elif not before:
                yield f"recipe {recipe} is used now"
            elif before != str(recipe):
                yield f"recipe {recipe} instead of {before}"
            else:
                for what in self._in_recipe(recipe, used[dependency]):
                    yield f"recipe {recipe}: {what}"

    def _in_recipe(self, recipe: Recipe, recorded: Mapping[str, Any]) -> Iterator[str]:
        now = {
            "script": recipe.install_script,
            "envs": shown_variables(recipe.envs),
            "activate_script": recipe.activate_script,
        }
        yield from (
            f"its {key} changed" for key, value in now.items() if recorded.get(key, value) != value
        )
        source = self._batch.freeze.sources.get(str(recipe), {})
        before = recorded.get("source") or {}
        if "commit" in source and source["commit"] != before.get("commit"):
            yield f"new commit {source['commit'][:_SHORT]}"
        elif "tree" in source and source["tree"] != before.get("tree"):
            yield f"directory {recipe.mirror_dir} changed"


def _in_parameters(seen: Mapping[str, str], phase: Phase, point: Point) -> Iterator[str]:
    now = {n: point.parameters[n] for n in phase.depend_params if n in point.parameters}
    for name in dict.fromkeys((*seen, *now)):
        if name not in now:
            yield f"parameter {name} is not seen any more"
        elif name not in seen:
            yield f"parameter {name} is seen now"
        elif seen[name] != now[name]:
            yield f"parameter {name} is {now[name]}, was {seen[name]}"
