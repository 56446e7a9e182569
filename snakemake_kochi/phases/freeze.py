"""The freeze of a run: its code and configuration at its start, which later edits do not change.

A freeze is a JSON file below KOCHI_ROOT, named by the digest of its content. The main process of a
run takes it while the Snakefile is parsed; the processes of its jobs read the same file, which
$KOCHI_FREEZE names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import (
    ConfigError,
    DamagedFileError,
    GitError,
    KochiError,
    NameNotFoundError,
    nearest,
)
from snakemake_kochi.files import make_directory, note_use, read_json, to_json, write_atomically
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.locks import settle_locks
from snakemake_kochi.paths import ProjectPaths, Root, SentPaths, WorkingPaths
from snakemake_kochi.phases.sources import (
    SNAKEMAKE_STATE,
    given_in,
    given_of,
    local_sources,
    locked_sources,
    restored_sources,
)
from snakemake_kochi.project.configuration import configuration_file, find_project, load_project
from snakemake_kochi.project.document import read_text
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.experiment_file import load_experiment
from snakemake_kochi.project.grid import ROUNDS, Batch, Recorded
from snakemake_kochi.project.machines import CommonFile, Machine, common_files
from snakemake_kochi.project.recipes import (
    Project,
    Recipe,
    Requirement,
    distinct,
    names_in,
    place_of_value,
    requirements_at,
)
from snakemake_kochi.project.sent import sent_note
from snakemake_kochi.project.shape import is_experiment
from snakemake_kochi.project.sweeps import Given
from snakemake_kochi.project.values import CODE, WORKING_TREE
from snakemake_kochi.snapshot import (
    Entry,
    Snapshot,
    difference,
    find_commit,
    freeze,
    freeze_commit,
    keep_repository,
    keep_repository_at,
    list_entries,
    matcher,
    read_file,
)

FREEZE_VERSION = 1
EXPERIMENT_GLOBS = ("*.yaml", "*.yml", "experiments/**/*.yaml", "experiments/**/*.yml")


@dataclass(frozen=True)
class Rerun:
    """What a rerun repeats: the points of each batch, by its experiment's file and its name.

    `below`: the directory of its results, in results/ and in the artifact branch.
    """

    below: str
    recorded: Mapping[str, Mapping[str, tuple[Recorded, ...]]]

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Rerun:
        """From JSON."""
        recorded = {
            file: {name: tuple(Recorded(**each) for each in points) for name, points in own.items()}
            for file, own in data["recorded"].items()
        }
        return cls(data["below"], recorded)


@dataclass(frozen=True)
class Code:
    """The code of a commit, and what becomes the `.git` of its copies, or None."""

    snapshot: Snapshot
    git_directory: str | None = None


@dataclass(frozen=True)
class Freeze:
    """The state of a project at the start of a run, or, for a `rerun`, that of recorded results.

    `config` is the text of kochi.yaml, `common` the files with machines that it overrides,
    `experiments` the text of each experiment by its path, `sources` the resolved source of each
    recipe whose source is on this computer, by `dependency:recipe`: {"git", "commit"} or {"mirror",
    "tree", "base"}; `without_source` says why an expected source is missing. `diff` shows how the
    snapshot differs from the checked-out commit, without confidential parts. `git_directory`
    becomes the `.git` of copies of the snapshot, or is None. `source_trees`: for recipes of a
    rerun, the tree in the store with the files of a source that is not here itself. `codes`:
    the code of each value of `code:`; `without_code` says why that of an expected one is missing.
    `facts`, `without_facts`, `tables`: see `given_in`. `commits`: in a search among commits of a
    recipe, by `dependency:recipe`, those that are recipes, too; a point has that of its `code`.
    """

    file: Path
    root: Root
    directory: Path
    machine_name: str
    snapshot: Snapshot
    config_file: Path
    config: str
    common: tuple[CommonFile, ...]
    experiments: Mapping[str, str]
    sources: Mapping[str, Mapping[str, str]]
    without_source: Mapping[str, str] = FrozenDict()
    diff: str = ""
    git_directory: str | None = None
    source_trees: Mapping[str, str] = FrozenDict()
    rerun: Rerun | None = None
    facts: Mapping[str, str] = FrozenDict()
    without_facts: str = ""
    tables: Mapping[str, str] = FrozenDict()
    codes: Mapping[str, Code] = FrozenDict()
    without_code: Mapping[str, str] = FrozenDict()
    commits: Mapping[str, Sequence[str]] = FrozenDict()

    @cached_property
    def paths(self) -> ProjectPaths:
        return self.root.project(self.directory)

    @property
    def workspaces(self) -> Path:
        return self.paths.workspaces(self.machine_name)

    @cached_property
    def project(self) -> Project:
        project = load_project(self.directory, self.config, self.config_file, self.common)
        return project.with_commits(self.commits) if self.commits else project

    @cached_property
    def machine(self) -> Machine:
        return self.project.machine(self.machine_name)

    @cached_property
    def given(self) -> Given:
        """What determines points besides the texts of the experiments."""
        return given_of(self.machine, self.facts, self.without_facts, self.tables)

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """The files of the snapshot."""
        return list_entries(self.paths.store, self.snapshot.tree)

    def at(self, code: str) -> Freeze:
        """The same freeze with the code of a value of `code:`, or itself if that is missing."""
        return self._at.get(code, self)

    @cached_property
    def _at(self) -> dict[str, Freeze]:
        return {
            code: replace(self, snapshot=own.snapshot, diff="", git_directory=own.git_directory)
            for code, own in self.codes.items()
        }

    def seed(self, batch: Batch) -> int | None:
        """The seed of the order in which the runs of a batch start, None if they start as listed.

        By default a part of the freeze's name: a run that is resumed has the order of before.
        """
        if batch.order != ROUNDS:
            return None
        return int(self.file.stem[:8], 16) if batch.seed is None else batch.seed

    @property
    def files_to_run(self) -> tuple[str, ...]:
        """The experiments that may run: in a rerun, those of which it repeats points."""
        return tuple(self.experiments if self.rerun is None else self.rerun.recorded)

    def experiment(self, file: str) -> Experiment:
        """Load one experiment by the path of its file; NameNotFoundError if it is not frozen."""
        if file not in self.experiments:
            raise NameNotFoundError(
                f"{file}: not an experiment of this project", nearest(file, self.experiments)
            )
        experiment = load_experiment(file, self.experiments[file], self.project, self.given)
        if self.rerun is None:
            return experiment
        chosen = [Requirement(name.partition(":")[0], "${code}") for name in self.commits]
        return experiment.only_recorded(self.rerun.recorded[file], self.rerun.below, chosen)

    def recipes(self, requirements: Sequence[Requirement], origin: str) -> tuple[Recipe, ...]:
        return self.project.resolve(requirements, self.machine_name, origin)

    @property
    def all_recipes(self) -> tuple[Recipe, ...]:
        """The recipes of the project, in the order of kochi.yaml."""
        every = self.project.dependencies.values()
        return tuple(recipe for each in every for recipe in each.values())


# ---- its file


def write_freeze(paths: ProjectPaths, data: Mapping[str, Any]) -> Freeze:
    """Write a freeze, unless it exists; `data` are the keys of its file except "version"."""
    content = to_json({**data, "version": FREEZE_VERSION})
    file = paths.freeze(hashlib.sha256(content).hexdigest()[:32])
    if not note_use(file):
        make_directory(file.parent)
        write_atomically(file, content)
    return load_freeze(file)


def changed(frozen: Freeze, **keys: Any) -> Freeze:
    """The same freeze with other values of some keys of its file."""
    return write_freeze(frozen.paths, {**read_json(frozen.file, FREEZE_VERSION), **keys})


def load_freeze(file: Path) -> Freeze:
    """Read a freeze. Raises DamagedFileError, or KochiError when it is gone."""
    try:
        data: dict[str, Any] = read_json(file, FREEZE_VERSION)
    except FileNotFoundError:
        raise KochiError(
            f"{file}: the freeze of this run is gone",
            "Was it deleted, by `kochi clean` or with KOCHI_ROOT? Start the run again.",
        ) from None
    read: dict[str, Callable[[Any], Any]] = {
        "root": lambda text: Root(Path(text)),
        "directory": Path,
        "snapshot": lambda keys: Snapshot(**keys),
        "config_file": Path,
        "common": lambda files: tuple(CommonFile(**each) for each in files),
        "rerun": Rerun.of,
        "codes": lambda codes: {
            code: Code(Snapshot(**each["snapshot"]), each["git_directory"])
            for code, each in codes.items()
        },
    }
    try:
        own = {key: read[key](each) if key in read else each for key, each in data.items()}
        del own["version"]
        return Freeze(file=file, machine_name=own.pop("machine"), **own)
    except (KeyError, TypeError) as error:
        raise DamagedFileError(f"{file}: not a freeze ({error})") from error


# ---- taking one


def take_freeze(
    start: Path,
    machine: str,
    experiment_globs: Sequence[str] = EXPERIMENT_GLOBS,
    *,
    named: str | None = None,
) -> Freeze:
    """Freeze the project of a directory for one machine. The `named` file is an experiment whatever
    its content; with one, other files that cannot be read are none.

    Raises GitError outside of a repository, KochiError without a kochi.yaml, ConfigError when a
    file is wrong.
    """
    directory = find_project(start)
    config_file = configuration_file(directory)
    config = read_text(config_file, str(config_file))
    common = common_files(machines=[machine])
    project = load_project(directory, config, config_file, common)
    used = project.machine(machine).at_home()
    root = Root.find(used.kochi_root, where=used.root_said_at)
    paths = root.project(directory)
    root.secure(paths.directory)
    with root.explaining():
        # Done before a process of the run could be the first and settle the default.
        settle_locks(root.machine(machine), used.lock_directory, used.lock_kind)
    outputs = own_outputs(start, directory, root)
    snapshot = freeze(directory, paths.store, outputs)
    note = sent_note(directory)
    if note and (note.get("tree"), note["base"] or None) == (snapshot.tree, snapshot.base):
        # Whether files differ from a commit depends on the filters and settings of the computer
        # from which they were sent.
        snapshot = replace(snapshot, dirty=bool(note["dirty"]))
    diff = difference_of(directory, paths, snapshot, outputs)
    git_directory = keep_repository(directory, paths.store, paths.repository, outputs)
    experiments = {}
    for path in sorted({p for g in experiment_globs for p in directory.glob(g) if p.is_file()}):
        name = path.relative_to(directory).as_posix()
        try:
            text = read_text(path, name)
        except ConfigError:
            if named in (None, name):
                raise
            continue
        if path != config_file and (name == named or is_experiment(text)):
            experiments[name] = text
    restored = restored_sources(WorkingPaths(start, machine))
    every = [recipe for each in project.dependencies.values() for recipe in each.values()]
    sources, without_source = local_sources(every, project, paths, restored)
    sources |= locked_sources(directory, every)
    data = {
        "root": str(root.directory),
        "directory": str(directory),
        "machine": machine,
        "snapshot": asdict(snapshot),
        "diff": diff,
        "config_file": str(config_file),
        "config": config,
        "common": [asdict(each) for each in common],
        "experiments": experiments,
        "sources": sources,
        "without_source": without_source,
        "git_directory": None if git_directory is None else str(git_directory),
        **given_in(experiments, used, partial(read_file, paths.store, snapshot.tree)),
    }
    frozen = write_freeze(paths, data)
    codes = _codes(frozen, outputs)
    return changed(frozen, **codes) if codes else frozen


def difference_of(
    directory: Path, paths: ProjectPaths, snapshot: Snapshot, outputs: Sequence[str] = ()
) -> str:
    """How a snapshot differs from its commit."""
    try:
        return difference(directory, paths.store, snapshot, matcher(outputs))
    except GitError as error:
        # It determines nothing: a shallow or partial clone need not have the files of the commit.
        return f"[not available: {error.message}]\n"


def own_outputs(start: Path, directory: Path, root: Root) -> list[str]:
    """Patterns for the files that a run in `start` writes: its outputs must not count as code."""
    # Without a slash at the end: they may be links to directories on another filesystem.
    patterns = ["/results", *SNAKEMAKE_STATE]
    top = directory.resolve()
    for path, below in ((start.resolve(), "/results"), (root.directory.resolve(), "")):
        if path.is_relative_to(top) and path != top:
            patterns.append(f"/{pattern_of(path.relative_to(top).as_posix())}{below}")
    return patterns


def pattern_of(path: str) -> str:
    """A path as a pattern of .gitignore that matches only this path."""
    return "".join(f"\\{character}" if character in "*?[]\\!#" else character for character in path)


def have_read() -> None:
    """Let other commands send other files: this one has read those that it needs."""
    if use := SentPaths.own_use():
        with suppress(OSError):
            use.unlink(missing_ok=True)


# ---- what points need beside the checked-out code


def code_at(frozen: Freeze, value: str, excluded: Sequence[str]) -> Code:
    """The code of a branch, a tag or a commit, in the store of a freeze. `excluded`: patterns of
    what is none. Raises GitError."""
    directory, paths = frozen.directory, frozen.paths
    commit = find_commit(directory, value)
    snapshot = freeze_commit(directory, commit, paths.store, excluded)
    repository = keep_repository_at(directory, paths.store, paths.repository, commit)
    return Code(snapshot, None if repository is None else str(repository))


def _codes(frozen: Freeze, excluded: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The keys of a freeze about the commits that points need: looked up once, when a run begins. A
    batch that is wrong is left out: the checks of all batches tell its problems."""
    places: dict[str, str] = {}
    for file, text in frozen.experiments.items():
        # Most experiments need nothing; to read one takes longer than to look for the key.
        if CODE not in text:
            continue
        with suppress(ConfigError):
            experiment = frozen.experiment(file)
            for batch in experiment.batches.values():
                with suppress(ConfigError):
                    for value, place in _codes_of(experiment, batch, frozen.machine_name):
                        places.setdefault(value, place)
    found, without_code = {}, {}
    for value, place in places.items():
        try:
            found[value] = asdict(code_at(frozen, value, excluded))
        except GitError as error:
            without_code[value] = f"{place}: {error}"
    return {"codes": found, "without_code": without_code} if places else {}


def _codes_of(experiment: Experiment, batch: Batch, machine: str) -> Iterator[tuple[str, str]]:
    """The values of `code:` of a batch, and their places in its file."""
    if batch.has_code:
        for point in distinct(experiment.grid(batch.name, machine).points, [CODE]):
            value = point.parameters[CODE]
            if value != WORKING_TREE:
                place = place_of_value(experiment, batch, CODE, value)
                at = place or ("batches", batch.name, CODE)
                yield value, experiment.source_map.position(at)


def check_codes(repository: Path, experiment: Experiment, batch: Batch, machine: str) -> None:
    """Raise a ConfigError with a line for each value of `code:` of a batch that is not here."""
    lines = []
    for value, place in _codes_of(experiment, batch, machine):
        try:
            find_commit(repository, value)
        except GitError as error:
            lines.append(f"{place}: {error}")
    if lines:
        raise ConfigError("\n".join(lines))


def recipes_of(
    project: Project, experiment: Experiment, batch: Batch, machine: str
) -> list[Recipe]:
    """All recipes that the points of a batch need. Raises ConfigError and NameNotFoundError."""
    wanted = experiment.requirements_on(machine, batch.requirements)
    origin = f"{experiment.file}: batch {batch.name}"
    parameters: list[Mapping[str, str]] = [{}]  # no grid is made where none names a recipe
    if names := names_in(wanted):
        points = experiment.grid(batch.name, machine).points
        parameters = [point.parameters for point in distinct(points, names)]
    found: dict[str, Recipe] = {}
    for each in parameters:
        for recipe in project.resolve(requirements_at(wanted, each), machine, origin):
            found[str(recipe)] = recipe
    return list(found.values())
