"""From records to the freeze of a rerun: their code, their recipes at their commits, their points.

No working tree is restored. A run takes its code from the store below KOCHI_ROOT, and its
configuration from a freeze; both are made here, from the refs with the code of results.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from snakemake_kochi.artifacts.code import CODE
from snakemake_kochi.errors import GitError, KochiError, NameNotFoundError
from snakemake_kochi.location import Location
from snakemake_kochi.paths import ProjectPaths
from snakemake_kochi.phases.freeze import (
    EXPERIMENT_GLOBS,
    Code,
    Freeze,
    difference_of,
    write_freeze,
)
from snakemake_kochi.phases.products import digest_of
from snakemake_kochi.phases.sources import given_in, local_repository, local_source
from snakemake_kochi.project.configuration import FILE_NAME, configuration_file, load_project
from snakemake_kochi.project.document import decode_text, read_text
from snakemake_kochi.project.experiment_file import load_experiment
from snakemake_kochi.project.grid import Recorded
from snakemake_kochi.project.machines import CommonFile, common_files
from snakemake_kochi.project.recipes import Project, Recipe, Requirement, requirements_at
from snakemake_kochi.project.shape import is_experiment
from snakemake_kochi.project.values import CODE as CODE_PARAMETER
from snakemake_kochi.reproduction.subject import RecordedCode, Subject
from snakemake_kochi.snapshot import (
    Entry,
    Snapshot,
    has_commit,
    has_tree,
    keep_repository_at,
    keep_tree,
    list_entries,
    matcher,
    read_file,
    restore_code,
)

_MOST_LINKS = 20
_LINK = "120000"


@dataclass(frozen=True)
class Group:
    """Records that one run of Snakemake can repeat: of one code with the same sources of recipes,
    each of another point."""

    subjects: tuple[Subject, ...]

    @property
    def code(self) -> RecordedCode:
        return self.subjects[0].code

    @property
    def configuration(self) -> RecordedCode:
        return self.subjects[0].configuration

    @property
    def sources(self) -> dict[str, Mapping[str, str]]:
        return {name: source for each in self.subjects for name, source in each.sources.items()}

    @property
    def digest(self) -> str:
        return digest_of([subject.identity for subject in self.subjects])


@dataclass(frozen=True)
class Restored:
    """A group's freeze. `remarks`: what is not as it was, a sentence each."""

    freeze: Freeze
    remarks: tuple[str, ...]


def groups_of(subjects: Iterable[Subject]) -> list[Group]:
    """The groups of records, each record once, in their order."""
    once = {subject.identity: subject for subject in subjects}
    groups: dict[tuple[str, ...], list[Subject]] = {}
    points: dict[tuple[object, ...], int] = {}
    for subject in once.values():
        code = (str(subject.code), str(subject.configuration))
        # A recipe that only some of the records used does not keep them apart.
        sources = json.dumps({n: dict(s) for n, s in subject.sources.items()}, sort_keys=True)
        number = points[code, sources, subject.point] = (
            points.get((code, sources, subject.point), 0) + 1
        )
        groups.setdefault((*code, sources, str(number)), []).append(subject)
    return [Group(tuple(members)) for members in groups.values()]


def restore(location: Location, group: Group, below: str) -> Restored:
    """The freeze that repeats a group's records, with results in the directory `below`.

    Raises KochiError if code or sources are not in this clone, ConfigError and NameNotFoundError
    where the records do not fit their code or this machine.
    """
    project, paths = location.require_project(), location.project_paths
    location.secure(paths.directory)
    first, remarks = group.subjects[0], list[str]()
    own = group.configuration
    configured = _code(project.directory, paths, own, f"the code of {first.identity}", remarks)
    code = _Code(paths.store, configured.snapshot.tree)
    text, file, common = _configuration(location, code, group)
    then = load_project(project.directory, text, file, common)
    experiments = code.experiments(each.experiment for each in group.subjects)
    trees = _pinned(project.directory, paths, then, group, remarks)
    sources = {name: dict(source) for name, source in group.sources.items() if source}
    needed = _needed(then, experiments, group, location.machine.name)
    for recipe in needed:
        if str(recipe) not in group.sources:
            remarks.append(f"{recipe} is not in the records: its source is that of now")
            if (source := local_source(recipe, then, paths)) is not None:
                sources[str(recipe)] = source
    codes: dict[str, dict[str, Any]] = {}
    if group.code != own:
        what = f"the code of {first.identity} that it ran"
        made = asdict(_code(project.directory, paths, group.code, what, remarks))
        codes = {each.parameters.get(CODE_PARAMETER, ""): made for each in group.subjects}
    freeze = write_freeze(
        paths,
        {
            "root": str(location.root.directory),
            "directory": str(project.directory),
            "machine": location.machine.name,
            "snapshot": asdict(configured.snapshot),
            "diff": difference_of(project.directory, paths, configured.snapshot),
            "config_file": str(file),
            "config": text,
            "common": [asdict(each) for each in common],
            "experiments": experiments,
            "sources": sources,
            "without_source": {},
            "git_directory": configured.git_directory,
            "codes": codes,
            "source_trees": trees,
            "rerun": {"below": below, "recorded": _recorded(group)},
            **given_in(
                experiments,
                then.machine(location.machine.name),
                partial(read_file, paths.store, code.tree),
            ),
        },
    )
    return Restored(freeze, tuple(remarks))


def _recorded(group: Group) -> dict[str, dict[str, list[dict[str, Any]]]]:
    recorded: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for each in group.subjects:
        points = recorded.setdefault(each.experiment, {}).setdefault(each.batch, [])
        point = Recorded(dict(each.parameters), each.duplicate, each.identity)
        points.append(asdict(point))
    return recorded


def _code(
    repository: Path, paths: ProjectPaths, recorded: RecordedCode, what: str, remarks: list[str]
) -> Code:
    """The code of a record, in the store. Raises GitError if it is not in this clone."""
    tree = _tree(repository, paths, recorded.tree, what, remarks)
    snapshot = Snapshot(tree, keep_tree(paths.store, tree), recorded.base, recorded.dirty)
    if recorded.base is None:
        return Code(snapshot)
    kept = keep_repository_at(repository, paths.store, paths.repository, recorded.base)
    if kept is None:
        commit = recorded.base[:12]
        remarks.append(f"commit {commit} is not in this clone: scripts that ask git get no answer")
    return Code(snapshot, None if kept is None else str(kept))


def _tree(repository: Path, paths: ProjectPaths, name: str, what: str, remarks: list[str]) -> str:
    """The tree in the store with published files, or with those that were never published."""
    if has_tree(paths.store, name):
        return name
    try:
        tree, left_out = restore_code(repository, f"{CODE}/{name}", paths.store)
    except GitError as error:
        raise GitError(f"{what} is not here: {error.message}", error.hint) from error
    if left_out:
        remarks.append(f"{what} was published without {', '.join(left_out)}")
    return tree


# ---- configuration


@dataclass(frozen=True)
class _Code:
    """The files of a tree in a store."""

    store: Path
    tree: str

    def experiments(self, wanted: Iterable[str]) -> dict[str, str]:
        """The texts of all experiments, by path: each of them is no source of the others."""
        names = set(wanted)
        usual = matcher([f"/{glob}" for glob in EXPERIMENT_GLOBS])
        texts = {}
        for path in self._entries:
            if path == FILE_NAME or not (path in names or usual(path)):
                continue
            text = self.text(path)
            if path in names or is_experiment(text):
                texts[path] = text
        for name in sorted(names - texts.keys()):
            self.text(name)  # raises the error with the nearest name
        return texts

    def text(self, path: str) -> str:
        """A file, also through symbolic links in the tree.

        Raises NameNotFoundError, ConfigError.
        """
        real = path
        for _ in range(_MOST_LINKS):
            if (entry := self._entries.get(real)) is None or entry.mode != _LINK:
                break
            target = read_file(self.store, self.tree, real).decode("utf-8", "surrogateescape")
            real = posixpath.normpath(posixpath.join(posixpath.dirname(real), target))
        return decode_text(read_file(self.store, self.tree, real), f"{path} of {self.tree[:12]}")

    @cached_property
    def _entries(self) -> dict[str, Entry]:
        return {entry.path: entry for entry in list_entries(self.store, self.tree)}


def _configuration(
    location: Location, code: _Code, group: Group
) -> tuple[str, Path, list[CommonFile]]:
    """kochi.yaml as it was, a name for it, and the files with machines that it overrides.

    A machine that it does not know is taken from kochi.yaml as it is now.
    """
    directory, name = location.require_project().directory, location.machine.name
    common = list(common_files(machines=[name]))
    shown = directory / f"{FILE_NAME} of {group.configuration.tree[:12]}"
    try:
        text = code.text(FILE_NAME)
    except NameNotFoundError:
        now = configuration_file(directory)
        if now == directory / FILE_NAME:
            raise KochiError(
                f"the code of {group.subjects[0].identity} has no {FILE_NAME} at its top",
                "If it was elsewhere, type: export KOCHI_CONF=FILE",
            ) from None
        return read_text(now, str(now)), now, common  # as $KOCHI_CONF says
    known = load_project(directory, text, shown, common).machines
    if name not in known:
        now = configuration_file(directory)
        if now.is_file():
            common.insert(0, CommonFile(str(now), read_text(now, str(now))))
    return text, shown, common


def _needed(
    project: Project, experiments: Mapping[str, str], group: Group, machine: str
) -> Sequence[Recipe]:
    """All recipes that the points need on this machine. Raises as the loading of a batch."""
    needed = {}
    for file, batch in dict.fromkeys((each.experiment, each.batch) for each in group.subjects):
        experiment = load_experiment(file, experiments[file], project)
        extra = experiment.batch(batch).requirements
        wanted = experiment.requirements_on(machine, extra)
        subjects = (s for s in group.subjects if (s.experiment, s.batch) == (file, batch))
        own = (subject.parameters for subject in subjects)
        for required in dict.fromkeys(requirements_at(wanted, parameters) for parameters in own):
            for recipe in project.resolve(required, machine, f"{file}: batch {batch}"):
                needed[str(recipe)] = recipe
    return list(needed.values())


# ---- sources


def _pinned(
    repository: Path,
    paths: ProjectPaths,
    project: Project,
    group: Group,
    remarks: list[str],
) -> dict[str, str]:
    """The trees in the store with the sources of recipes that are not here themselves.

    Raises KochiError for a source that is in neither place, and for one that is not of the code.
    """
    trees = {}
    for name, source in group.sources.items():
        dependency, _, own = name.partition(":")
        recipe = project.recipe(Requirement(dependency, own))
        if not _fits(recipe, source):
            raise KochiError(
                f"{group.subjects[0].identity}: its source of {name} is not that of its code: "
                "the record was edited",
                "Choose another record.",
            )
        what = f"the source of {name}"
        if "tree" in source:
            trees[name] = _tree(repository, paths, source["tree"], what, remarks)
        elif "commit" in source and not recipe.is_remote:
            local = local_repository(str(recipe.git), repository)
            if local is None or not has_commit(Path(local), source["commit"]):
                trees[name] = _tree(repository, paths, source["commit"], what, remarks)
    return trees


def _fits(recipe: Recipe, source: Mapping[str, str]) -> bool:
    if recipe.mirror:
        return "tree" in source
    return source.get("git") == recipe.git and "tree" not in source
