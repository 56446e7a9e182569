"""Recipes that depend on each other in a circle."""

from __future__ import annotations

from collections.abc import Iterator

from snakemake_kochi.project.recipes import Project, Recipe


def find_circles(project: Project) -> Iterator[tuple[Recipe, ...]]:
    """Each circle once, the machine it is on notwithstanding: which dependencies count depends on
    the machine, so it may be on some only."""
    recipes = [recipe for known in project.dependencies.values() for recipe in known.values()]
    mentioned = {
        machine
        for recipe in recipes
        for requirement in recipe.depends
        for machine in requirement.machines or ()
    }
    seen: set[frozenset[str]] = set()
    for machine in sorted({*project.machines, *mentioned}):
        for circle in _circles(project, recipes, machine):
            members = frozenset(map(str, circle))
            if members not in seen:
                seen.add(members)
                yield circle


def _circles(project: Project, recipes: list[Recipe], machine: str) -> list[tuple[Recipe, ...]]:
    """One circle for each dependency that leads back."""
    found: list[tuple[Recipe, ...]] = []
    done: set[str] = set()
    path: dict[str, Recipe] = {}

    def visit(recipe: Recipe) -> None:
        name = str(recipe)
        if name in path:
            names = list(path)
            found.append(tuple(path[other] for other in names[names.index(name) :]))
            return
        if name in done:
            return
        path[name] = recipe
        for requirement in recipe.depends:
            other = project.dependencies.get(requirement.dependency, {}).get(requirement.recipe)
            if other is not None and requirement.on(machine):
                visit(other)
        del path[name]
        done.add(name)

    for recipe in recipes:
        visit(recipe)
    return found
