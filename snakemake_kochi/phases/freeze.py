"""The freeze of a run: its code and configuration at its start, which later edits do not change.

A freeze is a JSON file below KOCHI_ROOT, named by the digest of its content. The main process of a
run takes it while the Snakefile is parsed; the processes of its jobs read the same file, which
$KOCHI_FREEZE names.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
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
from snakemake_kochi.files import (
    expand_user,
    is_there,
    make_directory,
    read_json,
    to_json,
    write_atomically,
)
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.locks import settle_locks
from snakemake_kochi.paths import ProjectPaths, Root
from snakemake_kochi.project.configuration import configuration_file, find_project, load_project
from snakemake_kochi.project.document import read_text
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.experiment_file import is_experiment, load_experiment
from snakemake_kochi.project.machines import CommonFile, Machine, common_files
from snakemake_kochi.project.recipes import Project, Recipe, Requirement
from snakemake_kochi.snapshot import (
    Entry,
    Snapshot,
    difference,
    freeze,
    keep_repository,
    list_entries,
    matcher,
    resolve_source,
)

FREEZE_VERSION = 1
# Snakemake's own state is never part of the code, whatever .gitignore says.
SNAKEMAKE_STATE = (".snakemake/",)
EXPERIMENT_GLOBS = ("*.yaml", "*.yml", "experiments/**/*.yaml", "experiments/**/*.yml")


@dataclass(frozen=True)
class Freeze:
    """The state of a project at the start of a run.

    `config` is the text of kochi.yaml, `common` the files with machines that it overrides,
    `experiments` the text of each experiment by its path, `sources` the resolved source of each
    recipe whose source is on this computer, by `dependency:recipe`: {"git", "commit"} or {"mirror",
    "tree", "base"}; `without_source` says why an expected source is missing. `diff` shows how the
    snapshot differs from the checked-out commit, without confidential parts. `git_directory`
    becomes the `.git` of copies of the snapshot, or is None.
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

    @cached_property
    def paths(self) -> ProjectPaths:
        return self.root.project(self.directory)

    @property
    def workspaces(self) -> Path:
        return self.paths.workspaces(self.machine_name)

    @cached_property
    def project(self) -> Project:
        return load_project(self.directory, self.config, self.config_file, self.common)

    @cached_property
    def machine(self) -> Machine:
        return self.project.machine(self.machine_name)

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """The files of the snapshot."""
        return list_entries(self.paths.store, self.snapshot.tree)

    def experiment(self, file: str) -> Experiment:
        """Load one experiment by the path of its file; NameNotFoundError if it is not frozen."""
        if file not in self.experiments:
            raise NameNotFoundError(
                f"{file}: not an experiment of this project", nearest(file, self.experiments)
            )
        return load_experiment(file, self.experiments[file], self.project)

    def recipes(self, requirements: Sequence[Requirement], origin: str) -> tuple[Recipe, ...]:
        return self.project.resolve(requirements, self.machine_name, origin)


def take_freeze(
    start: Path,
    machine: str,
    experiment_globs: Sequence[str] = EXPERIMENT_GLOBS,
    *,
    named: str | None = None,
) -> Freeze:
    """Freeze the project of a directory for one machine. The `named` file is an experiment whatever
    its content.

    Raises GitError outside of a repository, KochiError without a kochi.yaml, ConfigError when a
    file is wrong.
    """
    directory = find_project(start)
    config_file = configuration_file(directory)
    config = read_text(config_file, str(config_file))
    common = common_files(machines=[machine])
    project = load_project(directory, config, config_file, common)
    used = project.machine(machine)
    root = Root.find(used.kochi_root, where=used.root_said_at)
    paths = root.project(directory)
    root.secure(paths.directory)
    with root.explaining():
        # Done before a process of the run could be the first and settle the default.
        settle_locks(root.machine(machine), used.lock_directory, used.lock_kind)
    outputs = own_outputs(start, directory, root)
    snapshot = freeze(directory, paths.store, outputs)
    git_directory = keep_repository(directory, paths.store, paths.repository, outputs)
    experiments = {}
    for path in _experiment_files(directory, experiment_globs):
        name = path.relative_to(directory).as_posix()
        text = read_text(path, name)
        if path != config_file and (name == named or is_experiment(text)):
            experiments[name] = text
    sources, without_source = _local_sources(project, paths)
    data = {
        "version": FREEZE_VERSION,
        "root": str(root.directory),
        "directory": str(directory),
        "machine": machine,
        "snapshot": asdict(snapshot),
        "diff": _difference(directory, paths, snapshot, outputs),
        "config_file": str(config_file),
        "config": config,
        "common": [asdict(each) for each in common],
        "experiments": experiments,
        "sources": sources,
        "without_source": without_source,
        "git_directory": None if git_directory is None else str(git_directory),
    }
    content = to_json(data)
    file = paths.freeze(hashlib.sha256(content).hexdigest()[:32])
    if not is_there(file):
        make_directory(file.parent)
        write_atomically(file, content)
    return load_freeze(file)


def load_freeze(file: Path) -> Freeze:
    """Read a freeze. Raises DamagedFileError, or KochiError when it is gone."""
    try:
        data: dict[str, Any] = read_json(file, FREEZE_VERSION)
    except FileNotFoundError:
        raise KochiError(
            f"{file}: the freeze of this run is gone",
            "Was KOCHI_ROOT emptied while it ran? Start the run again.",
        ) from None
    try:
        return Freeze(
            file=file,
            root=Root(Path(data["root"])),
            directory=Path(data["directory"]),
            machine_name=data["machine"],
            snapshot=Snapshot(**data["snapshot"]),
            config_file=Path(data["config_file"]),
            config=data["config"],
            common=tuple(CommonFile(**each) for each in data.get("common", ())),
            experiments=data["experiments"],
            sources=data["sources"],
            without_source=data.get("without_source", {}),
            diff=data.get("diff", ""),  # written by an earlier release
            git_directory=data.get("git_directory"),
        )
    except (KeyError, TypeError) as error:
        raise DamagedFileError(f"{file}: not a freeze ({error})") from error


def _difference(
    directory: Path, paths: ProjectPaths, snapshot: Snapshot, outputs: Sequence[str]
) -> str:
    try:
        return difference(directory, paths.store, snapshot, matcher(outputs))
    except GitError as error:
        # It determines nothing: a shallow or partial clone need not have the files of the commit.
        return f"[could not be had: {error.message}]\n"


def own_outputs(start: Path, directory: Path, root: Root) -> list[str]:
    """Patterns for the files that a run in `start` writes: its outputs must not count as code."""
    patterns = ["/results/", *SNAKEMAKE_STATE]
    own = ((start.resolve(), "results/"), (root.directory.resolve(), ""))
    for path, below in own:
        if path.is_relative_to(directory.resolve()) and path != directory.resolve():
            relative = glob_escape(path.relative_to(directory.resolve()).as_posix())
            patterns.append(f"/{relative}/{below}")
    return patterns


def glob_escape(path: str) -> str:
    """A path as a pattern of .gitignore that matches only this path."""
    return "".join(f"\\{character}" if character in "*?[]\\!#" else character for character in path)


def _experiment_files(directory: Path, globs: Sequence[str]) -> list[Path]:
    return sorted({path for glob in globs for path in directory.glob(glob) if path.is_file()})


def _local_sources(
    project: Project, paths: ProjectPaths
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """The sources that are on this computer, by recipe, and what is wrong with the others. A
    missing source concerns runs that need the recipe, and not every run of the project."""
    sources, without = {}, {}
    for recipe in (recipe for each in project.dependencies.values() for recipe in each.values()):
        try:
            source = _local_source(recipe, project, paths)
        except GitError as error:
            without[str(recipe)] = str(error)
        else:
            if source is not None:
                sources[str(recipe)] = source
    return sources, without


def check_sources(project: Project, recipes: Iterable[Recipe]) -> None:
    """Raise a ConfigError with a line for each recipe whose source must be on this computer and is
    not."""
    lines = []
    for recipe in recipes:
        try:
            _local_commit(recipe, project)
        except GitError as error:
            lines.append(str(error))
    if lines:
        raise ConfigError("\n".join(lines))


def _local_source(recipe: Recipe, project: Project, paths: ProjectPaths) -> dict[str, str] | None:
    """Resolve a source on this computer, which is cheap and done in every run.

    A remote source is resolved only at its installation. Raises GitError when the source is
    missing.
    """
    commit = _local_commit(recipe, project)
    if (mirrored := project.mirror_directory(recipe)) is not None:
        mirror = mirrored.resolve()
        _refuse_around(mirror, paths.directory, recipe)
        snapshot = freeze(mirror, paths.store, SNAKEMAKE_STATE)
        return {"mirror": str(mirror), "tree": snapshot.tree, "base": snapshot.base or ""}
    return None if commit is None else {"git": str(recipe.git), "commit": commit}


def _local_commit(recipe: Recipe, project: Project) -> str | None:
    """The commit of a repository on this computer, None for another source."""
    if (mirrored := project.mirror_directory(recipe)) is not None:
        _require_directory(mirrored, recipe.source_at["mirror_dir"])
        return None
    if recipe.git is None or recipe.is_remote:
        return None
    local = _local_path(recipe.git, project.directory)
    _require_directory(local, recipe.source_at["git"])
    try:
        return resolve_source(str(local.resolve()), recipe.branch, recipe.commit_hash)
    except GitError as error:
        key = "branch" if recipe.branch else "commit_hash" if recipe.commit_hash else "git"
        raise GitError(f"{recipe.source_at[key]}: {error.message}", error.hint) from error


def _require_directory(path: Path, place: str) -> None:
    # Not Path.is_dir: it may be longer than a path.
    if os.path.isdir(path):
        return
    beside = os.listdir(path.parent) if os.path.isdir(path.parent) else ()
    said = nearest(path.name, (name for name in beside if (path.parent / name).is_dir()))
    meant = f", {said}" if said.startswith("did you mean") else ""
    raise GitError(f"{place}: there is no directory {os.path.normpath(path)}{meant}")


def _refuse_around(mirror: Path, store: Path, recipe: Recipe) -> None:
    """Without a repository's .gitignore all files count: the store would contain itself, and the
    mirrored directory would be a home or a whole disk."""
    if not store.resolve().is_relative_to(mirror):
        return
    if not any(is_there(each / ".git") for each in (mirror, *mirror.parents)):
        raise KochiError(
            f"mirror_dir of {recipe}: {mirror} contains KOCHI_ROOT, where copies of it are kept",
            "Name the directory of the sources alone in kochi.yaml.",
        )


def local_repository(git: str, directory: Path) -> str | None:
    """The absolute path of a `git:` that is a directory of this computer, else None."""
    path = _local_path(git, directory)
    # Not Path.is_dir: an address may be longer than a path.
    return str(path.resolve()) if os.path.isdir(path) else None


def _local_path(git: str, directory: Path) -> Path:
    return directory / expand_user(git.removeprefix("file://"), "git")
