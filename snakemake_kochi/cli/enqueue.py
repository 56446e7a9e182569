"""`kochi enqueue`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from snakemake_kochi.cli.batch import (
    globs_with,
    is_experiment_file,
    load,
    path_in_project,
)
from snakemake_kochi.cli.options import (
    COUNT,
    dependency_option,
    git_remote_option,
    json_option,
    machine_option,
    memory,
    quiet_option,
    refuse_shell_line,
)
from snakemake_kochi.cli.output import print_json, remark, say
from snakemake_kochi.errors import ConfigError, KochiError
from snakemake_kochi.location import Location, find_location
from snakemake_kochi.project.machines import chosen_machine
from snakemake_kochi.queue import Queue, Resources, Ticket
from snakemake_kochi.queue.wakeup import shared_workers

if TYPE_CHECKING:
    from snakemake_kochi.phases.freeze import Freeze
    from snakemake_kochi.phases.products import Install
    from snakemake_kochi.project.recipes import Requirement

_ANONYMOUS = "ANON"


class _EnqueueCommand(click.Command):
    """A command line whose first word decides how the rest is parsed.

    After a command's first word all words are the command's own. After FILE.yaml further options of
    ours may follow, as in `kochi enqueue fib.yaml debug=1 -d massivethreads:debug`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given, _, _ = self.make_parser(ctx).parse_args(list(args))
        words: object = given.get("words")  # the value for "nothing" differs between versions
        ctx.allow_interspersed_args = isinstance(words, tuple) and any(
            map(is_experiment_file, words[:1])
        )
        return super().parse_args(ctx, args)


@dataclass(frozen=True)
class Request:
    """The contents of the command line."""

    queue: str | None
    name: str | None
    copy: bool
    git_remote: str | None
    dependencies: tuple[str, ...]
    shared: bool
    cores: int | None
    memory: int | None
    words: tuple[str, ...]

    @property
    def is_shared(self) -> bool:
        return self.shared or self.cores is not None or self.memory is not None

    def resources(self, is_shared: bool, cores: int = 1) -> Resources:
        """The resources that the job takes on its worker.

        A job of this command is measured: nothing else runs beside it, unless the user wants that.
        """
        if not is_shared:
            return Resources(cores=cores, exclusive=True)
        return Resources(cores=self.cores or cores, memory_mb=self.memory)


@click.command(cls=_EnqueueCommand, context_settings={"allow_interspersed_args": False})
@machine_option
@click.option("-q", "--queue", metavar="QUEUE", help="The queue; by default that of FILE.yaml.")
@click.option("-n", "--name", metavar="NAME", help="A name for the job.")
@click.option(
    *("-c", "--copy", "--with-context"),
    is_flag=True,
    help="Run in a copy of the repository as it is now.",
)
@dependency_option("An installed recipe to use.")
@git_remote_option
@click.option(
    "--shared",
    is_flag=True,
    help="Let other jobs run on the worker at the same time. By default a job is exclusive: it has "
    "a worker to itself, unless FILE.yaml says 'exclusive: false'.",
)
@click.option(
    *("--cores", "cores"),
    type=COUNT,
    metavar="N",
    help="Cores that the job uses; by default 'cores' in FILE.yaml, else 1. Implies --shared.",
)
@click.option(
    "--memory",
    type=memory,
    metavar="SIZE",
    help="Memory that the job uses, for example 2G. Implies --shared.",
)
@quiet_option
@json_option
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND...")
def command(machine: str | None, quiet: bool, as_json: bool, **typed: object) -> None:
    """Submit a job to a queue: a command, or FILE.yaml NAME=VALUE... to run an experiment once.

    The command runs word for word, without a shell, in the current directory. A job has a worker
    to itself, unless --shared, --cores or --memory is given.
    """
    dependencies = typed.pop("dependencies")
    request = Request(dependencies=dependencies, **typed)  # type: ignore[arg-type]
    location = find_location(machine)
    location.require_here()
    queue, ticket = _make_ticket(location, request)
    (given,) = Queue(location.prepare_machine(), queue).submit([ticket])
    if as_json:
        print_json({"job": given.job, "name": given.name, "queue": queue, "machine": given.machine})
    elif quiet:
        say(str(given.job))
    else:
        say(f"Job {given.job} was submitted to queue '{queue}' on machine '{given.machine}'.")
        remark_without_worker(location, queue)


def _make_ticket(location: Location, request: Request) -> tuple[str, Ticket]:
    if request.queue is not None:
        # Refused before anything is frozen.
        location.machine_paths.queue(request.queue)
    if is_experiment_file(request.words[0]):
        return _experiment_ticket(location, request)
    if request.queue is None:
        raise click.UsageError("a queue was expected: -q QUEUE")
    refuse_shell_line(request.words[0])
    if request.copy or request.git_remote or request.dependencies:
        return request.queue, _prepared_ticket(location, request)
    labels = {"command": shlex.join(request.words)}
    resources = request.resources(request.is_shared)
    return request.queue, _ticket(location, request.name, request.words, labels, resources)


def _ticket(
    location: Location,
    name: str | None,
    command: Sequence[str],
    labels: dict[str, str],
    resources: Resources,
    freeze: Freeze | None = None,
    directory: Path | None = None,
) -> Ticket:
    project = {"project": str(location.project.directory)} if location.project else {}
    return Ticket(
        name=_ANONYMOUS if name is None else name,
        command=tuple(command),
        directory=str(directory or Path.cwd()),
        environment={"KOCHI_FREEZE": str(freeze.file)} if freeze else {},
        resources=resources,
        labels={**project, **labels},
    )


def _prepared_ticket(location: Location, request: Request) -> Ticket:
    """A command in an environment of ours, in a copy of the sources or in the current directory."""
    from snakemake_kochi.phases.freeze import take_freeze
    from snakemake_kochi.phases.job import job_command

    project = location.require_project()
    installs = _installs(location, tuple(map(project.requirement, request.dependencies)))
    freeze = take_freeze(Path.cwd(), location.machine.name)
    if request.git_remote:
        freeze = _from_git(freeze, request.git_remote)
    copy = _directory_in_copy(freeze) if request.copy or request.git_remote else None
    words = job_command(installs, copy=copy, command=request.words)
    labels = {"command": shlex.join(request.words)} | _labels(request, freeze, installs)
    directory = None if copy is None else project.directory
    resources = request.resources(request.is_shared)
    return _ticket(location, request.name, words, labels, resources, freeze, directory)


def _experiment_ticket(location: Location, request: Request) -> tuple[str, Ticket]:
    from snakemake_kochi.phases.freeze import EXPERIMENT_GLOBS, take_freeze
    from snakemake_kochi.phases.job import job_command
    from snakemake_kochi.project.values import parse_assignment

    project, machine = location.require_project(), location.machine.name
    file = path_in_project(project, request.words[0])
    # From the working tree first: errors in it are reported before anything is frozen.
    load(project, file)
    globs = globs_with(project, file) or EXPERIMENT_GLOBS
    freeze = take_freeze(Path.cwd(), machine, globs, named=file)
    experiment = freeze.experiment(file)
    given = dict(map(parse_assignment, request.words[1:]))
    point = experiment.point(machine, given)
    for said in (*experiment.remarks, *experiment.without_effect(given)):
        remark(said)
    queue = request.queue or point.queue
    if queue is None:
        raise click.UsageError(f"a queue was expected: -q QUEUE, or default_queue in {file}")
    extra = tuple(map(project.requirement, request.dependencies))
    installs = _installs(location, experiment.requirements_on(machine, extra))
    if request.git_remote:
        freeze = _from_git(freeze, request.git_remote)
    name = request.name or point.name
    words = job_command(installs, experiment=file, name=name, parameters=request.words[1:])
    parameters = {"parameters": ", ".join(f"{k}={v}" for k, v in point.parameters.items())}
    labels = {"experiment": file} | parameters | _labels(request, freeze, installs)
    is_shared = request.is_shared or not experiment.run.exclusive
    resources = request.resources(is_shared, point.cores or 1)
    return queue, _ticket(location, name, words, labels, resources, freeze, project.directory)


def _installs(location: Location, requirements: tuple[Requirement, ...]) -> tuple[Install, ...]:
    from snakemake_kochi.phases.install import current_installs

    recipes = location.require_project().resolve(requirements, location.machine.name)
    return current_installs(location.project_paths, location.machine, recipes)


def _from_git(freeze: Freeze, url: str) -> Freeze:
    from snakemake_kochi.phases.freeze import with_source_from

    return with_source_from(freeze, url)


def _directory_in_copy(freeze: Freeze) -> str:
    """The counterpart of the current directory in a copy of the project."""
    here = Path.cwd().resolve()
    inside = here.relative_to(freeze.directory.resolve()).as_posix()
    if inside != "." and not any(e.path.startswith(f"{inside}/") for e in freeze.entries):
        raise KochiError(
            f"{here} would not be in the copy: git ignores it, or it contains no file",
            f"Run the command in {freeze.directory}, or leave out -c.",
        )
    return inside


def _labels(request: Request, freeze: Freeze, installs: Sequence[Install]) -> dict[str, str]:
    labels = {}
    if installs:
        labels["recipes"] = ", ".join(f"{i.dependency}:{i.recipe}" for i in installs)
    source = [request.git_remote or "", "changed" if freeze.snapshot.dirty else ""]
    said = ", ".join(filter(None, source))
    commit = (freeze.snapshot.base or "")[:12]
    labels["source"] = " ".join(filter(None, (commit, f"({said})" if said else "")))
    return labels


def remark_without_worker(location: Location, queue: str) -> None:
    """Say how to get a worker if none serves the queue: a job may wait for it for ever."""
    if shared_workers(location.machine_paths, queue):
        return
    # If compute nodes can be requested, a worker that is started here is on a login node.
    command = "alloc" if location.machine.has_allocations else "work"
    words = f"kochi {command} {_machine_option(location)}-q {queue}"
    remark(f"No worker serves that queue yet. To start one, type: {words}")


def _machine_option(location: Location) -> str:
    """The option that selects the same machine; "" if it is the default."""
    machines = {} if location.project is None else location.project.machines
    try:
        is_chosen = chosen_machine(machines) == location.machine.name
    except ConfigError:
        is_chosen = False
    return "" if is_chosen else f"-m {location.machine.name} "
