"""`kochi run`."""

from __future__ import annotations

import os

import click

from snakemake_kochi.cli.options import dependency_option, machine_option, refuse_shell_line
from snakemake_kochi.location import find_location


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

    location = find_location(machine)
    location.require_here()
    refuse_shell_line(words[0])
    installs: tuple[Install, ...] = ()
    if dependencies:
        wanted = [Requirement.parse(text) for text in dependencies]
        recipes = location.require_project().resolve(wanted, location.machine.name)
        location.secure(location.project_paths.directory)
        installs = current_installs(location.project_paths, location.machine, recipes)
    environment = Environment(location.machine.load_env_on_machine, installs, {})
    variables = os.environ | {"KOCHI_MACHINE": location.machine.name}
    execute(command_in_environment(environment, words), variables)
