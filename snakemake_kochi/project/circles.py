"""Topological order of things that depend on each other, and cycles among them.

Apart from the recipes, because every run of a batch loads templates, which need this order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from snakemake_kochi.project.recipes import Project, Recipe

Thing = TypeVar("Thing")

_SHOWN = 10  # how many names of a chain are shown


def in_order(
    things: Iterable[Thing],
    needed_by: Callable[[Thing], Iterable[Thing]],
    circle: Callable[[list[Thing]], object],
) -> list[Thing]:
    """The things and everything that they need, each after the things that it needs.

    `circle` is called with each cycle. Depth first, without recursion, because chains may be long.
    """
    order: dict[Thing, None] = {}
    path: dict[Thing, Iterator[Thing]] = {}
    for thing in things:
        if thing not in order:
            path[thing] = iter(needed_by(thing))
        while path:
            last = next(reversed(path))
            other = next((each for each in path[last] if each not in order), None)
            if other is None:
                del path[last]
                order[last] = None
            elif other in path:
                names = list(path)
                circle(names[names.index(other) :])
            else:
                path[other] = iter(needed_by(other))
    return list(order)


def chain(names: Sequence[object]) -> str:
    """`a -> b -> c`; of a long chain the beginning and the end."""
    shown = [str(name) for name in names]
    if len(shown) > _SHOWN:
        half = _SHOWN // 2
        shown[half:-half] = [f"... {len(shown) - 2 * half} more ..."]
    return " -> ".join(shown)


def find_circles(project: Project) -> Iterator[tuple[Recipe, ...]]:
    """Each cycle once, on whatever machine: dependencies differ between machines, so a cycle may
    exist on some only."""
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


def longest_chain(project: Project) -> int:
    """How many recipes depend on each other in a row, on whatever machine. There must be no
    cycles."""
    by_name = {
        str(recipe): recipe for known in project.dependencies.values() for recipe in known.values()
    }
    lengths: dict[str, int] = {}

    def needed_by(name: str) -> list[str]:
        return [str(other) for other in by_name[name].depends if str(other) in by_name]

    for name in in_order(by_name, needed_by, lambda circle: None):
        lengths[name] = 1 + max((lengths.get(other, 0) for other in needed_by(name)), default=0)
    return max(lengths.values(), default=0)


def _circles(project: Project, recipes: list[Recipe], machine: str) -> list[tuple[Recipe, ...]]:
    """One cycle for each dependency that leads back."""
    found: list[tuple[Recipe, ...]] = []
    by_name = {str(recipe): recipe for recipe in recipes}

    def needed_by(name: str) -> Iterator[str]:
        for requirement in by_name[name].depends:
            if str(requirement) in by_name and requirement.on(machine):
                yield str(requirement)

    in_order(by_name, needed_by, lambda names: found.append(tuple(by_name[n] for n in names)))
    return found
