"""Which installations are in use, and whether they match kochi.yaml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from snakemake_kochi.errors import PhaseError
from snakemake_kochi.files import read_json
from snakemake_kochi.paths import ProjectPaths
from snakemake_kochi.phases.install import current_record, is_described_by
from snakemake_kochi.phases.products import MANIFEST_VERSION, Install
from snakemake_kochi.project.machines import Machine
from snakemake_kochi.project.recipes import Recipe

State = Literal["installed", "stale", "NOT installed"]


@dataclass(frozen=True)
class RecipeState:
    """A recipe and the installation in use, if any.

    "stale": since then, the recipe was changed, or one of its dependencies was installed again.
    Newer sources are not looked up. `since` is ISO 8601.
    """

    recipe: Recipe
    state: State
    install: Install | None
    since: str | None


def recipe_states(
    paths: ProjectPaths, machine: Machine, recipes: Sequence[Recipe]
) -> tuple[RecipeState, ...]:
    """The states of recipes. Raises DamagedFileError for a record that cannot be read."""
    return tuple(_state(paths, machine, recipe) for recipe in recipes)


def current_installs(
    paths: ProjectPaths, machine: Machine, recipes: Sequence[Recipe]
) -> tuple[Install, ...]:
    """The installations in use of recipes as `Project.resolve` returns them, in the same order.

    Raises PhaseError, with the line to type, when one is not installed or is stale.
    """
    states = recipe_states(paths, machine, recipes)
    missing = [str(state.recipe) for state in states if state.install is None]
    if missing:
        raise PhaseError(
            f"not installed on machine '{machine.name}': {', '.join(missing)}",
            _line_to_type(missing),
        )
    stale = [str(state.recipe) for state in states if state.state == "stale"]
    if stale:
        raise PhaseError(
            f"{', '.join(stale)}: the recipe, or what it was built on, has changed since it was "
            "installed",
            _line_to_type(stale),
        )
    return tuple(state.install for state in states if state.install is not None)


def read_install(paths: ProjectPaths, machine: str, recipe: Recipe, digest: str) -> Install:
    """One installation of a recipe, in use or not. Raises PhaseError when it is gone,
    DamagedFileError."""
    place = paths.install(machine, recipe.dependency, recipe.name, digest)
    try:
        return _install(read_json(place.manifest, MANIFEST_VERSION), recipe)
    except FileNotFoundError:
        raise PhaseError(
            f"{recipe}: the installation {place.directory} is gone", _line_to_type([str(recipe)])
        ) from None


def _line_to_type(recipes: Sequence[str]) -> str:
    return "Type: kochi install " + " ".join(f"-d {recipe}" for recipe in recipes)


def _install(data: Mapping[str, Any], recipe: Recipe) -> Install:
    install = Install(**{field.name: data[field.name] for field in fields(Install)})
    # An edited activate_script needs no new installation, so the recorded one is out of date.
    return replace(install, activate_script=recipe.activate_script)


def _state(paths: ProjectPaths, machine: Machine, recipe: Recipe) -> RecipeState:
    record = current_record(paths, machine.name, recipe.dependency, recipe.name)
    if record is None:
        return RecipeState(recipe, "NOT installed", None, None)
    same = is_described_by(record, machine, recipe)
    for used in record["depends"]:
        now = current_record(paths, machine.name, used["dependency"], used["recipe"])
        same = same and now is not None and now["digest"] == used["digest"]
    state: State = "installed" if same else "stale"
    return RecipeState(recipe, state, _install(record, recipe), record["started"])
