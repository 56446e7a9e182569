"""Which workers a machine has for the runs on it."""

from __future__ import annotations

from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.allocation.allocated_workers import AllocatedWorkers
from snakemake_kochi.allocation.interface import Workers
from snakemake_kochi.allocation.local_workers import LocalWorkers
from snakemake_kochi.allocation.scheduler import Scheduler
from snakemake_kochi.allocation.script import AllocScript
from snakemake_kochi.allocation.slurm.slurm import Slurm
from snakemake_kochi.errors import KochiError, nearest
from snakemake_kochi.place import Place
from snakemake_kochi.project.machines import LOCAL, Machine

# Where workers may be: on this computer, or in allocations of the machine's scheduler.
HERE, ALLOCATIONS = "here", "allocations"
PLACES = (HERE, ALLOCATIONS)


def check_place(where: str | None, place: Place) -> str:
    """Where the workers of a run are to be: as wanted, by default in allocations where kochi knows
    the machine's scheduler. Raises KochiError for what cannot be."""
    machine = place.machine
    if where is None:
        return HERE if machine.scheduler is None else ALLOCATIONS
    if where not in PLACES:
        raise KochiError(
            f"--kochi-place {where}: one of {', '.join(PLACES)} was expected",
            nearest(where, PLACES),
        )
    if where == ALLOCATIONS and machine.scheduler is None and not machine.alloc_script:
        raise KochiError(
            f"machine {machine.name} has no scheduler: no allocations can be asked for",
            f"{_with_scheduler(place)} Without a scheduler, type: snakemake --profile local",
        )
    return where


def _with_scheduler(place: Place) -> str:
    """What to type to get one."""
    machines = () if place.project is None else place.project.machines.values()
    names = [each.name for each in machines if each.scheduler is not None or each.alloc_script]
    if not names:
        name = "NAME" if place.machine.name == LOCAL else place.machine.name
        return f"In kochi.yaml, say which it has: machines: {name}: scheduler: slurm."
    return f"With one are: {', '.join(names)}. Type: export KOCHI_DEFAULT_MACHINE={names[0]}"


def make_workers(
    place: Place,
    where: str,
    controller: str,
    count: int,
    cores: int | None,
    logger: LoggerExecutorInterface,
) -> Workers:
    """Workers at one of the PLACES: here, `count` with so many `cores` each. Without a `count`
    somebody else sees to workers. Raises KochiError."""
    machine = place.machine
    if not count or where == HERE:
        return LocalWorkers(place.root, place.machine_paths, controller, count, cores, logger)
    return AllocatedWorkers(
        place.root,
        place.machine_paths,
        machine,
        lambda name: make_scheduler(machine, f"kochi-{name}"),
        controller,
        logger,
    )


def make_scheduler(machine: Machine, name: str, limit: str | None = None) -> Scheduler:
    """The machine's scheduler, for allocations of a name of their own; `limit`: a time limit as a
    person wrote it, for an alloc_script."""
    if machine.scheduler == "slurm":
        return Slurm(name, machine.allocation, machine.name)
    return AllocScript(name, machine.alloc_script, machine.allocation, limit)
