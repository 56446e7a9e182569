"""Names of rules and of the files that they write; what stands behind these."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from snakemake_kochi.errors import ConfigError, DamagedFileError
from snakemake_kochi.files import is_there
from snakemake_kochi.paths import WorkingPaths
from snakemake_kochi.phases.freeze import Freeze
from snakemake_kochi.phases.install import recipe_description
from snakemake_kochi.phases.products import digest_of, read_build, read_manifest
from snakemake_kochi.phases.sources import determining
from snakemake_kochi.project.recipes import Recipe
from snakemake_kochi.project.short_forms import DEFAULT_BATCH
from snakemake_kochi.project.values import encode_component

_MANIFEST = "manifest.json"
_ACTIVATION = "activate.sh"
Digests = dict[str, str]


def identifier(text: str) -> str:
    """A text as part of a rule's name: `v5.2.1` is `v5_2_1`."""
    return re.sub(r"\W", "_", text, flags=re.ASCII)


def batch_rule(experiment: str, batch: str) -> str:
    """The name of the rule that is the target of a batch: of `default`, the experiment's."""
    name = identifier(experiment)
    return name if batch == DEFAULT_BATCH else f"{name}_{identifier(batch)}"


def run_rule(batch: str, index: int) -> str:
    """The name of a rule that runs points of a batch, of which `batch_rule` is the target."""
    return f"run_{batch}" if index == 0 else f"run_{batch}_{index + 1}"


def install_rule(dependency: str, recipe: str) -> str:
    """The name of the rule that installs a recipe."""
    return f"install_{identifier(dependency)}_{identifier(recipe)}"


def collected(machine: str, experiment: str, batch: str) -> str:
    """The table of a batch, without its suffix, relative to the working directory."""
    return f"{WorkingPaths(Path(), machine).results}/{experiment}/{encode_component(batch)}"


@dataclass(frozen=True)
class Outputs:
    """The names of one library's rules and of the files that they write.

    What determines an installation is in its name, as far as it is known while a Snakefile is
    parsed: the commit of a remote repository is looked up at the installation.
    """

    freeze: Freeze
    _owners: dict[str, str] = field(default_factory=dict)  # of the rules
    _keys: dict[str, str] = field(default_factory=dict)  # of the recipes
    _builds: dict[str, str] = field(default_factory=dict)  # the rules of builds, by their outputs

    def place(self, kind: str, *names: str) -> str:
        """A directory for the file that stands for an installation or a build.

        They are named by what determines them: a change that is undone leads to the same names,
        whatever was tried in between.
        """
        state = WorkingPaths(Path(), self.freeze.machine_name).state
        return "/".join((str(state), kind, *names))

    def take(self, name: str, owner: str) -> str:
        """Reserve a rule's name; ConfigError when another owner has it."""
        other = self._owners.setdefault(name, owner)
        if other != owner:
            raise ConfigError(
                f"{owner} and {other} would both become the rule '{name}'", "Rename one of them."
            )
        return name

    def take_for(self, output: str, name: str, owner: str, key: str) -> str:
        """Reserve a name for the rule of a build, or get that of the rule with this output. `key`
        tells it from builds whose names are alike."""
        if output not in self._builds:
            if name in self._builds.values():
                name = f"{name}_{key[:8]}"
            self._builds[output] = self.take(name, owner)
        return self._builds[output]

    def manifest(self, recipe: Recipe) -> str:
        """The file that stands for an installation of a recipe."""
        return f"{self._install(recipe)}/{_MANIFEST}"

    def activation(self, recipe: Recipe) -> str:
        """The bash file that brings a recipe into a shell."""
        return f"{self._install(recipe)}/{_ACTIVATION}"

    def _install(self, recipe: Recipe) -> str:
        return self.place("installs", recipe.dependency, recipe.name, self.key(recipe))

    def key(self, recipe: Recipe) -> str:
        """A digest of what determines an installation, and of what its dependants see of it."""
        name = str(recipe)
        if name not in self._keys:
            source = determining(self.freeze.sources.get(name, {}))
            key = self._key(recipe, source)
            if recipe.is_remote and source:
                # What was installed before the lock file named this commit stays what it is.
                before = self._key(recipe, {})
                place = self.place("installs", recipe.dependency, recipe.name, before)
                with suppress(OSError, DamagedFileError):
                    if read_manifest(Path(place, _MANIFEST))[-1].source == source:
                        key = before
            self._keys[name] = key
        return self._keys[name]

    def _key(self, recipe: Recipe, source: Mapping[str, str]) -> str:
        return digest_of(
            {
                "name": str(recipe),
                "recipe": recipe_description(self.freeze.machine, recipe),
                "activate_script": recipe.activate_script,
                "source": source,
                "depends": [self.key(each) for each in self.depends(recipe)],
            }
        )

    def depends(self, recipe: Recipe) -> list[Recipe]:
        """The recipes on which a recipe itself depends."""
        return [
            self.freeze.project.recipe(requirement)
            for requirement in recipe.depends
            if requirement.on(self.freeze.machine_name)
        ]


@dataclass(frozen=True)
class Made:
    """What stands behind the files of builds and installations; each file is read once."""

    _digests: dict[str, Digests | None] = field(default_factory=dict)

    def digests(self, build: str, installs: Iterable[str]) -> Digests | None:
        """The digests of a build and of the installations of some manifests, now or when they last
        existed: of installations by dependency, of the build by "".

        None where they are unknown or ambiguous: then what depends on a newer installation must be
        made first.
        """
        together: Digests = {}
        for file in (build, *installs):
            if file not in self._digests:
                self._digests[file] = _digests(Path(file))
            digests = self._digests[file]
            if digests is None or any(together.get(n, d) != d for n, d in digests.items()):
                return None
            together |= digests
        return together


def put_back(manifest: Path) -> None:
    """Have the manifest of before again, which Snakemake deleted for an installation that failed.

    If it were missing, Snakemake would repeat all finished work with it.
    """
    remembered = WorkingPaths.remembered(manifest)
    if is_there(remembered) and not is_there(manifest):
        shutil.copy2(remembered, manifest)


def _digests(file: Path) -> Digests | None:
    with suppress(FileNotFoundError, DamagedFileError):
        if file.name != _MANIFEST:
            return {"": read_build(file).digest}
        known = file if is_there(file) else WorkingPaths.remembered(file)
        return {install.dependency: install.digest for install in read_manifest(known)}
    return None
