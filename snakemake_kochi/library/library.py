"""The library that a Snakefile asks for recipes, builds and batches as rules."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
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
from snakemake_kochi.library.batch import BatchRules
from snakemake_kochi.library.outputs import Outputs, install_rule, put_back
from snakemake_kochi.library.part import Part
from snakemake_kochi.library.requested import Resource, rule_resources, verbatim
from snakemake_kochi.library.run_group import RunGroup
from snakemake_kochi.library.variants import BuildRule
from snakemake_kochi.phases.freeze import Freeze
from snakemake_kochi.project.checks import check_experiments
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.recipes import Recipe, Requirement

if TYPE_CHECKING:
    from snakemake.utils import Paramspace

_log = logging.getLogger(__name__)


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
    resources: Mapping[str, Resource]

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
            resources=rule_resources([recipe.request], lambda wildcards: recipe.request),
        )


class Library:
    """The rules of one project on one machine."""

    def __init__(
        self,
        freeze: Freeze,
        is_checked: bool = False,
        is_first: bool = False,
        part: Part | None = None,
        asked: str | None = None,
    ) -> None:
        """`asked`: the file of the experiment without which there is nothing to run."""
        self.freeze = freeze
        self.part = part
        self._asked = asked
        self._is_checked = is_checked
        self._is_first = is_first
        self._outputs = Outputs(freeze)

    @cached_property
    @for_snakemake
    def experiments(self) -> tuple[Experiment, ...]:
        loaded = tuple(
            experiment
            for file in self.freeze.files_to_run
            if (experiment := self._loaded(file)) is not None
        )
        by_name: dict[str, Experiment] = {}
        for experiment in loaded:
            other = by_name.setdefault(experiment.name, experiment)
            if other is not experiment:
                raise ConfigError(
                    f"{experiment.file}: {other.file} is also named '{experiment.name}'",
                    "Rename one of the files: an experiment has the name of its file.",
                )
        return loaded

    def _loaded(self, file: str) -> Experiment | None:
        """None for a wrong one that is not asked for. Raises ConfigError."""
        try:
            experiment = self.freeze.experiment(file)
            if self._asked not in (None, file):
                check_experiments([experiment], self.freeze.machine_name, self.freeze.project)
        except ConfigError as error:
            if self._asked in (None, file):
                raise
            if self._is_first:
                _log.warning(
                    "Left out, which is not asked for: %s", error.message.partition("\n")[0]
                )
            return None
        return experiment

    @cached_property
    @for_snakemake
    def recipes(self) -> tuple[RecipeRule, ...]:
        """One install rule per recipe, in the order of kochi.yaml; then those at a branch."""
        rules = tuple(RecipeRule.of(self._outputs, each) for each in self.freeze.all_recipes)
        for rule in rules if self._is_first else ():
            put_back(Path(rule.manifest))
        return rules

    @cached_property
    @for_snakemake
    def batches(self) -> tuple[BatchRules, ...]:
        """One run rule, or a few, and one target per batch."""
        if not self._is_checked:
            check_experiments(self.experiments, self.freeze.machine_name, self.freeze.project)
        for experiment in self.experiments if self._is_first else ():
            for remark in experiment.remarks if self._asked in (None, experiment.file) else ():
                _log.warning("%s", remark)
        batches = tuple(
            BatchRules.of(self._outputs, experiment, batch)
            for experiment in self.experiments
            for batch in experiment.batches
        )
        return batches

    @cached_property
    @for_snakemake
    def builds(self) -> tuple[BuildRule, ...]:
        """The rules of builds and of `prepare` scripts, each once, though batches share them."""
        merged: dict[str, BuildRule] = {}
        for batch in self.batches:
            for rule in (*(variant.build for variant in batch.variants), batch.prepare):
                if rule is not None:
                    known = merged.get(rule.name)
                    merged[rule.name] = known.serving(rule) if known else rule
        return tuple(merged.values())

    @property
    def rerun(self) -> list[str]:
        """The files of the points that a rerun repeats."""
        return [
            file for batch in self.batches for file in batch.files.records + batch.files.artifacts
        ]

    def wanted(self, batch: BatchRules, is_whole: bool = True) -> Any:
        """The files that the target of a batch wants, or a function that returns them: those of a
        part, or of the whole batch, without its table as CSV and its figures if not `is_whole`."""
        files = batch.files
        if self.part is None:
            table = [files.markdown, files.table, *files.figures] if is_whole else [files.markdown]
            return [*table, *files.artifacts]
        part = self.part
        # Called for what somebody asks for only: another batch may not have such a parameter.
        return for_snakemake(lambda wildcards: part.files(batch))

    @for_snakemake
    def batch(self, experiment: str, batch: str) -> BatchRules:
        """One batch by name; NameNotFoundError with the nearest name."""
        known = {f"{b.experiment.name} {b.grid.batch}": b for b in self.batches}
        wanted = f"{experiment} {batch}"
        if wanted not in known:
            raise NameNotFoundError(f"no batch '{wanted}'", nearest(wanted, known))
        return known[wanted]

    @staticmethod
    def threads_of_run(workflow: Any, batch: BatchRules, group: RunGroup) -> Resource:
        """The threads of a run.

        All cores for an exclusive run where Snakemake itself shares out cores (`--executor local
        --cores N`); a worker uses the resource `kochi_exclusive`.
        """
        least = 1
        # Without --cores, workers share out cores.
        with suppress(WorkflowError):
            if batch.grid.run.exclusive and isinstance(workflow.cores, int):
                least = workflow.cores
        return batch.threads(group, least)

    @for_snakemake
    def build_of_run(self, batch: BatchRules, group: RunGroup, wildcards: Mapping[str, str]) -> Any:
        """The file that says which build a run uses, as its input. Its name contains what
        determines the build, so its age says nothing."""
        if (missing := batch.variants.missing) is not None:
            # Not left to the install rule alone: Snakemake ignores an error of an input function
            # further down when a result exists, and then starts the run without input and deletes
            # the result.
            raise ConfigError(missing)
        return _ancient(batch.build_file(group.point(wildcards)))

    @for_snakemake
    def prepared_for_run(
        self, batch: BatchRules, group: RunGroup, wildcards: Mapping[str, str]
    ) -> Any:
        """The file that says what was prepared for a run, as its input, if something was."""
        file = batch.prepared_for(group.point(wildcards))
        return [] if file is None else [_ancient(file)]

    def installs_of_run(
        self, batch: BatchRules, group: RunGroup
    ) -> tuple[str, ...] | Callable[[Mapping[str, str]], tuple[str, ...]]:
        """The manifests of the installations that a run uses, as its input."""
        if (only := batch.variants.only) is not None:
            return only.installs
        return for_snakemake(lambda wildcards: batch.variants.at(group.point(wildcards)).installs)

    # For the rules, which cannot import them under names of their own.
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
        # A sub-parameter that a point does not have is the empty text.
        return Paramspace(DataFrame(rows, dtype=object).fillna("").astype(str))

    def _recipe(self, requirement: str) -> RecipeRule:
        project = self.freeze.project
        wanted = project.requirement(requirement)
        project.recipe(wanted)
        for rule in self.recipes:
            if str(rule.requirement) == str(wanted):
                return rule
        raise NameNotFoundError(f"{wanted}: no batch uses this recipe at this branch or commit")


def _ancient(file: str) -> Any:
    # Imported here: a table needs names of files and no Snakemake.
    from snakemake.io import ancient

    return ancient(file)
