"""Names of rules and of the files that they write; which of their builds and installs exist."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import ConfigError, DamagedFileError
from snakemake_kochi.files import is_there
from snakemake_kochi.paths import WorkingPaths
from snakemake_kochi.phases.freeze import Freeze
from snakemake_kochi.phases.install import recipe_description
from snakemake_kochi.phases.products import digest_of, read_build, read_manifest
from snakemake_kochi.phases.sources import determining
from snakemake_kochi.project.plots import Plot, stems
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


@dataclass(frozen=True)
class Directories:
    """The directories to which rules write, relative to the working directory."""

    machine: str

    @property
    def results(self) -> str:
        return str(self._paths.results)

    @property
    def _state(self) -> str:
        return str(self._paths.state)

    @property
    def _paths(self) -> WorkingPaths:
        return WorkingPaths(Path(), self.machine)

    def collected(self, experiment: str, batch: str) -> str:
        """The table of a batch, without its suffix."""
        return f"{self.results}/{experiment}/{encode_component(batch)}"

    def figures(self, experiment: str, batch: str, plots: Sequence[Plot]) -> list[str]:
        """The figures of a batch, without their suffixes."""
        return [f"{self.results}/{experiment}/{stem}" for stem in stems(batch, plots)]

    # Installations and builds are named by what determines them: a change that is undone leads to
    # the same names, whatever was tried in between.
    def install(self, dependency: str, recipe: str, key: str) -> str:
        return f"{self._state}/installs/{dependency}/{recipe}/{key}"

    def builds(self, rule: str, key: str) -> str:
        return f"{self._state}/builds/{rule}/{key}"

    def prepared(self, rule: str, key: str) -> str:
        return f"{self._state}/prepared/{rule}/{key}"

    def records(self, experiment: str, batch: str) -> str:
        return f"{self._paths.records}/{experiment}/{batch}"


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

    @property
    def directories(self) -> Directories:
        return Directories(self.freeze.machine_name)

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
        return self.directories.install(recipe.dependency, recipe.name, self.key(recipe))

    def key(self, recipe: Recipe) -> str:
        """A digest of what determines an installation, and of what its dependants see of it."""
        name = str(recipe)
        if name not in self._keys:
            source = determining(self.freeze.sources.get(name, {}))
            self._keys[name] = digest_of(
                {
                    "name": name,
                    "recipe": recipe_description(self.freeze.machine, recipe),
                    "activate_script": recipe.activate_script,
                    "source": source,
                    "depends": [self.key(each) for each in self.depends(recipe)],
                }
            )
        return self._keys[name]

    def depends(self, recipe: Recipe) -> list[Recipe]:
        """The recipes on which a recipe itself depends."""
        return [
            self.freeze.project.recipe(requirement)
            for requirement in recipe.depends
            if requirement.on(self.freeze.machine_name)
        ]


@dataclass(frozen=True)
class Kept:
    """The inputs of jobs, while one Snakefile is parsed; `workflow` is Snakemake's.

    A build or an installation may be gone, for example after KOCHI_ROOT was emptied. If an input
    file is missing, Snakemake makes it, and then repeats every job with that input, finished or
    not. So a finished job gets another input file with the same content, which no rule makes.

    `forgets`: files that stand for vanished installations and builds are deleted at the first
    question, so that Snakemake makes them again for jobs that need them. The other files of builds
    get the age of what the build is made of.
    """

    workflow: Any = None
    forgets: bool = False
    _known: dict[str, bool] = field(default_factory=dict)
    _digests: dict[str, Digests | None] = field(default_factory=dict)

    def is_there(self, file: str) -> bool:
        """Whether a file existed at the first question."""
        if file not in self._known:
            if self.forgets:
                _forget_if_gone(Path(file))
                _restore_age(Path(file))
            self._known[file] = is_there(file)
        return self._known[file]

    def are_there(self, files: Iterable[str]) -> bool:
        return all(map(self.is_there, files))

    def input_files(self, files: Iterable[str], is_finished: Callable[[], bool]) -> list[str]:
        """These files; a finished job does without those that are gone."""
        wanted = list(files)
        if self.are_there(wanted) or self.is_forced():
            return wanted
        try:
            # How Snakemake lets a file stand for another when it compares the sets of input files.
            from snakemake.io import sourcecache_entry
        except ImportError:  # then finished work is repeated when its inputs are made again
            return wanted
        if not is_finished():
            return wanted

        def stand_in(file: str) -> str:
            beside = str(WorkingPaths.remembered(Path(file)))
            return sourcecache_entry(beside, file) if is_there(beside) else file

        return [file if self.is_there(file) else stand_in(file) for file in wanted]

    def made(self, build: str, installs: Iterable[str]) -> Digests | None:
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

    def is_forced(self) -> bool:
        """Whether finished work must be repeated all the same (`--forceall`, `--forcerun`)."""
        settings = getattr(self.workflow, "dag_settings", None)
        names = ("forceall", "forcerun", "forcetargets")
        return any(getattr(settings, name, False) for name in names)


def _forget_if_gone(file: Path) -> None:
    """Delete a manifest or a build file whose installations or build are gone."""
    with suppress(FileNotFoundError):
        with suppress(DamagedFileError):
            if _are_there(_directories(file)):
                return
        file.unlink(missing_ok=True)
        if _is_manifest(file):
            file.with_name(_ACTIVATION).unlink(missing_ok=True)


def _restore_age(file: Path) -> None:
    """Give the file of a build the age that its phase has noted: Snakemake has touched it since.

    Snakemake would take a younger input for the reason to repeat a run, and would not say which
    source files have changed.
    """
    if not _is_manifest(file):
        with suppress(OSError):
            made = os.stat(WorkingPaths.remembered(file)).st_mtime_ns
            os.utime(file, ns=(made, made))


def _directories(file: Path) -> list[Path]:
    if _is_manifest(file):
        return [Path(install.prefix) for install in read_manifest(file)]
    return [read_build(file).tree]


def _is_manifest(file: Path) -> bool:
    """Whether a file stands for an installation, not for a build."""
    return file.name == _MANIFEST


def _digests(file: Path) -> Digests | None:
    for each in (file, WorkingPaths.remembered(file)):
        with suppress(FileNotFoundError, DamagedFileError):
            if _is_manifest(file):
                return {install.dependency: install.digest for install in read_manifest(each)}
            return {"": read_build(each).digest}
    return None


def _are_there(directories: Iterable[Path]) -> bool:
    """True also where it is not known now: nothing is repeated for that."""
    try:
        return all(map(is_there, directories))
    except OSError:
        return True
