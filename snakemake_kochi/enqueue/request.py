"""From what a person asks for to a ticket: a command, or a single run of an experiment."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from snakemake_kochi.enqueue.experiment_files import (
    globs_with,
    is_experiment_file,
    load,
    path_in_project,
)
from snakemake_kochi.errors import KochiError
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.location import Location
from snakemake_kochi.queue.views import shared_workers
from snakemake_kochi.tickets.ticket import Resources, Ticket

if TYPE_CHECKING:
    from snakemake_kochi.phases.freeze import Freeze
    from snakemake_kochi.phases.products import Install
    from snakemake_kochi.project.grid import Request as PhaseRequest
    from snakemake_kochi.project.recipes import Requirement
    from snakemake_kochi.terminal.protocol import Size

_ANONYMOUS = "ANON"
_INTERACTIVE = "interactive"
# What a person reads as the command of a job without one.
_SHELL = "an interactive shell"


@dataclass(frozen=True)
class Terminal:
    """The terminal of a job, of this size at first; `keep`: the job goes on without it. `has_port`:
    a port is forwarded to the job. `environment` is what programs learn of it from variables.
    `forwarded` is the word by which another computer, which forwards the port, finds the job."""

    size: Size
    keep: bool = False
    has_port: bool = False
    environment: Mapping[str, str] = FrozenDict()
    forwarded: str = ""


@dataclass(frozen=True)
class Request:
    """A job by hand.

    `words` are a command, which is executed as it is, or FILE.yaml NAME=VALUE... for a single run
    of an experiment. `copy`: in a copy of the repository as it is now; `git_remote`: the same, and
    the job tells this address; `dependencies`: recipes as DEPENDENCY:RECIPE. `memory` in MiB.
    With a `terminal`, there may be no words: an interactive shell; of an experiment, such a shell
    in the place of its run script.
    """

    words: tuple[str, ...]
    queue: str | None = None
    name: str | None = None
    copy: bool = False
    git_remote: str | None = None
    dependencies: tuple[str, ...] = ()
    shared: bool = False
    cores: int | None = None
    memory: int | None = None
    gpus: int | None = None
    terminal: Terminal | None = None

    @property
    def is_experiment(self) -> bool:
        return bool(self.words) and is_experiment_file(self.words[0])

    @property
    def command(self) -> tuple[str, ...]:
        """The words, or those of the interactive shell."""
        from snakemake_kochi.phases.job import shell_command

        return self.words or shell_command()

    @property
    def label(self) -> str:
        """The command for people."""
        return shlex.join(self.words) or _SHELL

    @property
    def is_shared(self) -> bool:
        return self.shared or any(n is not None for n in (self.cores, self.memory, self.gpus))

    def resources(self, is_shared: bool, of_point: PhaseRequest | None = None) -> Resources:
        """The resources that the job takes on its worker; `of_point`: those of an experiment.

        A job by hand is measured: nothing else runs beside it, unless the user wants that.
        """
        given = {} if of_point is None else of_point.of_rule
        numbers = {name: value for name, value in given.items() if isinstance(value, int)}
        cores = (of_point.threads if of_point else None) or 1
        return Resources(
            cores=cores if self.cores is None else self.cores,
            exclusive=not is_shared,
            memory_mb=numbers.get("mem_mb") if self.memory is None else self.memory,
            gpus=numbers.get("gpu", 0) if self.gpus is None else self.gpus,
            # A person has no time limit: that of the worker counts.
            runtime_seconds=60 * numbers["runtime"]
            if "runtime" in numbers and self.terminal is None
            else None,
            nodes=numbers.get("nodes", 1),
        )


@dataclass(frozen=True)
class Prepared:
    """A ticket that can be submitted. `queue`: the requested one, else that of the experiment,
    else None. `remarks`: what a person should know."""

    queue: str | None
    ticket: Ticket
    remarks: tuple[str, ...] = ()


def prepare(location: Location, request: Request) -> Prepared:
    """Make the ticket of a job, in the current directory. Freezes the sources if it needs them.

    Raises KochiError for what cannot be, before anything is written.
    """
    if request.queue is not None:
        # Refused before anything is frozen.
        location.machine_paths.queue(request.queue)
    if request.is_experiment:
        return _experiment(location, request)
    if request.copy or request.git_remote or request.dependencies:
        return Prepared(request.queue, _prepared_ticket(location, request))
    labels = {"command": request.label}
    resources = request.resources(request.is_shared)
    ticket = _ticket(location, request, request.name, request.command, labels, resources)
    return Prepared(request.queue, ticket)


def _ticket(
    location: Location,
    request: Request,
    name: str | None,
    command: Sequence[str],
    labels: dict[str, str],
    resources: Resources,
    freeze: Freeze | None = None,
    directory: Path | None = None,
    has_network: bool = True,
) -> Ticket:
    project = {"project": str(location.project.directory)} if location.project else {}
    environment = {"KOCHI_FREEZE": str(freeze.file)} if freeze else {}
    anonymous = _ANONYMOUS
    if (terminal := request.terminal) is not None:
        # Imported here: most jobs have no terminal.
        from snakemake_kochi.terminal.host import host_command

        root = location.root.directory
        command = host_command(root, command, terminal.keep, terminal.size, has_network)
        environment |= terminal.environment
        labels = {**labels, "terminal": "kept" if terminal.keep else "ends with its client"}
        labels |= {"forwarded": terminal.forwarded} if terminal.forwarded else {}
        anonymous = _INTERACTIVE
    return Ticket(
        name=anonymous if name is None else name,
        command=tuple(command),
        directory=str(directory or Path.cwd()),
        environment=environment,
        resources=resources,
        labels={**project, **labels},
    )


def _prepared_ticket(location: Location, request: Request) -> Ticket:
    """A command in an environment of ours, in a copy of the sources or in the current directory."""
    from snakemake_kochi.phases.freeze import have_read, take_freeze
    from snakemake_kochi.phases.job import job_command

    project = location.require_project()
    installs = _installs(location, tuple(map(project.requirement, request.dependencies)))
    freeze = take_freeze(Path.cwd(), location.machine.name)
    have_read()
    copy = _directory_in_copy(freeze) if request.copy or request.git_remote else None
    words = job_command(installs, copy=copy, command=request.command)
    labels = {"command": request.label} | _labels(request, freeze, installs)
    directory = None if copy is None else project.directory
    resources = request.resources(request.is_shared)
    return _ticket(location, request, request.name, words, labels, resources, freeze, directory)


def _experiment(location: Location, request: Request) -> Prepared:
    from snakemake_kochi.phases.freeze import EXPERIMENT_GLOBS, have_read, take_freeze
    from snakemake_kochi.phases.job import job_command
    from snakemake_kochi.project.recipes import requirements_at
    from snakemake_kochi.project.values import parse_assignment

    project, machine = location.require_project(), location.machine.name
    file = path_in_project(project, request.words[0])
    # From the working tree first: errors in it are reported before anything is frozen.
    load(project, file)
    globs = globs_with(project, file) or EXPERIMENT_GLOBS
    freeze = take_freeze(Path.cwd(), machine, globs, named=file)
    have_read()
    experiment = freeze.experiment(file)
    isolation = experiment.run.isolation
    has_network = isolation is None or "network" not in isolation.words
    if request.terminal is not None and request.terminal.has_port and not has_network:
        raise KochiError(
            f"{file}: run.isolate: the run script has no network, so that no port reaches it",
            "Leave out -p, or remove 'network' there.",
        )
    given = dict(map(parse_assignment, request.words[1:]))
    point = experiment.point(machine, given)
    extra = tuple(map(project.requirement, request.dependencies))
    required = requirements_at(experiment.requirements_on(machine, extra), point.parameters)
    installs = _installs(location, required)
    name = request.name or point.name
    words = job_command(
        installs,
        experiment=file,
        name=name,
        parameters=request.words[1:],
        interactive=request.terminal is not None,
    )
    parameters = {"parameters": ", ".join(f"{k}={v}" for k, v in point.parameters.items())}
    labels = {"experiment": file} | parameters | _labels(request, freeze, installs)
    is_shared = request.is_shared or not experiment.run.exclusive
    resources = request.resources(is_shared, point.request)
    ticket = _ticket(
        location,
        *(request, name, words, labels, resources, freeze, project.directory),
        has_network=has_network,
    )
    remarks = tuple(experiment.without_effect(given))
    return Prepared(request.queue or point.queue, ticket, remarks)


def _installs(location: Location, requirements: tuple[Requirement, ...]) -> tuple[Install, ...]:
    from snakemake_kochi.phases.make import current_installs

    recipes = location.require_project().resolve(requirements, location.machine.name)
    return current_installs(location.project_paths, location.machine, recipes)


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


def without_worker(location: Location, queue: str) -> str:
    """How to get a worker if none serves the queue, "" if one does: a job may wait for ever."""
    if shared_workers(location.machine_paths, queue):
        return ""
    words = location.to_start_worker(queue).removesuffix(" -b")
    return f"No worker serves that queue yet. To start one, type: {words}"
