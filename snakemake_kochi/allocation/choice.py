"""Which workers a machine has for the runs on it."""

from __future__ import annotations

from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.allocation.allocated_workers import AllocatedWorkers
from snakemake_kochi.allocation.interface import Workers
from snakemake_kochi.allocation.local_workers import LocalWorkers
from snakemake_kochi.errors import KochiError, nearest
from snakemake_kochi.location import Location, how_to_describe, is_found
from snakemake_kochi.project.machines import LOCAL, Machine
from snakemake_kochi.schedulers.interface import Scheduler
from snakemake_kochi.schedulers.script import AllocScript
from snakemake_kochi.schedulers.slurm.slurm import Slurm

# Where workers may be: on this computer, or in allocations of the machine's scheduler, be that one
# that kochi knows or one behind an alloc_script.
HERE, ALLOCATIONS = "here", "allocations"
WHERE = (HERE, ALLOCATIONS)
_DEFAULT = "export KOCHI_DEFAULT_MACHINE={}"


def check_where(where: str | None, location: Location) -> str:
    """Where the workers of a run are to be: as wanted, by default in allocations where there is a
    way to them. Raises KochiError for what cannot be."""
    machine = location.machine
    if where is None:
        return ALLOCATIONS if machine.has_allocations else HERE
    if where not in WHERE:
        raise KochiError(
            f"--kochi-where {where}: one of {', '.join(WHERE)} was expected",
            nearest(where, WHERE),
        )
    if where == ALLOCATIONS and not machine.has_allocations:
        if location.unread is not None:
            raise location.unread
        raise KochiError(
            f"machine {machine.name} has no scheduler: no allocations can be asked for",
            f"{_with_scheduler(location)}\nTo run without one, type: snakemake --profile local",
        )
    return where


def _with_scheduler(location: Location) -> str:
    """What to type to get one, on a line of its own."""
    names = [each.name for each in location.machines.values() if each.has_allocations]
    if names:
        return f"With one are: {', '.join(names)}. Type:\n{_DEFAULT.format(names[0])}"
    if location.project is None:
        return _without_project(location)
    if location.machine.name != LOCAL:
        return (
            f"In kochi.yaml, say which it has: machines: {location.machine.name}: scheduler: slurm"
        )
    return (
        "In kochi.yaml, say which machine has one: machines: NAME: scheduler: slurm. Then type:\n"
        f"{_DEFAULT.format('NAME')}"
    )


def _without_project(location: Location) -> str:
    first: list[str | None] = []
    try:
        location.require_project()
    except KochiError as error:
        first = [f"{error.message[:1].upper()}{error.message[1:]}.", error.hint]
    then = (how_to_describe("NAME"), "Then type:", _DEFAULT.format("NAME"))
    return "\n".join(filter(None, [*first, *then]))


def make_workers(
    location: Location,
    where: str,
    controller: str,
    count: int,
    cores: int | None,
    logger: LoggerExecutorInterface,
) -> Workers:
    """Workers at one of the WHERE: here, `count` with so many `cores` each. Without a `count`
    somebody else sees to workers. Raises KochiError."""
    machine = location.machine
    if not count or where == HERE:
        return LocalWorkers(location.root, location.machine_paths, controller, count, cores, logger)
    return AllocatedWorkers(
        location.root,
        location.machine_paths,
        machine,
        lambda name: make_scheduler(machine, f"kochi-{name}"),
        controller,
        logger,
    )


def _with_file(machine: Machine) -> str:
    """With the file in which it is described, or may be."""
    if is_found(machine):
        return f"{machine.name} in kochi.yaml, which is written by: kochi init --machine"
    return f"{machine.name} in {machine.files[0]}" if machine.files else machine.name


def make_scheduler(machine: Machine, name: str, limit: str | None = None) -> Scheduler:
    """The machine's scheduler, for allocations of a name of their own; `limit`: a time limit as a
    person wrote it, for an alloc_script."""
    if machine.scheduler == "slurm":
        return Slurm(name, machine.allocation, _with_file(machine))
    return AllocScript(name, machine.alloc_script, machine.allocation, limit, machine.name)
