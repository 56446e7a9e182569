"""`kochi install`, and `kochi run` in the environment of installed recipes."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from snakemake_kochi.cli.options import COUNT, dependency_option, machine_option, refuse_shell_line
from snakemake_kochi.cli.output import remark
from snakemake_kochi.enqueue.request import without_worker
from snakemake_kochi.location import Location, find_location
from snakemake_kochi.project.recipes import Recipe


@click.command("install")
@machine_option
@dependency_option("A recipe to install.", required=True)
@click.option(
    "-q",
    "--queue",
    metavar="QUEUE",
    help="Install on a worker of this queue; on a cluster, this applies only to recipes with "
    "'on_machine: true'.",
)
@click.option(
    "--newest",
    is_flag=True,
    help="Look up the branches of remote repositories, and note their commits in kochi.lock.",
)
@click.option(
    "--again", is_flag=True, help="Install the recipes again, even if they are installed."
)
@click.option(
    "--cores",
    type=COUNT,
    metavar="N",
    help="How many installations run at a time; by default the number of CPUs of this process.",
)
def install_command(
    machine: str | None,
    dependencies: tuple[str, ...],
    queue: str | None,
    newest: bool,
    again: bool,
    cores: int | None,
) -> None:
    """Install recipes and their dependencies.

    On a cluster, recipes are installed here, on the login node; recipes with 'on_machine: true' are
    installed on a compute node. The branch of a remote repository is looked up by the first
    installation, which notes its commit in kochi.lock: commit that file. The previous installation
    stays in use until the new one is complete.
    """
    from snakemake_kochi.cli.snakemake_calls import call_snakemake, snakefile_options
    from snakemake_kochi.library.files import install_rule
    from snakemake_kochi.phases.make import AGAIN_VARIABLE

    location = find_location(machine, asks=True)
    location.require_here()
    if queue is not None:
        location.machine_paths.queue(queue)
    project = location.require_project()
    wanted = [project.requirement(text) for text in dependencies]
    recipes = project.resolve(wanted, location.machine.name)
    say_locked(location, recipes, newest)
    targets = [install_rule(requirement.dependency, requirement.recipe) for requirement in wanted]
    here = [each for each in recipes if location.machine.installs_on_login_node(each.on_machine)]
    # Without a way to other nodes this command does all the work, unless a queue is named.
    is_elsewhere = len(here) < len(recipes) and (queue or location.machine.has_allocations)
    words = _executor(queue, cores) if is_elsewhere else _here(cores)
    variables = {AGAIN_VARIABLE: " ".join(map(str, wanted))} if again else {}
    if variables:
        # So that they also reach a worker that was started separately.
        words += ["--envvars", *variables]
    if queue is not None and here:
        names = ", ".join(f"{each.dependency}:{each.name}" for each in here)
        remark(f"Installed here, because they do not say 'on_machine: true': {names}")
    if queue is not None and is_elsewhere and (said := without_worker(location, queue)):
        remark(said)
    forced = _forced(location, recipes, targets if again else [])
    words += ["--logger", "kochi"]
    if forced:
        words += ["--forcerun", *forced]
    if snakefile_options(project.directory):
        # Only rules of the project's own need experiments. What is wrong in one, or is not for this
        # machine, does not concern a recipe.
        words += ["--config", "kochi_experiments=[]"]
    # Jobs elsewhere would go on, and the next run waits for them.
    module = None if is_elsewhere else "snakemake_kochi.cli.hanging_up"
    call_snakemake(location, list(dict.fromkeys(targets)), words, variables, module)


def _here(cores: int | None) -> list[str]:
    count = cores or len(os.sched_getaffinity(0))
    return ["--executor", "local", "--cores", str(count), "--rerun-incomplete"]


def _executor(queue: str | None, cores: int | None) -> list[str]:
    words = ["--executor", "kochi"]
    words += [] if queue is None else ["--kochi-queue", queue]
    words += ["--jobs", str(cores or 100), "--rerun-incomplete"]
    # Recipes that are installed here have a concurrency limit of their own.
    return words if cores is None else [*words, "--local-cores", str(cores)]


def _forced(location: Location, recipes: Sequence[Recipe], again: Sequence[str]) -> list[str]:
    """The rules that must run although Snakemake sees no change."""
    from snakemake_kochi.library.files import install_rule
    from snakemake_kochi.phases.make import recipe_states

    forced = list(again)
    for state in recipe_states(location.project_paths, location.machine, recipes):
        recipe = state.recipe
        # Not installed although Snakemake has its manifest: KOCHI_ROOT was emptied, or is another
        # one. Or the installation in use belongs to an earlier version of kochi.yaml.
        if state.state != "installed":
            forced.append(install_rule(recipe.dependency, recipe.name))
    return list(dict.fromkeys(forced))


def say_locked(location: Location, recipes: Sequence[Recipe], newest: bool = False) -> None:
    """Note the commits of remote recipes in kochi.lock, and say those that are new there."""
    from snakemake_kochi.phases.sources import LOCK_FILE, lock_commits

    project = location.require_project()
    machine = location.machine.name
    changed = lock_commits(project, location.project_paths, machine, recipes, newest)
    for name, commit in changed.items():
        remark(f"{LOCK_FILE}: {name} is at commit {commit[:10]}. Commit {LOCK_FILE}.")


@click.command("run", context_settings={"allow_interspersed_args": False})
@machine_option
@dependency_option("An installed recipe to use.")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND...")
def run_command(machine: str | None, dependencies: tuple[str, ...], words: tuple[str, ...]) -> None:
    """Run a command here, word for word, in the environment of installed recipes.

    There is no shell. For a pipe, a variable or a redirection, type: kochi run -- bash -c '...'
    """
    from snakemake_kochi.phases.job import command_in_environment, execute
    from snakemake_kochi.phases.make import current_installs
    from snakemake_kochi.phases.products import Install
    from snakemake_kochi.phases.script import Environment

    location = find_location(machine, asks=True)
    location.require_here()
    refuse_shell_line(words[0])
    installs: tuple[Install, ...] = ()
    if dependencies:
        project = location.require_project()
        wanted = [project.requirement(text) for text in dependencies]
        recipes = project.resolve(wanted, location.machine.name)
        location.secure(location.project_paths.directory)
        installs = current_installs(location.project_paths, location.machine, recipes)
    environment = Environment(location.machine.load_env_on_machine, installs, {})
    variables = os.environ | {"KOCHI_MACHINE": location.machine.name}
    execute(command_in_environment(environment, words), variables)
