"""`kochi show installs` and `kochi show install`."""

from __future__ import annotations

import click

from snakemake_kochi.cli.options import (
    json_option,
    machine_option,
    recipes_in,
    recipes_option,
)
from snakemake_kochi.cli.output import (
    coloured,
    local_time,
    print_json,
    print_pairs,
    print_table,
    readable,
)
from snakemake_kochi.location import Location, find_location
from snakemake_kochi.phases.make import RecipeState, recipe_states


@click.command("installs")
@machine_option
@json_option
def installs_command(machine: str | None, as_json: bool) -> None:
    """List all recipes, and whether they are installed; to renew a stale one: kochi install."""
    location = find_location(machine)
    dependencies = location.require_project().dependencies
    recipes = [recipe for recipes in dependencies.values() for recipe in recipes.values()]
    states = recipe_states(location.project_paths, location.machine, recipes)
    if as_json:
        print_json([_to_dict(state) for state in states])
        return
    print_table(
        ("Dependency", "Recipe", "State", "Installed Time", "Prefix"),
        [
            (
                state.recipe.dependency,
                state.recipe.name,
                coloured(state.state),
                local_time(state.since),
                state.install.prefix if state.install else None,
            )
            for state in states
        ],
        "kochi.yaml has no dependencies.",
    )


@click.command("install")
@machine_option
@json_option
@recipes_option
def install_command(
    machine: str | None, as_json: bool, words: tuple[str, ...], dependencies: tuple[str, ...]
) -> None:
    """Show all about one or several recipes; the JSON of several is a list."""
    location = find_location(machine)
    project = location.require_project()
    wanted = map(project.requirement, recipes_in(words, dependencies))
    found = list(map(project.recipe, wanted))
    states = recipe_states(location.project_paths, location.machine, found)
    if as_json:
        data = [_to_dict(state) for state in states]
        print_json(data if len(data) > 1 else data[0])
        return
    for number, state in enumerate(states):
        if number:
            click.echo()
        _print(location, state)


def _print(location: Location, state: RecipeState) -> None:
    found, install = state.recipe, state.install
    pairs: dict[str, object] = {
        "Dependency": found.dependency,
        "Recipe": found.name,
        "State": coloured(state.state),
    }
    if install is not None:
        pairs |= {"Installed Time": local_time(state.since), "Prefix": install.prefix}
        pairs |= {readable(key): value for key, value in install.source.items() if value}
    pairs["Depends on"] = [str(other) for other in found.depends if other.on(location.machine.name)]
    print_pairs({key: value for key, value in pairs.items() if value})
    if state.state != "installed":
        click.echo(f"To install it, type: kochi install -d {found}", err=True)


def _to_dict(state: RecipeState) -> dict[str, object]:
    install = state.install
    return {
        "dependency": state.recipe.dependency,
        "recipe": state.recipe.name,
        "state": state.state.lower().replace(" ", "_"),
        "installed": state.since,
        "prefix": install.prefix if install else None,
        "digest": install.digest if install else None,
        "source": dict(install.source) if install else None,
    }
