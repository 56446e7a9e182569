"""The library that a Snakefile asks for recipes, builds and batches as rules.

A run may be of a part of a batch, which `config` selects: `kochi_where` is a list of conditions
that must all hold, or a list of such lists, of which one must hold. `kochi_retry: failed` selects
the points that failed and have no result since. Only the target of a batch depends on it, so a job
is the same job whichever part asked for it.
"""

from __future__ import annotations

import gc
import logging
import os
import re
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
from snakemake_kochi.library.files import BatchFiles, Place, identifier, install_rule
from snakemake_kochi.library.products import BuildRule, Products, Value, rule_resources, verbatim
from snakemake_kochi.library.run_order import RunOrder
from snakemake_kochi.library.states import BATCH, note_failures
from snakemake_kochi.location import find_location
from snakemake_kochi.paths import WorkingPaths
from snakemake_kochi.phases.freeze import Freeze, have_read, load_freeze, take_freeze
from snakemake_kochi.phases.outputs import commit_at_exit
from snakemake_kochi.phases.products import read_failure
from snakemake_kochi.phases.script import MAIN_VARIABLE, SAVED_THREADS_VARIABLE, saved_threads
from snakemake_kochi.project.checks import check_experiments
from snakemake_kochi.project.conditions import Where
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.grid import Grid
from snakemake_kochi.project.recipes import Recipe, Requirement

if TYPE_CHECKING:
    from snakemake.utils import Paramspace

FREEZE_VARIABLE = "KOCHI_FREEZE"
# Names the freeze that a main process uses instead of taking one.
RERUN_VARIABLE = "KOCHI_RERUN"
_OWNER_VARIABLE = "KOCHI_FREEZE_OWNER"
_PYTHON_VARIABLE = "KOCHI_PYTHON"
WHERE, RETRY = "kochi_where", "kochi_retry"
FAILED = "failed"
_log = logging.getLogger(__name__)


@for_snakemake
def load(workflow: Any, config: Mapping[str, Any] | None = None) -> Library:
    """The library of the project in the working directory, on the machine that is meant there.

    Snakemake's main process freezes the project; the processes of its jobs, and a second call while
    the same workflow is parsed, use the existing freeze. `config["kochi_experiments"]` is a list of
    globs, relative to the project, of experiment files; `config["kochi_experiment"]` is the file
    that is asked for: without it nothing runs.
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
        machine = freeze.machine_name

        def is_wanted() -> bool:
            return not workflow.dryrun

        commit_at_exit(
            freeze.directory, freeze.paths, machine, is_wanted, freeze.project.large_files
        )
        if freeze.machine.clean is not None:
            # Imported here: few runs clean up.
            from snakemake_kochi.cleaning.automatic import clean_at_exit

            clean_at_exit(freeze.root.machine(machine), Path.cwd(), is_wanted)
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
    globs = config.get("kochi_experiments")
    globs = [globs] if isinstance(globs, str) else globs
    if globs is not None and not _are_texts(globs):
        raise ConfigError(f"config kochi_experiments: a list of globs was expected, not {globs!r}")
    given: Sequence[Sequence[str]] = () if globs is None else (globs,)
    return take_freeze(Path.cwd(), chosen_machine(), *given, named=asked)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def freeze_of(workflow: Any) -> Freeze | None:
    """The freeze that `load` took for a workflow in this process, if it did."""
    if os.environ.get(_OWNER_VARIABLE) != f"{os.getpid()}-{id(workflow):x}":
        return None
    return load_freeze(Path(os.environ[FREEZE_VARIABLE]))


def chosen_machine() -> str:
    """The name of the machine that is meant in the working directory. Raises ConfigError."""
    # Not read twice where the machine is named: the freeze reads the project.
    return os.environ.get("KOCHI_DEFAULT_MACHINE") or find_location(asks=True).machine.name


# ---- a part of a batch


@dataclass(frozen=True)
class Part:
    """What is selected."""

    where: Where | None
    failed: bool

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Part | None:
        """None for whole batches. Raises ConfigError."""
        where, retry = config.get(WHERE), config.get(RETRY)
        if retry not in (None, FAILED):
            raise ConfigError(f"config {RETRY}: '{FAILED}' was expected, not {retry!r}")
        if where is None:
            return None if retry is None else cls(None, True)
        texts = [where] if isinstance(where, str) else where
        alternatives = [texts] if _are_texts(texts) else texts
        if not texts or not isinstance(texts, list) or not all(map(_are_texts, alternatives)):
            raise ConfigError(
                f'config {WHERE}: a list of conditions such as "n=100" was expected, not {where!r}'
            )
        return cls(Where.parse(*alternatives), retry == FAILED)

    def files(self, batch: BatchRules) -> list[str]:
        """The files of the selected points. Raises ConfigError."""
        grid = batch.grid
        if self.where is not None:
            check_part(self.where, grid)
        selected = self.places(batch.files_now(), Path())
        if not selected:
            said = f"{name_of(grid)} has the selected points, but needs fewer runs of them"
            if self.failed:
                among = " among the selected ones" if self.where else ""
                said = f"no point of {name_of(grid)} has failed{among}"
            hint = f"kochi show batch {batch.experiment.file} {grid.batch}"
            raise ConfigError(said, f"To see the states of its points, type: {hint}")
        return [str(each) for place in selected for each in (place.record, *place.files)]

    def places(self, files: BatchFiles, directory: Path) -> list[Place]:
        """The selected points of `files` in a working directory; none if none has failed."""
        return [
            place
            for place in files.places
            if (self.where is None or self.where.has(place.point.parameters, place.point.duplicate))
            and (not self.failed or _has_failed(directory / place.record))
        ]


def _has_failed(record: Path) -> bool:
    """Whether the last attempt of the point with this record failed, and left no result."""
    failure = None if is_there(record) else read_failure(record)
    return failure is not None and not failure.stopped


def check_part(where: Where, grid: Grid) -> None:
    """Raise NameNotFoundError or ConfigError if no point of a batch is selected, or only points
    that the experiment skips."""
    points = [(point.parameters, point.duplicate) for point in grid.points]
    duplicates = range(1 + max((duplicate for _, duplicate in points), default=0))
    skipped = [(each.parameters, number) for each in grid.skipped for number in duplicates]
    where.check([*points, *skipped], name_of(grid))
    for conditions in where.alternatives:
        own = Where((conditions,))
        if any(own.has(*point) for point in points):
            continue
        chosen = (e for e in grid.skipped if any(own.has(e.parameters, n) for n in duplicates))
        raise ConfigError(
            f"{name_of(grid)} skips what has {' and '.join(map(str, conditions))}: "
            f"{next(chosen).reason}",
            "To run what is skipped, change 'when', 'skip_if' or the values in the experiment.",
        )


def name_of(grid: Grid) -> str:
    """A batch in a message."""
    return f"batch {grid.batch} of {grid.experiment}"


# ---- the rules


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
        """The manifests that an installation needs. Raises ConfigError when its source is missing:
        it is called while the DAG is made, so before anything runs."""
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
        self._part, self._asked, self._workflow = part, asked, workflow
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
        if self._workflow is not None and self._broken:
            from snakemake.logging import logger

            logger.addHandler(_Mistakes(self._workflow, self._broken))
        return tuple(batches)

    @cached_property
    def checks(self) -> tuple[BatchRules, ...]:
        """The batches with a target that checks their results: those with `references`."""
        return tuple(batch for batch in self.batches if batch.grid.references)

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
            # Have the manifest of before again, which Snakemake deleted for an installation that
            # failed. If it were missing, Snakemake would repeat all finished work with it.
            remembered = WorkingPaths.remembered(Path(rule.manifest))
            if is_there(remembered) and not is_there(rule.manifest):
                shutil.copy2(remembered, rule.manifest)
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
        own = ([each.markdown, *(() if each.grid.repeat else each.artifacts)] for each in files)
        return [file for each in own for file in each]

    @property
    def rerun(self) -> list[str]:
        """The files of the points that a rerun repeats."""
        files = [batch.files for batch in self.batches]
        return [file for each in files for file in each.records + each.artifacts]

    def wanted(self, batch: BatchRules, checkpoints: Any) -> Any:
        """The files that the target of a batch wants, or a function that returns them: those of a
        part, or of the whole batch with its table and its figures."""
        files, part = batch.files, self._part
        if part is not None:
            # Called for what somebody asks for only: another batch may not have such a parameter.
            return for_snakemake(lambda wildcards: part.files(batch))
        made = [files.markdown, files.table, *files.figures]
        if batch.grid.repeat is None:
            return [*made, *files.artifacts]
        return [*made, batch.input(checkpoints, "artifacts")]

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
