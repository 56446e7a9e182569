"""Freezes, the `.git` directories of copies, and snapshots with their objects.

All machines of a KOCHI_ROOT share them. A freeze stays as long as a job or a run may read it, and
the newest one of each machine stays. What a freeze names stays as long as it, and the snapshot of
each build does. Of the other snapshots, those of recorded results stay until their code is
published in the user's repository (`artifacts/code.py`).
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snakemake_kochi.artifacts.agreement import agreed_commit, working_directories
from snakemake_kochi.artifacts.code import unpublished
from snakemake_kochi.artifacts.journal import journaled_records
from snakemake_kochi.artifacts.promises import promises
from snakemake_kochi.artifacts.reading import records_here
from snakemake_kochi.cleaning.projects import LEAST_AGE, Needed
from snakemake_kochi.cleaning.removal import Freed, Removal, delete
from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import is_there, list_names, modified, read_json
from snakemake_kochi.locks import read_lock_settings
from snakemake_kochi.paths import (
    SUBMODULES,
    BuildPaths,
    ProjectPaths,
    Root,
    SentPaths,
    WorkingPaths,
)
from snakemake_kochi.project.clean_rules import Rules
from snakemake_kochi.snapshot.pruning import prune, size_of_snapshots, size_of_unused, snapshot_refs
from snakemake_kochi.snapshot.repository import SNAPSHOTS

# Seconds that a run may need from its freeze to its promise.
_START = 3600.0


@dataclass
class _Kept:
    """What the freezes that stay name."""

    repositories: set[Path] = field(default_factory=set)
    trees: set[str] = field(default_factory=set)

    def add(self, freeze: Mapping[str, Any]) -> None:
        self.trees.add(str(freeze["snapshot"]["tree"]))
        sources = (source.get("tree") for source in freeze.get("sources", {}).values())
        self.trees.update(str(tree) for tree in sources if tree)
        self.trees.update(map(str, freeze.get("source_trees", {}).values()))
        codes = list(freeze.get("codes", {}).values())
        self.trees.update(str(code["snapshot"]["tree"]) for code in codes)
        for each in (freeze, *codes):
            if git_directory := each.get("git_directory"):
                self._add_repository(Path(str(git_directory)))

    def _add_repository(self, directory: Path) -> None:
        if directory in self.repositories:
            return
        self.repositories.add(directory)
        with contextlib.suppress(FileNotFoundError, DamagedFileError):
            for inner in read_json(directory / SUBMODULES).values():
                self._add_repository(Path(str(inner)))


def repository_of(project: ProjectPaths) -> Path | None:
    """The user's repository of a project, as its freezes name it."""
    for file in project.freezes():
        with contextlib.suppress(OSError, DamagedFileError, KeyError):
            return Path(str(read_json(file)["directory"]))
    return None


def clean_code(project: ProjectPaths, rules: Rules, removal: Removal) -> None:
    """Delete freezes, repositories of copies, and snapshots of a project."""
    with removal.tolerating(f"freezes of {project.directory.name}"):
        removal.sweep(project.freeze_directory)
        needed = [
            Needed(project.machine(name), project, None) for name in project.machines_of_root()
        ]
        found = {file: read_json(file) for file in project.freezes()}
        first = min(map(_first_run, needed), default=float("inf"))
        gone = _clean_freezes(project, found, needed, first, rules, removal)
        kept = _Kept()
        # Those that began meanwhile, too. One that cannot be read keeps all.
        for file in project.freezes():
            if file not in gone:
                with contextlib.suppress(FileNotFoundError):
                    kept.add(read_json(file))
        _clean_repositories(project, kept, rules, removal)
        for file in project.reruns.glob("*.json"):
            # A living rerun may be about to go on with an old one.
            if first == float("inf") and removal.is_older(file, rules.runs):
                removal.remove("runs", file)
        if is_there(project.store):
            repository = next((Path(str(each["directory"])) for each in found.values()), None)
            _clean_snapshots(project, repository, kept, rules, removal)


def _clean_freezes(
    project: ProjectPaths,
    found: Mapping[Path, Mapping[str, Any]],
    needed: list[Needed],
    first: float,
    rules: Rules,
    removal: Removal,
) -> set[Path]:
    """`first`: see `_first_run`."""
    gone = set()
    times = {file: modified(file) for file in found}
    newest: dict[str, Path] = {}
    for file in sorted(times, key=lambda file: times[file]):
        if "rerun" not in found[file]:  # that is not the code of today
            newest[str(found[file]["machine"])] = file
    # After `first`: a run that was killed meanwhile was alive then, or its notes are read.
    noted = _noted_freezes(project, found)
    for file, moment in times.items():
        age = removal.now - moment
        if age < max(rules.snapshots, LEAST_AGE) or moment >= first - _START:
            continue
        in_tickets = any(str(file) in each.freezes for each in needed)
        is_needed = in_tickets or file.name in noted
        if file in newest.values() or is_needed or rules.keeps("freezes", (file.stem,)):
            continue
        if removal.remove("freezes", file, lambda aside: removal.age_of(aside) < LEAST_AGE):
            gone.add(file)
            parts = ProjectPaths.parts_of_freeze(file)
            if is_there(parts):
                freed = Removal(removal.is_dry, removal.now, removal.deadline)
                freed.remove("freezes", parts)
                for each in freed.freed.values():
                    removal.count("freezes", Freed(0, each.inodes, each.bytes))
    return gone


def _noted_freezes(project: ProjectPaths, found: Mapping[Path, Mapping[str, Any]]) -> set[str]:
    """The names of the freezes with which killed processes ran jobs of users' own rules.

    The artifacts of these jobs are not kept yet. Raises OSError and DamagedFileError for notes that
    cannot be read; no freeze must be deleted then.
    """
    repositories = {Path(str(freeze["directory"])) for freeze in found.values()}
    directories = {
        working.directory
        for machine in {*project.machines(), *project.machines_of_root()}
        for repository in repositories
        for working in working_directories(project, machine, repository)
    }
    names = set()
    for directory in sorted(directories):
        for notes in WorkingPaths.all_own_jobs(directory):
            try:
                with notes.open("rb") as lines:
                    # Notes are empty for a moment, or for ever on a disk that was full.
                    if header := lines.readline():
                        names.add(Path(json.loads(header)["freeze"]).name)
            except FileNotFoundError:
                continue
            except (KeyError, TypeError, ValueError) as error:
                raise DamagedFileError(
                    f"{notes}: these are not notes of a run, so all freezes stay until you remove "
                    "this file"
                ) from error
    return names


def _first_run(needed: Needed) -> float:
    """When the first run or rerun began whose main process is alive, in seconds since the epoch;
    infinite if there is none."""
    settings = read_lock_settings(needed.machine)
    if settings is None:
        return float("inf")
    held = promises(needed.project, needed.machine.name)
    if held and settings.kind == "lease":
        return 0.0  # a lease has the time of its renewal
    times = []
    for file in held:
        with contextlib.suppress(FileNotFoundError):
            times.append(modified(file))
    return min(times, default=float("inf"))


def _clean_repositories(project: ProjectPaths, kept: _Kept, rules: Rules, removal: Removal) -> None:
    parent, age = project.repositories, max(rules.snapshots, LEAST_AGE)
    removal.sweep(parent)
    for name in list_names(parent):
        path = parent / name
        if path in kept.repositories or name.startswith("."):
            continue
        with contextlib.suppress(FileNotFoundError):
            if removal.age_of(_head(path)) >= age:
                removal.remove(
                    "freezes", path, lambda aside: removal.age_of(_head(aside)) < LEAST_AGE
                )


def _head(repository: Path) -> Path:
    """The file that has the time of the last use."""
    return repository / "HEAD"


# ---- snapshots


def _clean_snapshots(
    project: ProjectPaths,
    repository: Path | None,
    kept: _Kept,
    rules: Rules,
    removal: Removal,
) -> None:
    store, age = project.store, max(rules.snapshots, LEAST_AGE)
    removal.sweep(store / SNAPSHOTS)
    refs = snapshot_refs(store)
    used = kept.trees | set(_trees_of_builds(project, removal))
    old = {
        tree
        for tree, file in refs.items()
        if tree not in used
        and removal.age_of(file) >= age
        and not rules.keeps("snapshots", (tree,))
    }
    if project.freezes():  # else no run began here, and what is here was sent somewhere
        old -= _awaiting_publication(project, repository, old)
    for file in store.glob("indexes/*"):
        # The stat caches of directories in which no run was for long.
        if removal.is_older(file, age):
            removal.remove("leftovers", file)
    if removal.is_dry and old:
        objects, size = size_of_snapshots(store, old)
        removal.count("snapshots", Freed(len(old), objects + len(old), size))
    for tree in () if removal.is_dry else old:
        removal.remove("snapshots", refs[tree], lambda aside: removal.age_of(aside) < LEAST_AGE)
    _clean_store(store, age, removal)


def _clean_store(store: Path, age: float, removal: Removal) -> None:
    """Delete the objects that no snapshot needs any more."""
    removal.check_time()
    if removal.is_dry:
        objects, size = size_of_unused(store, removal.now - age)
        if objects:
            removal.count("snapshots", Freed(0, objects, size))
        return
    for aside in prune(store, removal.now - age):
        freed = delete(aside)
        removal.count("snapshots", Freed(0, freed.inodes, freed.bytes))


def clean_sent(root: Root, rules: Rules, removal: Removal) -> None:
    """Delete what other computers have sent and nothing needs any more, in repositories whose
    copies no job and no run has now."""
    if math.isinf(rules.snapshots):
        return
    for place in SentPaths.all_below(root.directory):
        project, store = root.project(place.project), place.project / ".git"
        with removal.tolerating(f"what was sent to {place.directory}"):
            names = project.machines_of_root()
            needed = (Needed(project.machine(name), project, None) for name in names)
            if is_there(store / "HEAD") and not any(each.is_running for each in needed):
                _clean_store(store, max(rules.snapshots, LEAST_AGE), removal)


def _trees_of_builds(project: ProjectPaths, removal: Removal) -> Iterator[str]:
    """The snapshots of builds: a run of a newer snapshot renews the files that differ."""
    for machine in project.machines():
        for name in list_names(project.builds(machine)):
            place = BuildPaths(project.builds(machine) / name)
            with contextlib.suppress(FileNotFoundError):
                if place.directory not in removal.gone:
                    yield str(read_json(place.manifest).get("snapshot"))


def _awaiting_publication(
    project: ProjectPaths, repository: Path | None, trees: Iterable[str]
) -> set[str]:
    """Those snapshots of recorded results whose code is not in the user's repository.

    All of them, if that is not known.
    """
    wanted = set(trees)
    if not wanted:
        return wanted
    if repository is None or not is_there(repository / ".git"):
        return wanted
    try:
        missing = unpublished(repository, wanted)
    except KochiError:
        return wanted
    if not missing:
        return missing
    for machine in project.machines():
        if agreed_commit(project, machine) is None:
            return missing  # results may exist in a working directory only
    recorded: set[str] = set()
    for failed in (False, True):
        for record in records_here(repository, failed):
            if record is None:
                return missing  # the clone is partial, or damaged
            recorded.update(_trees_of([record]))
    for machine in project.machines():
        recorded.update(_trees_of(journaled_records(project, machine)))
    return missing & recorded


def _trees_of(records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for record in records:
        with contextlib.suppress(KeyError, TypeError, AttributeError):  # edited by hand
            yield str(record["snapshot"]["tree"])
            yield str((record.get("configuration") or {}).get("tree"))
            for recipe in record.get("recipes", ()):
                yield str((recipe.get("source") or {}).get("tree"))
