"""The library that a Snakefile asks for recipes, builds and batches as rules."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snakemake_interface_common.exceptions import WorkflowError

from snakemake_kochi.errors import (
    ConfigError,
    NameNotFoundError,
    for_snakemake,
    nearest,
)
from snakemake_kochi.library.batch import BatchRules, BuildRule, verbatim
from snakemake_kochi.library.outputs import Kept, Outputs, install_rule
from snakemake_kochi.library.run_group import RunGroup
from snakemake_kochi.library.unfinished import collect_at_exit, note_failures_at_exit
from snakemake_kochi.paths import ProjectPaths
from snakemake_kochi.phases.freeze import Freeze, load_freeze, take_freeze, with_source_from
from snakemake_kochi.phases.keep import commit_at_exit
from snakemake_kochi.phases.script import SAVED_THREADS_VARIABLE, saved_threads
from snakemake_kochi.project.checks import check_experiments
from snakemake_kochi.project.configuration import find_project, load_project
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.machines import chosen_machine as machine_among
from snakemake_kochi.project.recipes import Recipe, Requirement

if TYPE_CHECKING:
    from snakemake.utils import Paramspace

_log = logging.getLogger(__name__)

FREEZE_VARIABLE = "KOCHI_FREEZE"
# Names the freeze that a main process uses instead of taking one.
RERUN_VARIABLE = "KOCHI_RERUN"
_OWNER_VARIABLE = "KOCHI_FREEZE_OWNER"
PYTHON_VARIABLE = "KOCHI_PYTHON"
# Set while restored results are noted as finished: then files stand for the installations and
# builds of another computer (`library/restorable.py`).
RESTORING_VARIABLE = "KOCHI_RESTORING"


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
    def of(cls, outputs: Outputs, recipe: Recipe) -> RecipeRule:
        freeze = outputs.freeze
        owner = str(recipe)
        # Resolved for its errors: two recipes of one dependency are reported while parsing.
        freeze.recipes(recipe.depends, owner)
        return cls(
            name=outputs.take(install_rule(recipe.dependency, recipe.name), f"recipe {owner}"),
            requirement=Requirement(recipe.dependency, recipe.name, None),
            manifest=outputs.manifest(recipe),
            activation=outputs.activation(recipe),
            depends=tuple(map(outputs.manifest, outputs.depends(recipe))),
            without_source=freeze.without_source.get(owner),
            on_login_node=freeze.machine.installs_on_login_node(recipe.on_machine),
        )


class Library:
    """The rules of one project on one machine."""

    def __init__(
        self,
        freeze: Freeze,
        is_checked: bool = False,
        is_first: bool = False,
        workflow: Any = None,
    ) -> None:
        self.freeze = freeze
        self._is_checked = is_checked
        self._is_first = is_first
        self.kept = Kept(workflow, forgets=is_first and RESTORING_VARIABLE not in os.environ)
        self._outputs = Outputs(freeze)

    @cached_property
    @for_snakemake
    def experiments(self) -> tuple[Experiment, ...]:
        loaded = tuple(self.freeze.experiment(file) for file in self.freeze.files_to_run)
        by_name: dict[str, Experiment] = {}
        for experiment in loaded:
            other = by_name.setdefault(experiment.name, experiment)
            if other is not experiment:
                raise ConfigError(
                    f"{experiment.file}: {other.file} is also named '{experiment.name}'",
                    "Rename one of the files: an experiment has the name of its file.",
                )
        return loaded

    @cached_property
    @for_snakemake
    def recipes(self) -> tuple[RecipeRule, ...]:
        """One install rule per recipe, in the order of kochi.yaml."""
        rules = tuple(
            RecipeRule.of(self._outputs, recipe)
            for recipes in self.freeze.project.dependencies.values()
            for recipe in recipes.values()
        )
        # The user's own rules may have them as input.
        for rule in rules:
            self.kept.is_there(rule.manifest)
        return rules

    @cached_property
    @for_snakemake
    def batches(self) -> tuple[BatchRules, ...]:
        """One run rule, or a few, and one target per batch."""
        if not self._is_checked:
            check_experiments(self.experiments, self.freeze.machine_name)
        for experiment in self.experiments if self._is_first else ():
            for remark in experiment.remarks:
                _log.warning("%s", remark)
        return tuple(
            BatchRules.of(self._outputs, experiment, batch)
            for experiment in self.experiments
            for batch in experiment.batches
        )

    @cached_property
    @for_snakemake
    def builds(self) -> tuple[BuildRule, ...]:
        """The build rules, each once, though batches share them."""
        merged: dict[str, BuildRule] = {}
        for batch in self.batches:
            known = merged.get(batch.build.name)
            merged[batch.build.name] = known.serving(batch.build) if known else batch.build
        return tuple(merged.values())

    @property
    def rerun(self) -> list[str]:
        """The files of the points that a rerun repeats."""
        return [
            file for batch in self.batches for file in batch.files.records + batch.files.artifacts
        ]

    @for_snakemake
    def batch(self, experiment: str, batch: str) -> BatchRules:
        """One batch by name; NameNotFoundError with the nearest name."""
        known = {f"{b.experiment.name} {b.grid.batch}": b for b in self.batches}
        wanted = f"{experiment} {batch}"
        if wanted not in known:
            raise NameNotFoundError(f"no batch '{wanted}'", nearest(wanted, known))
        return known[wanted]

    @staticmethod
    def threads_of_run(
        workflow: Any, batch: BatchRules, group: RunGroup
    ) -> int | Callable[[Mapping[str, str]], int]:
        """The threads of a run.

        All cores for an exclusive run where Snakemake itself shares out cores (`--executor local
        --cores N`); a worker uses the resource `kochi_exclusive`.
        """
        least = 1
        # Without --cores, workers share out cores.
        with suppress(WorkflowError):
            if batch.grid.run.exclusive and isinstance(workflow.cores, int):
                least = workflow.cores
        if not batch.grid.run.cores:
            return least
        return lambda wildcards: max(least, group.point(wildcards).cores or least)

    @for_snakemake
    def build_of_run(
        self, batch: BatchRules, group: RunGroup, wildcards: Mapping[str, str]
    ) -> list[str]:
        """The file that says which build a run uses, as its input."""
        if batch.without_source is not None:
            # Not left to the install rule alone: Snakemake ignores an error of an input function
            # further down when a result exists, and then starts the run without input and deletes
            # the result.
            raise ConfigError(batch.without_source)
        return self.kept.input_files(
            [batch.build.file(group.point(wildcards))],
            lambda: batch.is_finished(self.kept, group, wildcards),
        )

    # For the rules, which cannot import it under a name of their own.
    verbatim = staticmethod(verbatim)

    @for_snakemake
    def manifest(self, requirement: str) -> str:
        """The file that stands for an installed recipe (`dependency:recipe`), as a rule's input."""
        return self._recipe(requirement).manifest

    @for_snakemake
    def activation(self, requirement: str) -> str:
        """A bash file that brings a recipe into a shell.

        Sourced, it sets KOCHI_INSTALL_PREFIX_<DEP> and KOCHI_RECIPE_<DEP> and runs the activate
        scripts, also of the recipes on which it depends.
        """
        return self._recipe(requirement).activation

    @for_snakemake
    def paramspace(self, experiment: str, batch: str) -> Paramspace:
        """A batch's parameters and duplicate as Snakemake's Paramspace over a pandas DataFrame
        (one row per point, values as text)."""
        from pandas import DataFrame
        from snakemake.utils import Paramspace

        points = self.batch(experiment, batch).grid.points
        rows = [{**point.parameters, "duplicate": str(point.duplicate)} for point in points]
        return Paramspace(DataFrame(rows, dtype=str))

    def _recipe(self, requirement: str) -> RecipeRule:
        project = self.freeze.project
        wanted = project.requirement(requirement)
        project.recipe(wanted)
        return next(rule for rule in self.recipes if str(rule.requirement) == str(wanted))


@for_snakemake
def load(workflow: Any, config: Mapping[str, Any] | None = None) -> Library:
    """The library of the project in the working directory, on the machine that is meant there.

    Snakemake's main process freezes the project; the processes of its jobs, and a second call while
    the same workflow is parsed, use the existing freeze. `config["kochi_experiments"]` is a list of
    globs, relative to the project, of experiment files; `config["kochi_git_remote"]` is a
    repository from which the checked-out commit is fetched.
    """
    owner = f"{os.getpid()}-{id(workflow):x}"
    file = os.environ.get(FREEZE_VARIABLE)
    inherited = file is not None and not workflow.is_main_process
    again = file is not None and os.environ.get(_OWNER_VARIABLE) == owner
    if file is not None and (inherited or again):
        freeze = load_freeze(Path(file))
    else:
        freeze = _freeze_of_rerun() or take_freeze(
            Path.cwd(), chosen_machine(), *_globs(config or {})
        )
        if (remote := _git_remote(config or {})) is not None:
            freeze = with_source_from(freeze, remote)
        commit_at_exit(
            freeze.directory,
            freeze.paths,
            freeze.machine_name,
            lambda: not workflow.dryrun,
            freeze.project.large_files,
        )
        if freeze.machine.clean is not None:
            # Imported here: few runs clean up.
            from snakemake_kochi.cleaning.automatic import clean_at_exit

            paths = freeze.root.machine(freeze.machine_name)
            clean_at_exit(paths, Path.cwd(), lambda: not workflow.dryrun)
    os.environ[FREEZE_VARIABLE] = str(freeze.file)
    os.environ[_OWNER_VARIABLE] = owner
    os.environ[PYTHON_VARIABLE] = sys.executable
    os.environ[SAVED_THREADS_VARIABLE] = saved_threads()
    # The main process checked what the process of a job reads.
    is_first = not (inherited or again)
    library = Library(freeze, is_checked=inherited, is_first=is_first, workflow=workflow)
    if is_first and freeze.rerun is None:
        collect_at_exit(workflow, lambda: library.batches)
    elif is_first:
        note_failures_at_exit(
            workflow, lambda: library.batches, ProjectPaths.rerun_failures(freeze.file)
        )
    return library


def freeze_of(workflow: Any) -> Freeze | None:
    """The freeze that `load` took for a workflow in this process, if it did."""
    if os.environ.get(_OWNER_VARIABLE) != f"{os.getpid()}-{id(workflow):x}":
        return None
    return load_freeze(Path(os.environ[FREEZE_VARIABLE]))


def _freeze_of_rerun() -> Freeze | None:
    if (file := os.environ.get(RERUN_VARIABLE)) is None:
        return None
    freeze = load_freeze(Path(file))
    # A job of the rerun inherits the variable, and may run Snakemake in another directory.
    return freeze if os.path.samefile(freeze.directory, Path.cwd()) else None


def chosen_machine() -> str:
    """The name of the machine that is meant in the working directory. Raises ConfigError."""
    # Not read twice where the machine is named: the freeze reads the project.
    return os.environ.get("KOCHI_DEFAULT_MACHINE") or machine_among(
        load_project(find_project(Path.cwd())).machines
    )


def _git_remote(config: Mapping[str, Any]) -> str | None:
    remote = config.get("kochi_git_remote")
    if remote is not None and (not isinstance(remote, str) or not remote):
        raise ConfigError(f"config kochi_git_remote: a repository was expected, not {remote!r}")
    return remote


def _globs(config: Mapping[str, Any]) -> Sequence[Sequence[str]]:
    globs = config.get("kochi_experiments")
    if globs is None:
        return ()
    if isinstance(globs, str):
        return ([globs],)
    if not isinstance(globs, list) or not all(isinstance(glob, str) for glob in globs):
        raise ConfigError(f"config kochi_experiments: a list of globs was expected, not {globs!r}")
    return (globs,)
