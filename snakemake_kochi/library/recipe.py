"""The install rule of a recipe."""

from __future__ import annotations

from dataclasses import dataclass, field

from snakemake_kochi.errors import ConfigError, for_snakemake
from snakemake_kochi.library.names import Directories, RuleNames, identifier
from snakemake_kochi.phases.freeze import Freeze
from snakemake_kochi.phases.install import recipe_description
from snakemake_kochi.phases.products import digest_of
from snakemake_kochi.project.recipes import Recipe, Requirement


@dataclass(frozen=True)
class RecipeKeys:
    """Names installations by what determines them, as far as it is known while a Snakefile is
    parsed: the commit of a remote repository is looked up at the installation."""

    freeze: Freeze
    _known: dict[str, str] = field(default_factory=dict)

    def key(self, recipe: Recipe) -> str:
        name = f"{recipe.dependency}:{recipe.name}"
        if name not in self._known:
            source = dict(self.freeze.sources.get(name, {}))
            # Only provenance: an empty commit there changes nothing.
            source.pop("base", None)
            self._known[name] = digest_of(
                {
                    "recipe": recipe_description(self.freeze.machine, recipe),
                    "activate_script": recipe.activate_script,
                    "source": source,
                    "depends": [self.key(each) for each in self.depends(recipe)],
                }
            )
        return self._known[name]

    def depends(self, recipe: Recipe) -> list[Recipe]:
        """The recipes on which a recipe itself depends."""
        return [
            self.freeze.project.recipe(requirement)
            for requirement in recipe.depends
            if requirement.on(self.freeze.machine_name)
        ]


@dataclass(frozen=True)
class RecipeRule:
    """The parts of the install rule of one recipe; the manifests of its dependencies are its
    input."""

    name: str
    requirement: Requirement
    manifest: str
    activation: str
    depends: tuple[str, ...]
    on_login_node: bool
    without_source: str | None

    @for_snakemake
    def needed(self) -> tuple[str, ...]:
        """The manifests that an installation needs.

        Raises ConfigError when its source is missing: it is called while the DAG is made, so before
        anything runs.
        """
        if self.without_source is not None:
            raise ConfigError(self.without_source)
        return self.depends

    @classmethod
    def of(
        cls,
        freeze: Freeze,
        directories: Directories,
        names: RuleNames,
        keys: RecipeKeys,
        recipe: Recipe,
    ) -> RecipeRule:
        owner = f"{recipe.dependency}:{recipe.name}"
        # Resolved for its errors: two recipes of one dependency are reported while parsing.
        freeze.recipes(recipe.depends, owner)
        name = f"install_{identifier(recipe.dependency)}_{identifier(recipe.name)}"
        return cls(
            name=names.take(name, f"recipe {owner}"),
            requirement=Requirement(recipe.dependency, recipe.name, None),
            manifest=directories.manifest(recipe.dependency, recipe.name, keys.key(recipe)),
            activation=directories.activation(recipe.dependency, recipe.name, keys.key(recipe)),
            depends=tuple(
                directories.manifest(each.dependency, each.name, keys.key(each))
                for each in keys.depends(recipe)
            ),
            without_source=freeze.without_source.get(owner),
            on_login_node=freeze.machine.installs_on_login_node(recipe.on_machine),
        )
