"""What a freeze takes beside the project's files: sources of recipes, facts of the machine, and
files with values of parameters. And how an installation gets its source.

kochi.lock, beside kochi.yaml, has the commits of remote sources, so that a branch means the same on
every machine; people commit it. It is a mapping from recipes (DEPENDENCY:RECIPE) to `git`, `branch`
(or null) and `commit`; an entry whose `git` or `branch` is not that of the recipe does not count.

A clone may lack a source that was a directory of another computer. If results were restored, it is
known which code they used, and the project's repository has that code:
.snakemake/kochi/<machine>/sources.json   {"version", "sources": a source by `dependency:recipe`}
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from snakemake_kochi.artifacts.code import CODE
from snakemake_kochi.errors import (
    ConfigError,
    DamagedFileError,
    GitError,
    KochiError,
    NameNotFoundError,
    PhaseError,
    nearest,
)
from snakemake_kochi.files import is_there, make_directory, read_json, to_json, write_atomically
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.git import FULL_IDENTITY
from snakemake_kochi.paths import ProjectPaths, WorkingPaths
from snakemake_kochi.phases.products import Install
from snakemake_kochi.project.document import decode_text, is_null, read_text, read_yaml, section
from snakemake_kochi.project.machines import Machine
from snakemake_kochi.project.recipes import Project, Recipe
from snakemake_kochi.project.sent import local_path
from snakemake_kochi.project.sweeps import CSV, STANDARD_FACTS, TASKS, Given
from snakemake_kochi.snapshot import (
    fetch_source,
    freeze,
    has_tree,
    materialise,
    resolve_source,
    restore_code,
)

# Snakemake's own state is never part of the code, whatever .gitignore says.
SNAKEMAKE_STATE = (".snakemake",)
LOCK_FILE = "kochi.lock"
Sources = Mapping[str, Mapping[str, str]]
_NONE: Sources = FrozenDict()
_RESTORED_VERSION = 1
_Entry = Mapping[str, str | None]
_HEADER = (
    "# The commits of remote sources. Commit this file.\n"
    "# To use newer ones: kochi install --newest DEPENDENCY:RECIPE...\n"
)
_FACT = re.compile(r"(?<!\$)(?:\$\$)*\$\{?machine\.([A-Za-z_][A-Za-z0-9_]*)")
# A file of a million rows with a few columns; a freeze contains it.
_MOST_BYTES = 50 * 2**20


# ---- sources on this computer


def local_sources(
    recipes: Iterable[Recipe], project: Project, paths: ProjectPaths, restored: Sources = _NONE
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """The sources of recipes that are on this computer, and what is wrong with the others. A
    missing source concerns runs that need the recipe, and not every run of the project. `restored`:
    what is used for a directory that is missing (see `restored_sources`)."""
    sources, without = {}, {}
    for recipe in recipes:
        try:
            source = local_source(recipe, project, paths)
        except GitError as error:
            known = restored.get(str(recipe), {})
            if is_missing(recipe, project) and is_source_of(recipe, known):
                sources[str(recipe)] = dict(known)
            else:
                without[str(recipe)] = str(error)
        else:
            if source is not None:
                sources[str(recipe)] = source
    return sources, without


def check_sources(project: Project, recipes: Iterable[Recipe], restored: Sources = _NONE) -> None:
    """Raise a ConfigError with a line for each recipe whose source must be on this computer and is
    not. `restored`: as in `local_sources`."""
    lines = []
    for recipe in recipes:
        try:
            _local_commit(recipe, project)
        except GitError as error:
            if not is_missing(recipe, project) or str(recipe) not in restored:
                lines.append(str(error))
    if lines:
        raise ConfigError("\n".join(lines))


def local_source(recipe: Recipe, project: Project, paths: ProjectPaths) -> dict[str, str] | None:
    """Resolve a source on this computer, which is cheap and done in every run.

    A remote source is resolved only at its installation. Raises GitError when the source is
    missing.
    """
    commit = _local_commit(recipe, project)
    if (mirrored := project.mirror_directory(recipe)) is None:
        return None if commit is None else {"git": str(recipe.git), "commit": commit}
    mirror, store = mirrored.resolve(), paths.directory.resolve()
    # Without a repository's .gitignore all files count: the store would contain itself, and the
    # mirrored directory would be a home or a whole disk.
    is_inside = store.is_relative_to(mirror)
    if is_inside and not any(is_there(each / ".git") for each in (mirror, *mirror.parents)):
        raise KochiError(
            f"mirror_dir of {recipe}: {mirror} contains KOCHI_ROOT, and so its own copies",
            "In kochi.yaml, name only the directory of the sources.",
        )
    snapshot = freeze(mirror, paths.store, SNAKEMAKE_STATE)
    return {"mirror": str(mirror), "tree": snapshot.tree, "base": snapshot.base or ""}


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
    # Not Path.is_dir, here and below: it may be longer than a path.
    if not os.path.isdir(path):
        beside = os.listdir(path.parent) if os.path.isdir(path.parent) else ()
        said = nearest(path.name, (name for name in beside if (path.parent / name).is_dir()))
        meant = f", {said}" if said.startswith("did you mean") else ""
        raise GitError(f"{place}: there is no directory {os.path.normpath(path)}{meant}")


def _local_path(git: str, directory: Path) -> Path:
    return local_path(directory, "git", git, "git")


def local_repository(git: str, directory: Path) -> str | None:
    """The absolute path of a `git:` that is a directory of this computer, else None."""
    path = _local_path(git, directory)
    return str(path.resolve()) if os.path.isdir(path) else None


def is_missing(recipe: Recipe, project: Project) -> bool:
    """Whether the directory of a source on this computer does not exist."""
    if (mirrored := project.mirror_directory(recipe)) is not None:
        return not os.path.isdir(mirrored)
    return recipe.git is not None and not os.path.isdir(_local_path(recipe.git, project.directory))


def determining(source: Mapping[str, str]) -> dict[str, str]:
    """What of a source determines an installation.

    The rest is provenance: an empty commit in a mirrored directory, or another place of it on
    another computer, changes nothing.
    """
    return {key: value for key, value in source.items() if key not in ("base", "mirror")}


# ---- sources of restored results


def restored_sources(working: WorkingPaths) -> Sources:
    """The sources that restored results used, by `dependency:recipe`. Raises DamagedFileError."""
    try:
        return dict(read_json(working.restored_sources, _RESTORED_VERSION)["sources"])
    except FileNotFoundError:
        return {}
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{working.restored_sources}: not a list of sources") from error


def note_restored_sources(working: WorkingPaths, sources: Sources) -> None:
    """Note the sources of restored results, beside those that are noted already."""
    known = {**restored_sources(working), **{name: dict(s) for name, s in sources.items()}}
    make_directory(working.restored_sources.parent)
    content = to_json({"version": _RESTORED_VERSION, "sources": known})
    write_atomically(working.restored_sources, content)


def is_source_of(recipe: Recipe, source: Mapping[str, Any]) -> bool:
    """Whether a recorded source may be that of a recipe whose own source is a local directory."""
    name = source.get("tree") if recipe.mirror else source.get("commit")
    return bool(
        (recipe.mirror or source.get("git") == recipe.git)
        and isinstance(name, str)
        and FULL_IDENTITY.fullmatch(name)
        and all(isinstance(value, str) for value in source.values())
    )


# ---- at an installation


def find_source(
    recipe: Recipe, frozen: Mapping[str, str] | None, project: Path, before: Install | None
) -> dict[str, str]:
    """The source to install, as in `Install`.

    `frozen`: the source in the freeze; `project`: the project's directory; `before`: the last
    installation, whose commit of a remote repository is used. Raises PhaseError, and GitError if
    the repository is not available.
    """
    if frozen is not None:
        return dict(frozen)
    if recipe.mirror:
        raise PhaseError(
            f"{recipe}: mirror_dir {recipe.mirror_dir} is not a directory (relative to {project})",
            "Correct mirror_dir in kochi.yaml.",
        )
    if recipe.git is None:
        return {}
    where = local_repository(recipe.git, project) or recipe.git
    if where == recipe.git and before is not None and before.source.get("git") == recipe.git:
        # Finished work is based on it; a branch is looked up only on request.
        return dict(before.source)
    return {"git": recipe.git, "commit": resolve_source(where, recipe.branch, recipe.commit_hash)}


def fetch(
    recipe: Recipe,
    source: Mapping[str, str],
    store: Path,
    project: Path,
    directory: Path,
    tree: str | None = None,
) -> None:
    """Fill a new directory with a source; it stays empty for a recipe without one.

    `store`: the repository with the snapshots; `project`: as in `find_source`; `tree`: one in the
    store with the files of the source. A directory of another computer is replaced by the code that
    the project's repository has of it, without history. Raises GitError.
    """
    where = None
    if tree is None and recipe.mirror:
        tree = source["tree"]
        if not has_tree(store, tree):
            restore_code(project, f"{CODE}/{tree}", store)
    elif tree is None and recipe.git is not None:
        where = local_repository(recipe.git, project) or (recipe.git if recipe.is_remote else None)
        if where is None:
            tree, _ = restore_code(project, f"{CODE}/{source['commit']}", store)
    if tree is not None:
        materialise(store, tree, directory)
    elif where is not None:
        fetch_source(where, recipe.branch, source["commit"], store, directory)
    else:
        make_directory(directory)


# ---- kochi.lock


def locked_sources(directory: Path, recipes: Iterable[Recipe]) -> dict[str, dict[str, str]]:
    """The sources of remote recipes whose commit the lock file of a project has, by recipe.

    Raises ConfigError for a damaged file.
    """
    entries = _read_lock(directory)
    return {
        str(recipe): {"git": str(recipe.git), "commit": str(entries[str(recipe)]["commit"])}
        for recipe in recipes
        if _is_open(recipe) and _is_of(entries.get(str(recipe)), recipe)
    }


def lock_commits(
    project: Project,
    paths: ProjectPaths,
    machine: str,
    recipes: Iterable[Recipe],
    newest: bool = False,
) -> dict[str, str]:
    """Note the commits of remote recipes in the lock file; return those that were added or changed.

    A recipe that has none gets that of its installation, else the present one; with `newest`, all
    get the present one. Raises GitError if a repository is not available, ConfigError.
    """
    from snakemake_kochi.phases.make import recipe_states  # which imports freezes, as we do

    remote = list(filter(_is_open, recipes))
    entries = _read_lock(project.directory) if remote else {}
    open_ones = [each for each in remote if newest or not _is_of(entries.get(str(each)), each)]
    changed = {}
    for state in recipe_states(paths, project.machine(machine), open_ones) if open_ones else ():
        recipe, name = state.recipe, str(state.recipe)
        source = state.install.source if state.install and state.state == "installed" else {}
        known = source.get("commit") if source.get("git") == recipe.git and not newest else None
        commit = known or resolve_source(str(recipe.git), recipe.branch, None)
        entry = {"git": recipe.git, "branch": recipe.branch, "commit": commit}
        if entries.get(name) != entry:
            entries[name] = entry
            changed[name] = commit
    if changed:
        text = yaml.safe_dump(dict(sorted(entries.items())), sort_keys=False, allow_unicode=True)
        write_atomically(project.directory / LOCK_FILE, (_HEADER + text).encode())
    return changed


def _is_open(recipe: Recipe) -> bool:
    """Whether the commit is that of a branch of a repository on another computer."""
    return recipe.is_remote and not recipe.mirror and recipe.commit_hash is None


def _is_of(entry: _Entry | None, recipe: Recipe) -> bool:
    return entry is not None and (entry["git"], entry["branch"]) == (recipe.git, recipe.branch)


def _read_lock(directory: Path) -> dict[str, _Entry]:
    try:
        document = read_yaml(LOCK_FILE, read_text(directory / LOCK_FILE, LOCK_FILE))
    except FileNotFoundError:
        return {}
    entries: dict[str, _Entry] = {}
    found = document.data if isinstance(document.data, dict) else {"": None}
    for name in found:
        keys = section(found, name).items()
        texts = {k: str(each) for k, each in keys if isinstance(each, str) and not is_null(each)}
        entries[name] = {key: texts.get(key) for key in ("git", "branch", "commit")}
        if not FULL_IDENTITY.fullmatch(texts.get("commit", "")):
            said = "a mapping with git, branch and a commit of 40 digits was expected"
            document.problems.add((name,), f"{said}; type: git checkout -- {LOCK_FILE}")
    document.problems.raise_all()
    return entries


# ---- facts and files with values: only what texts use, because a scheduler may take seconds


def given_now(file: str, text: str, machine: Machine, directory: Path) -> Given:
    """What an experiment of the working tree of a project uses, without a freeze. Raises as
    `given_in`."""

    def read(path: str) -> bytes:
        place = directory / path
        if not os.path.isfile(place):  # or a device, which has no end
            raise NameNotFoundError(f"{path}: no such file")
        try:
            return place.read_bytes()
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error

    return given_of(machine, **given_in({file: text}, machine, read))


def given_of(
    machine: Machine,
    facts: Mapping[str, str] = FrozenDict(),
    without_facts: str = "",
    tables: Mapping[str, str] = FrozenDict(),
) -> Given:
    """What determines points, from what `given_in` has found; facts that the machine's definition
    tells come first."""
    return Given(machine.name, {**facts, **machine.facts}, without_facts, tables)


def given_in(
    experiments: Mapping[str, str], machine: Machine, read: Callable[[str], bytes]
) -> dict[str, Any]:
    """The keys of a freeze about what the texts of experiments, by their paths, use.

    `facts`: those of the machine that its scheduler or this computer knows, as texts by name;
    `without_facts`: why some are not known; `tables`: the texts of files with values, by path. A
    key with nothing in it is left out. `read` gives the content of a project's file, and raises
    NameNotFoundError without it. Raises ConfigError for one that is no text, or too large.
    """
    found: dict[str, Any] = {}
    used = {name for text in experiments.values() for name in _FACT.findall(text)}
    if wanted := used & {*STANDARD_FACTS} - {"name", *machine.facts}:
        try:
            known = _known_facts(machine)
        except KochiError as error:
            known, found["without_facts"] = {}, error.message
        found["facts"] = {name: str(known[name]) for name in sorted(wanted) if name in known}
    tables = {}
    for file, text in experiments.items():
        for path in _files(file, text) if re.search(rf"\b({CSV}|{TASKS})\b", text) else ():
            try:
                content = read(path)
            except NameNotFoundError:
                continue  # told with the key that names it
            if len(content) > _MOST_BYTES:
                raise ConfigError(f"{path}: values come from files of at most {_MOST_BYTES} bytes")
            tables[path] = decode_text(content, path)
    found["tables"] = tables
    return {key: value for key, value in found.items() if value}


def _known_facts(machine: Machine) -> Mapping[str, int]:
    # Imported here: few experiments use facts.
    if machine.scheduler is not None:
        from snakemake_kochi.schedulers.native import system

        return system(machine.scheduler).node_facts(machine.allocation, machine.allocation_at)
    if machine.alloc_script:
        raise ConfigError("its alloc_script says nothing about nodes")
    from snakemake_kochi.phases.node import hardware
    from snakemake_kochi.worker.node.capacity import capacity_of_this_node, gpus_of_this_node

    here = capacity_of_this_node(gpus=gpus_of_this_node())
    found = {"cores": here.cores, "memory_mb": here.memory_mb, "gpus": here.gpus, "nodes": 1}
    sockets = hardware()["sockets"]
    return found if sockets is None else {**found, "sockets": sockets}


def _files(file: str, text: str) -> Iterator[str]:
    """The paths in the project from which an experiment takes values."""
    try:
        left = [read_yaml(file, text).data]
    except ConfigError:
        return  # told when it is read as an experiment
    while left:
        data = left.pop()
        left += data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
        # With a column it is a metric, which reads a file that the run writes.
        if isinstance(data, dict) and "column" not in data:
            value = data.get(CSV)
            first = value[0] if isinstance(value, list) and value else value
            for path in (each for each in (first, data.get(TASKS)) if isinstance(each, str)):
                if path[:1] not in ("", "/") and ".." not in path.split("/"):
                    yield str(path)
