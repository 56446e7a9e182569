"""An install rule."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from snakemake_kochi.errors import ConfigError, for_snakemake
from snakemake_kochi.library.names import Directories, RuleNames, Verbatim, identifier, verbatim
from snakemake_kochi.phases.freeze import Freeze
from snakemake_kochi.phases.install import recipe_description
from snakemake_kochi.project.recipes import Recipe, Requirement


@dataclass(frozen=True)
class RecipeRule:
    """What the install rule of one recipe is made of.

    `determined_by` are texts that make the installation stale when they change; the manifests of
    the recipes it depends on are its input.
    """

    name: str
    requirement: Requirement
    manifest: str
    activation: str
    depends: tuple[str, ...]
    determined_by: Mapping[str, Verbatim]
    on_login_node: bool
    without_source: str | None

    @for_snakemake
    def needed(self) -> tuple[str, ...]:
        """The manifests that an installation needs. Raises ConfigError when there is no source to
        install: asked for while the DAG is made, so before anything runs."""
        if self.without_source is not None:
            raise ConfigError(self.without_source)
        return self.depends

    @classmethod
    def of(
        cls, freeze: Freeze, directories: Directories, names: RuleNames, recipe: Recipe
    ) -> RecipeRule:
        owner = f"{recipe.dependency}:{recipe.name}"
        # Resolved for its errors: two recipes of one dependency are said while parsing.
        freeze.recipes(recipe.depends, owner)
        name = f"install_{identifier(recipe.dependency)}_{identifier(recipe.name)}"
        source = dict(freeze.sources.get(owner, {}))
        source.pop("base", None)
        return cls(
            name=names.take(name, f"recipe {owner}"),
            requirement=Requirement(recipe.dependency, recipe.name, None),
            manifest=directories.manifest(recipe.dependency, recipe.name),
            activation=directories.activation(recipe.dependency, recipe.name),
            depends=tuple(
                directories.manifest(r.dependency, r.recipe)
                for r in recipe.depends
                if r.on(freeze.machine_name)
            ),
            determined_by={
                "recipe": verbatim(
                    json.dumps(recipe_description(freeze.machine, recipe), sort_keys=True)
                ),
                "source": verbatim(json.dumps(source, sort_keys=True)),
                "activate_script": verbatim(recipe.activate_script),
            },
            without_source=freeze.without_source.get(owner),
            on_login_node=freeze.machine.installs_on_login_node(recipe.on_machine),
        )
