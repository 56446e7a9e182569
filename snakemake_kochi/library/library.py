"""The library that a Snakefile asks for recipes, builds and batches as rules."""

from __future__ import annotations

import gc
import logging
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snakemake_kochi.errors import (
    ConfigError,
    KochiError,
    NameNotFoundError,
    for_snakemake,
    nearest,
)
from snakemake_kochi.files import is_there
from snakemake_kochi.library.batch import BatchRules, RunRule
from snakemake_kochi.library.failures import BATCH, note_failures
from snakemake_kochi.library.files import identifier, install_rule
from snakemake_kochi.library.part import Part
from snakemake_kochi.library.products import BuildRule, Products
from snakemake_kochi.library.requested import Value, rule_resources, verbatim
from snakemake_kochi.library.run_order import RunOrder
from snakemake_kochi.location import find_location
from snakemake_kochi.paths import WorkingPaths
from snakemake_kochi.phases.freeze import (
    Freeze,
    have_read,
    load_freeze,
    take_freeze,
    with_source_from,
)
from snakemake_kochi.phases.keep import commit_at_exit
from snakemake_kochi.phases.script import MAIN_VARIABLE, SAVED_THREADS_VARIABLE, saved_threads
from snakemake_kochi.phases.variants import with_variants
from snakemake_kochi.project.checks import check_experiments
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.recipes import Recipe, Requirement

if TYPE_CHECKING:
    from snakemake.utils import Paramspace

FREEZE_VARIABLE = "KOCHI_FREEZE"
# Names the freeze that a main process uses instead of taking one.
RERUN_VARIABLE = "KOCHI_RERUN"
_OWNER_VARIABLE = "KOCHI_FREEZE_OWNER"
_PYTHON_VARIABLE = "KOCHI_PYTHON"
_log = logging.getLogger(__name__)


@for_snakemake
def load(workflow: Any, config: Mapping[str, Any] | None = None) -> Library:
    """The library of the project in the working directory, on the machine that is meant there.

    Snakemake's main process freezes the project; the processes of its jobs, and a second call while
    the same workflow is parsed, use the existing freeze. `config["kochi_experiments"]` is a list of
    globs, relative to the project, of experiment files; `config["kochi_experiment"]` is the file
    that is asked for: without it nothing runs, and only its own remarks are told.
    `config["kochi_git_remote"]` is a repository from which the checked-out commit is fetched.
    """
    config = config or {}
    owner = f"{os.getpid()}-{id(workflow):x}"
    asked = config.get("kochi_experiment")
    file = os.environ.get(FREEZE_VARIABLE)
    is_main = bool(workflow.is_main_process)
    is_known = file is not None and (not is_main or os.environ.get(_OWNER_VARIABLE) == owner)
    if file is not None and is_known:
        freeze = load_freeze(Path(file))
    else:
        freeze = _take_freeze(config, asked)
        # Of the millions of objects of a large DAG none is garbage.
        gc.set_threshold(100_000)
        have_read()
        _finish_at_exit(workflow, freeze)
    os.environ[FREEZE_VARIABLE] = str(freeze.file)
    os.environ[_OWNER_VARIABLE] = owner
    os.environ[_PYTHON_VARIABLE] = sys.executable
    os.environ[SAVED_THREADS_VARIABLE] = saved_threads()
    if is_main or not is_known:
        os.environ[MAIN_VARIABLE] = str(os.getpid())
    # The process of a job makes one file, whichever part wants it.
    part = Part.of(config) if is_main and freeze.rerun is None else None
    # The main process checked what the process of a job reads.
    library = Library(freeze, part, asked, None if is_known else workflow, is_checked=not is_main)
    if is_main:
        RunOrder(lambda: library.batches).begin(workflow)
    if not is_known:
        note_failures(workflow, lambda: library.batches, config.get(BATCH), part is not None)
    return library


def _take_freeze(config: Mapping[str, Any], asked: str | None) -> Freeze:
    if (file := os.environ.get(RERUN_VARIABLE)) is not None:
        freeze = load_freeze(Path(file))
        # A job of the rerun inherits the variable, and may run Snakemake in another directory.
        if os.path.samefile(freeze.directory, Path.cwd()):
            return freeze
    globs, remote = config.get("kochi_experiments"), config.get("kochi_git_remote")
    if isinstance(globs, str):
        globs = [globs]
    if globs is not None and not _are_texts(globs):
        raise ConfigError(f"config kochi_experiments: a list of globs was expected, not {globs!r}")
    if remote is not None and (not isinstance(remote, str) or not remote):
        raise ConfigError(f"config kochi_git_remote: a repository was expected, not {remote!r}")
    given: Sequence[Sequence[str]] = () if globs is None else (globs,)
    freeze = take_freeze(Path.cwd(), chosen_machine(), *given, named=asked)
    if remote is not None:
        freeze = with_source_from(freeze, remote)
    return with_variants(freeze, Path.cwd())


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _finish_at_exit(workflow: Any, freeze: Freeze) -> None:
    def is_wanted() -> bool:
        return not workflow.dryrun

    machine, large = freeze.machine_name, freeze.project.large_files
    commit_at_exit(freeze.directory, freeze.paths, machine, is_wanted, large)
    if freeze.machine.clean is not None:
        # Imported here: few runs clean up.
        from snakemake_kochi.cleaning.automatic import clean_at_exit

        clean_at_exit(freeze.root.machine(machine), Path.cwd(), is_wanted)


def freeze_of(workflow: Any) -> Freeze | None:
    """The freeze that `load` took for a workflow in this process, if it did."""
    if os.environ.get(_OWNER_VARIABLE) != f"{os.getpid()}-{id(workflow):x}":
        return None
    return load_freeze(Path(os.environ[FREEZE_VARIABLE]))


def chosen_machine() -> str:
    """The name of the machine that is meant in the working directory. Raises ConfigError."""
    # Not read twice where the machine is named: the freeze reads the project.
    return os.environ.get("KOCHI_DEFAULT_MACHINE") or find_location(asks=True).machine.name


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
    resources: Mapping[str, Value]

    @for_snakemake
    def needed(self, wildcards: object) -> tuple[str, ...]:
        """The manifests that an installation needs.

        Raises ConfigError when its source is missing: it is called while the DAG is made, so before
        anything runs.
        """
        if self.without_source is not None:
            raise ConfigError(self.without_source)
        return self.depends

    @classmethod
    def of(cls, products: Products, recipe: Recipe) -> RecipeRule:
        freeze, owner = products.freeze, str(recipe)
        # Resolved for its errors: two recipes of one dependency are reported while parsing.
        freeze.recipes(recipe.depends, owner)
        return cls(
            name=products.take(install_rule(recipe.dependency, recipe.name), f"recipe {owner}"),
            requirement=Requirement(recipe.dependency, recipe.name, None),
            manifest=products.manifest(recipe),
            activation=products.activation(recipe),
            depends=tuple(map(products.manifest, products.depends(recipe))),
            without_source=freeze.without_source.get(owner),
            on_login_node=freeze.machine.installs_on_login_node(recipe.on_machine),
            resources=rule_resources([recipe.request], lambda wildcards: recipe.request),
        )

    def put_back(self) -> None:
        """Have the manifest of before again, which Snakemake deleted for an installation that
        failed. If it were missing, Snakemake would repeat all finished work with it."""
        manifest = Path(self.manifest)
        remembered = WorkingPaths.remembered(manifest)
        if is_there(remembered) and not is_there(manifest):
            shutil.copy2(remembered, manifest)


class _Mistakes(logging.Handler):
    """Refuses targets that need an experiment with mistakes, as soon as the targets are known."""

    def __init__(self, workflow: Any, broken: Mapping[str, KochiError]) -> None:
        super().__init__()
        self._workflow = workflow
        self._left = dict(broken)  # by file

    @for_snakemake
    def emit(self, record: logging.LogRecord) -> None:
        if (settings := getattr(self._workflow, "dag_settings", None)) is None:
            return
        broken, self._left = self._left, {}
        default = str(getattr(self._workflow, "default_target", None))
        targets = {str(each) for each in settings.targets or [default]}
        unknown = targets.difference(rule.name for rule in self._workflow.rules)
        is_all = any(each.endswith("experiments") for each in targets - unknown)
        for file, error in broken.items():
            stem = re.escape(Path(file).stem)
            own = re.compile(rf"(.*_)?{re.escape(identifier(Path(file).stem))}(_.*)?|.*/{stem}/.*")
            if is_all or any(map(own.fullmatch, unknown)):
                raise error
            _log.warning("Left out: %s", error.message.partition("\n")[0])


class Library:
    """The rules of one project on one machine.

    `asked`: the file of the experiment without which there is nothing to run. Mistakes in another
    one concern only the targets that need it. `workflow`: the one that is parsed for the first
    time, for what is told once.
    """

    # For the rules, which cannot import it under a name of their own.
    verbatim = staticmethod(verbatim)

    def __init__(
        self,
        freeze: Freeze,
        part: Part | None = None,
        asked: str | None = None,
        workflow: Any = None,
        *,
        is_checked: bool = False,
    ) -> None:
        self.freeze = freeze
        self._part = part
        self._asked = asked
        self._workflow = workflow
        self._is_checked = is_checked
        self._products = Products(freeze)
        self._broken: dict[str, KochiError] = {}  # by file

    @cached_property
    @for_snakemake
    def batches(self) -> tuple[BatchRules, ...]:
        """The batches of all experiments without mistakes. Raises ConfigError for that which is
        asked for."""
        batches = []
        for experiment in self._loaded():
            try:
                batches += [
                    BatchRules.of(self._products, experiment, batch) for batch in experiment.batches
                ]
            except ConfigError as error:
                self._broken[experiment.file] = error
        if self._asked in self._broken:
            raise self._broken[self._asked]
        if self._broken and self._workflow is not None:
            from snakemake.logging import logger

            logger.addHandler(_Mistakes(self._workflow, self._broken))
        for experiment in {batch.experiment.file: batch.experiment for batch in batches}.values():
            if self._workflow is not None and self._asked in (None, experiment.file):
                for remark in experiment.remarks:
                    _log.warning("%s", remark)
        return tuple(batches)

    @cached_property
    def checks(self) -> tuple[BatchRules, ...]:
        """The batches with a target that checks their results: those with `references`, unless
        something else has its name, such as the batch `check`."""
        checks = []
        for batch in self.batches:
            if not batch.grid.references:
                continue
            of, name = batch.experiment.file, batch.grid.batch
            if not (owner := self._products.owner(batch.check_name)):
                self._products.take(batch.check_name, f"the check of batch {name} of {of}")
                checks.append(batch)
            elif self._workflow is not None and self._asked in (None, of):
                _log.warning(
                    "%s: batch %s has no target '%s' that checks its results: %s has this name. "
                    "To check them, type: kochi check %s",
                    *(of, name, batch.check_name, owner, shlex.join([of, name])),
                )
        return tuple(checks)

    def _loaded(self) -> list[Experiment]:
        loaded: dict[str, Experiment] = {}
        for file in self.freeze.files_to_run:
            try:
                experiment = self.freeze.experiment(file)
                other = loaded.setdefault(experiment.name, experiment)
                if other is not experiment:
                    raise ConfigError(
                        f"{file}: {other.file} is also named '{experiment.name}'",
                        "Rename one of the files: an experiment has the name of its file.",
                    )
            except ConfigError as error:
                self._broken[file] = error
        try:
            self._check(loaded.values())
        except ConfigError:
            for experiment in loaded.values():
                try:
                    self._check([experiment])
                except ConfigError as error:
                    self._broken[experiment.file] = error
            if not self._broken:
                raise
        names = {Path(file).stem for file in self._broken}
        return [each for each in loaded.values() if each.name not in names]

    def _check(self, experiments: Iterable[Experiment]) -> None:
        if not self._is_checked:
            check_experiments(experiments, self.freeze.machine_name, self.freeze.project)

    @cached_property
    @for_snakemake
    def recipes(self) -> tuple[RecipeRule, ...]:
        """One install rule per recipe, in the order of kochi.yaml; then those at a branch."""
        rules = tuple(RecipeRule.of(self._products, each) for each in self.freeze.all_recipes)
        for rule in rules if self._workflow is not None else ():
            rule.put_back()
        return rules

    @property
    def builds(self) -> list[BuildRule]:
        """The rules of builds and of `prepare` scripts, each once, though batches share them."""
        return list(self._products.builds.values()) if self.batches else []

    @property
    def runs(self) -> list[RunRule]:
        """One rule per batch, or a few."""
        return [run for batch in self.batches for run in batch.runs]

    @property
    def all(self) -> list[str]:
        """The tables of all batches."""
        files = [batch.files for batch in self.batches if batch.grid.points]
        # Which artifacts a batch with `repeat` has, its looks say.
        return [
            file
            for each in files
            for file in (each.markdown, *(each.artifacts if each.grid.repeat is None else ()))
        ]

    @property
    def rerun(self) -> list[str]:
        """The files of the points that a rerun repeats."""
        files = [batch.files for batch in self.batches]
        return [file for each in files for file in each.records + each.artifacts]

    def wanted(self, batch: BatchRules, checkpoints: Any) -> Any:
        """The files that the target of a batch wants, or a function that returns them: those of a
        part, or of the whole batch with its table and its figures."""
        files, part = batch.files, self._part
        if part is None:
            made = [files.markdown, files.table, *files.figures]
            return (
                [*made, *files.artifacts]
                if batch.grid.repeat is None
                else [*made, batch.input(checkpoints, "artifacts")]
            )
        # Called for what somebody asks for only: another batch may not have such a parameter.
        return for_snakemake(lambda wildcards: part.files(batch))

    @for_snakemake
    def batch(self, experiment: str, batch: str) -> BatchRules:
        """One batch by name; NameNotFoundError with the nearest name."""
        known = {f"{each.experiment.name} {each.grid.batch}": each for each in self.batches}
        wanted = f"{experiment} {batch}"
        if wanted not in known:
            for file, error in self._broken.items():
                if Path(file).stem == experiment:
                    raise error
            raise NameNotFoundError(f"no batch '{wanted}'", nearest(wanted, known))
        return known[wanted]

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
