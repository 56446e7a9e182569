"""`kochi show projects`."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from snakemake_kochi.cli.options import json_option, machine_option
from snakemake_kochi.cli.output import print_json, print_table
from snakemake_kochi.errors import DamagedFileError, KochiError, NameNotFoundError, nearest
from snakemake_kochi.files import read_json
from snakemake_kochi.location import find_location
from snakemake_kochi.paths import ProjectPaths, Root


@click.command("projects")
@machine_option
@json_option
def command(machine: str | None, as_json: bool) -> None:
    """The projects that keep something below KOCHI_ROOT, and where their repositories are."""
    rows = []
    for paths in find_location(machine).root.projects():
        repository = _repository(paths)
        rows.append(
            {
                "project": paths.directory.name,
                "repository": None if repository is None else str(repository),
                "exists": repository is not None and repository.is_dir(),
                "directory": str(paths.directory),
            }
        )
    if as_json:
        print_json(rows)
        return
    print_table(
        ("Project", "Repository", "Directory"),
        [
            (row["project"], _shown_repository(row["repository"], row["exists"]), row["directory"])
            for row in rows
        ],
        "There are no projects.",
    )


def find_project(root: Root, name: str) -> ProjectPaths:
    """The project with a repository of that name, or that is called so below KOCHI_ROOT. Raises
    NameNotFoundError, and KochiError where there are several of that name."""
    names = {paths: _names(paths) for paths in root.projects()}
    found = [paths for paths, called in names.items() if name in called]
    if not found:
        known = nearest(name, {each for called in names.values() for each in called})
        raise NameNotFoundError(
            f"there is no project '{name}'; {known}", "List them with: kochi show projects"
        )
    if len(found) > 1:
        which = ", ".join(f"{each.directory.name} ({_repository(each)})" for each in found)
        raise KochiError(
            f"{len(found)} projects are called '{name}': {which}",
            f"Type, for example: kochi show path project {found[0].directory.name}",
        )
    return found[0]


def _names(paths: ProjectPaths) -> set[str]:
    repository = _repository(paths)
    return {paths.directory.name, *([repository.name] if repository else [])}


def _shown_repository(repository: object, exists: object) -> str:
    if repository is None:
        return "(not known)"
    return f"{repository}" if exists else f"{repository} (gone)"


def _repository(paths: ProjectPaths) -> Path | None:
    """Where a project's repository is, as its freezes tell."""
    for file in paths.freezes():
        with contextlib.suppress(DamagedFileError, FileNotFoundError):
            directory = read_json(file).get("directory")
            if isinstance(directory, str):
                return Path(directory)
    return None
