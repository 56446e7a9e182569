"""kochi.lock: the commits of remote sources, so that a branch means the same on every machine.

It is beside kochi.yaml, and people commit it. A mapping from recipes (DEPENDENCY:RECIPE) to `git`,
`branch` (or null) and `commit`; an entry whose `git` or `branch` is not that of the recipe does not
count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from snakemake_kochi.files import write_atomically
from snakemake_kochi.git import FULL_IDENTITY
from snakemake_kochi.paths import ProjectPaths
from snakemake_kochi.project.document import is_null, read_text, read_yaml, section
from snakemake_kochi.project.recipes import Project, Recipe
from snakemake_kochi.snapshot import resolve_source

LOCK_FILE = "kochi.lock"
_Entry = Mapping[str, str | None]
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
    from snakemake_kochi.phases.install import recipe_states  # which imports freezes, as we do

    remote = list(filter(_is_open, recipes))
    entries = _read(project.directory) if remote else {}
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


def _read(directory: Path) -> dict[str, _Entry]:
    try:
        document = read_yaml(LOCK_FILE, read_text(directory / LOCK_FILE, LOCK_FILE))
    except FileNotFoundError:
        return {}
    entries: dict[str, _Entry] = {}
    found = document.data if isinstance(document.data, dict) else {"": None}
    for name in found:
        keys = section(found, name).items()
        texts = {
            key: str(each) for key, each in keys if isinstance(each, str) and not is_null(each)
        }
        entries[name] = {key: texts.get(key) for key in ("git", "branch", "commit")}
        if not FULL_IDENTITY.fullmatch(texts.get("commit", "")):
            said = "a mapping with git, branch and a commit of 40 digits was expected"
            document.problems.add((name,), f"{said}; type: git checkout -- {LOCK_FILE}")
    document.problems.raise_all()
    return entries
