"""`kochi run`."""

from __future__ import annotations

import os

import click

from snakemake_kochi.cli.options import dependency_option, machine_option, refuse_shell_line
from snakemake_kochi.place import find_place


@click.command(context_settings={"allow_interspersed_args": False})
@machine_option
@dependency_option(required=False)
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND...")
def command(machine: str | None, dependencies: tuple[str, ...], words: tuple[str, ...]) -> None:
    """Run a command here, word for word, in the environment of installed recipes.

    There is no shell: for a pipe, a variable or a `>`, have one: kochi run -- bash -c '...'
    """
    from snakemake_kochi.phases.current import current_installs
    from snakemake_kochi.phases.install_set import Install
    from snakemake_kochi.phases.job import command_in_environment, execute
    from snakemake_kochi.phases.script import Environment
    from snakemake_kochi.project.recipes import Requirement

    place = find_place(machine)
    place.require_here()
    refuse_shell_line(words[0])
    installs: tuple[Install, ...] = ()
    if dependencies:
        wanted = [Requirement.parse(text) for text in dependencies]
        recipes = place.require_project().resolve(wanted, place.machine.name)
        place.secure(place.project_paths.directory)
        installs = current_installs(place.project_paths, place.machine, recipes)
    environment = Environment(place.machine.load_env_on_machine, installs, {})
    variables = os.environ | {"KOCHI_MACHINE": place.machine.name}
    execute(command_in_environment(environment, words), variables)
