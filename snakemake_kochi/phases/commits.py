"""kochi.lock: the commits of remote sources, so that a branch means the same on every machine.

It is beside kochi.yaml, and people commit it. A mapping from recipes (DEPENDENCY:RECIPE) to `git`,
`branch` (or null) and `commit`; an entry whose `git` or `branch` is not that of the recipe does not
count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.files import write_atomically
from snakemake_kochi.git import FULL_IDENTITY
from snakemake_kochi.paths import ProjectPaths
from snakemake_kochi.phases.sources import local_repository
from snakemake_kochi.project.recipes import Project, Recipe
from snakemake_kochi.snapshot import resolve_source

LOCK_FILE = "kochi.lock"
_HEADER = (
    "# The commits of remote sources. Commit this file.\n"
    "# To use newer ones: kochi install --newest DEPENDENCY:RECIPE...\n"
)


def locked_sources(directory: Path, recipes: Iterable[Recipe]) -> dict[str, dict[str, str]]:
    """The sources of remote recipes whose commit the lock file of a project has, by recipe.

    Raises ConfigError for a damaged file.
    """
    entries = _read(directory)
    return {
        str(recipe): {"git": str(recipe.git), "commit": entries[str(recipe)]["commit"]}
        for recipe in recipes
        if str(recipe) in entries and _is_of(recipe, entries[str(recipe)])
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
    from snakemake_kochi.phases.install import recipe_states  # which imports freezes, as we do

    remote = [each for each in recipes if _is_open(each, project.directory)]
    known = {} if newest else locked_sources(project.directory, remote)
    states = recipe_states(paths, project.machine(machine), remote)
    entries = _read(project.directory) if remote else {}
    changed = {}
    for state in states:
        recipe, name = state.recipe, str(state.recipe)
        if name in known:
            continue
        installed = {} if newest or state.install is None else state.install.source
        if state.state != "installed" or installed.get("git") != recipe.git:
            installed = {}
        commit = installed.get("commit") or resolve_source(str(recipe.git), recipe.branch, None)
        entry = {"git": recipe.git, "branch": recipe.branch, "commit": commit}
        if entries.get(name) != entry:
            entries[name] = entry
            changed[name] = commit
    if changed:
        text = yaml.safe_dump(dict(sorted(entries.items())), sort_keys=False, allow_unicode=True)
        write_atomically(project.directory / LOCK_FILE, (_HEADER + text).encode())
    return changed


def _is_open(recipe: Recipe, directory: Path) -> bool:
    """Whether the commit is that of a branch of a repository on another computer."""
    return (
        recipe.git is not None
        and not recipe.mirror
        and recipe.commit_hash is None
        and local_repository(recipe.git, directory) is None
    )


def _is_of(recipe: Recipe, entry: Mapping[str, Any]) -> bool:
    is_same = (entry["git"], entry["branch"]) == (recipe.git, recipe.branch)
    return is_same and recipe.commit_hash is None and not recipe.mirror


def _read(directory: Path) -> dict[str, dict[str, Any]]:
    file = directory / LOCK_FILE
    try:
        data = yaml.safe_load(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        said = str(error).partition("\n")[0]
        raise ConfigError(f"{file}: not valid YAML: {said}", _restore(file)) from error
    for name, entry in data.items() if isinstance(data, dict) else [("", data)] if data else []:
        if not (
            isinstance(entry, dict)
            and {"git", "branch", "commit"} <= entry.keys()
            and FULL_IDENTITY.fullmatch(str(entry["commit"]))
        ):
            said = "a mapping with git, branch and a commit of 40 digits was expected"
            raise ConfigError(f"{file}: {name}: {said}", _restore(file))
    return dict(data or {})


def _restore(file: Path) -> str:
    return f"To get the committed one again, type: git checkout -- {file.name}"
