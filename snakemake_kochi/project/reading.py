"""What kochi.yaml and experiments have in common: scripts, names, requirements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from snakemake_kochi.files import is_name
from snakemake_kochi.project.document import Scalar
from snakemake_kochi.project.problems import KeyPath, Problems
from snakemake_kochi.project.recipes import Project, Requirement


def script(value: Any) -> str:
    """A script as one text, from a text or a list of lines."""
    if isinstance(value, list):
        return "\n".join(map(str, value))
    return "" if value is None or value.kind == "null" else str(value)


def optional_text(value: Scalar | None) -> str | None:
    return None if value is None or value.kind == "null" else str(value)


def section(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A mapping in a mapping; empty if it is missing or nothing is written after its key."""
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def names(value: Any) -> tuple[str, ...] | None:
    """A filter by names, from one name or a list."""
    if value is None:
        return None
    return tuple(map(str, value)) if isinstance(value, list) else (str(value),)


def requirements(
    data: Mapping[str, Any], path: KeyPath, problems: Problems
) -> tuple[Requirement, ...]:
    """The entries of `depends`.

    Two recipes of one dependency for the same machines are a problem; a later entry for other
    machines replaces an earlier one there.
    """
    value = data.get("depends")
    found: list[Requirement] = []
    for index, entry in enumerate(value if isinstance(value, list) else []):
        if entry is None:  # its shape was wrong
            continue
        requirement = Requirement(
            str(entry["name"]), str(entry["recipe"]), names(entry.get("machines"))
        )
        for other in found:
            same = (other.dependency, other.machines) == (
                requirement.dependency,
                requirement.machines,
            )
            if same and other.recipe != requirement.recipe:
                problems.add(
                    (*path, "depends", index),
                    f"two recipes of one dependency: {other} and {requirement}; remove one",
                )
        found.append(requirement)
    return tuple(found)


class Notes(Protocol):
    """An object that notes problems."""

    def add(self, path: KeyPath, message: str) -> None: ...


def check_name(kind: str, name: str, path: KeyPath, problems: Notes) -> None:
    if not is_name(name):
        problems.add(
            path,
            f"the {kind} name {name!r} cannot be used in paths; 1 to 128 letters, digits and any "
            "of ._+@=- were expected, not starting with a dot or dash",
        )


def check_recipes(
    project: Project, data: Mapping[str, Any], path: KeyPath, problems: Problems
) -> None:
    """Note every entry of `depends` that names no recipe of the project."""

    def is_known(dependency: str) -> bool:
        path = ("dependencies", dependency)
        return not (problems.is_unknown(path) or problems.is_unknown((*path, "recipes")))

    value = data.get("depends")
    for index, entry in enumerate(value if isinstance(value, list) else []):
        if entry is None:  # its shape was wrong
            continue
        requirement = Requirement(str(entry["name"]), str(entry["recipe"]))
        wrong = project.recipe_problem(requirement)
        if wrong and is_known(requirement.dependency):
            problems.add((*path, "depends", index), wrong)
