"""`kochi install`."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from snakemake_kochi.cli.options import COUNT, dependency_option, machine_option
from snakemake_kochi.cli.serving import remark_without_worker
from snakemake_kochi.place import Place, find_place
from snakemake_kochi.project.recipes import Recipe, Requirement


@click.command()
@machine_option
@dependency_option(required=True)
@click.option("-q", "--queue", metavar="QUEUE", help="Install as a job of a worker of this queue.")
@click.option("--again", is_flag=True, help="Also what is installed already.")
@click.option(
    "--cores",
    type=COUNT,
    metavar="N",
    help="Installations at a time; by default as many as there are processors.",
)
def command(
    machine: str | None,
    dependencies: tuple[str, ...],
    queue: str | None,
    again: bool,
    cores: int | None,
) -> None:
    """Install recipes, and first what they depend on.

    The branch of a remote repository is looked up again each time. An installation that works
    stays in use until the new one is complete.
    """
    from snakemake_kochi.cli.snakemake_call import call_snakemake

    place = find_place(machine)
    place.require_here()
    if queue is not None:
        place.machine_paths.queue(queue)
    wanted = [Requirement.parse(text) for text in dependencies]
    recipes = place.require_project().resolve(wanted, place.machine.name)
    targets = [_rule(requirement.dependency, requirement.recipe) for requirement in wanted]
    words, variables = _executor(queue, cores), {}
    if again:
        variables["KOCHI_INSTALL_AGAIN"] = " ".join(map(str, wanted))
        # So that it also reaches a worker that somebody else started.
        words += ["--envvars", "KOCHI_INSTALL_AGAIN"]
    if queue is not None:
        remark_without_worker(place, queue)
    forced = _forced(place, recipes, targets if again else [])
    if forced:
        words += ["--forcerun", *forced]
    call_snakemake(place, list(dict.fromkeys(targets)), words, variables)


def _rule(dependency: str, recipe: str) -> str:
    from snakemake_kochi.library.names import identifier

    return f"install_{identifier(dependency)}_{identifier(recipe)}"


def _executor(queue: str | None, cores: int | None) -> list[str]:
    if queue is None:
        count = cores or len(os.sched_getaffinity(0))
        return ["--executor", "local", "--cores", str(count), "--rerun-incomplete"]
    words = ["--executor", "kochi", "--kochi-queue", queue, "--jobs", str(cores or 100)]
    return [*words, "--rerun-incomplete"]


def _forced(place: Place, recipes: Sequence[Recipe], again: Sequence[str]) -> list[str]:
    """The rules that must run although nothing Snakemake knows of has changed."""
    from snakemake_kochi.phases.current import recipe_states
    from snakemake_kochi.phases.freeze import local_repository

    project = place.require_project()
    forced = list(again)
    for state in recipe_states(place.project_paths, place.machine, recipes):
        recipe = state.recipe
        has_remote = (
            recipe.git is not None
            and not recipe.mirror
            and recipe.commit_hash is None
            and local_repository(recipe.git, project.directory) is None
        )
        # Not there although Snakemake has its manifest: KOCHI_ROOT was emptied, or is another.
        if has_remote or state.install is None:
            forced.append(_rule(recipe.dependency, recipe.name))
    return list(dict.fromkeys(forced))
