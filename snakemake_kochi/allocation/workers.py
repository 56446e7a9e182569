"""Where the workers of a run are, and who provides them: this computer, or a scheduler."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from pathlib import Path

from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.errors import KochiError, nearest
from snakemake_kochi.files import write_atomically
from snakemake_kochi.location import (
    Location,
    find_location,
    how_to_describe,
    is_found,
    with_file_to_edit,
)
from snakemake_kochi.paths import Root
from snakemake_kochi.project.configuration import repository
from snakemake_kochi.project.machines import LOCAL, Machine
from snakemake_kochi.schedulers.commands import USUAL, Pace
from snakemake_kochi.schedulers.environment import own_allocation
from snakemake_kochi.schedulers.interface import (
    Scheduler,
)
from snakemake_kochi.schedulers.native import installed_system, system, system_of_host
from snakemake_kochi.schedulers.script import AllocScript

# The locations of workers: this computer, or allocations of the machine's scheduler. The scheduler
# is one that kochi knows, or one behind an alloc_script.
HERE, ALLOCATIONS = "here", "allocations"
WHERE = (HERE, ALLOCATIONS)
_DEFAULT = "export KOCHI_DEFAULT_MACHINE={}"


def make_scheduler(
    machine: Machine, name: str, limit: str | None = None, pace: Pace = USUAL
) -> Scheduler:
    """The machine's scheduler, for allocations of a name of their own.

    `limit`: a time limit as the user typed it, also for an alloc_script. `pace`: of the questions
    to one that answers by itself.
    """
    of_machine = with_file_to_edit(machine).allocation_at

    def settings_at(keys: Iterable[str]) -> str:
        others = list(keys)
        if limit is None or "time" not in others:
            return of_machine(others)
        others.remove("time")
        return f"option -t and {of_machine(others)}" if others else "option -t"

    if machine.scheduler is None:
        script, at = machine.alloc_script, machine.script_at
        return AllocScript(name, script, machine.allocation, at, settings_at, limit)
    return system(machine.scheduler).allocations(name, machine.allocation, settings_at, pace)


# ---- where


def check_where(where: str | None, location: Location) -> str:
    """The location of a run's workers: `where` or, by default, allocations if the machine has any.

    Raises KochiError for an impossible location.
    """
    machine = location.machine
    if where is None:
        # Within an allocation of one's own, nothing else was requested. A launched run may be in
        # one of Kochi's.
        is_inside = is_found(machine) and own_allocation(os.environ) is not None
        is_inside = is_inside and "KOCHI_MACHINE" not in os.environ
        return ALLOCATIONS if machine.has_allocations and not is_inside else HERE
    if where not in WHERE:
        raise KochiError(
            f"--kochi-where {where}: one of {', '.join(WHERE)} was expected",
            nearest(where, WHERE),
        )
    if where == ALLOCATIONS and not machine.has_allocations:
        if location.unread is not None:
            raise location.unread
        raise KochiError(
            f"machine {machine.name} has no scheduler: no allocations can be requested",
            f"{_with_scheduler(location)}\nTo run without one, type: snakemake --profile local",
        )
    return where


def _with_scheduler(location: Location) -> str:
    """The command that gives a machine with a scheduler, on a line of its own."""
    names = [each.name for each in location.machines.values() if each.has_allocations]
    if names:
        return f"Machines with one: {', '.join(names)}. Type:\n{_DEFAULT.format(names[0])}"
    if location.project is None:
        return _without_project(location)
    if location.machine.name != LOCAL:
        file = next(iter(location.machine.files), "kochi.yaml")
        return (
            f"If it has one, write into {file}: machines: {location.machine.name}: scheduler: slurm"
        )
    what = "If a machine has one, write into kochi.yaml: machines: NAME: scheduler: slurm"
    return f"{what}. Then type:\n{_DEFAULT.format('NAME')}"


def _without_project(location: Location) -> str:
    lines: list[str | None] = [_refusal()]
    if _is_outside():
        file = Root.find().configuration
        begin = f"Outside of a repository, $KOCHI_ROOT/conf.yaml is enough: write into {file}"
        lines.append(how_to_describe("NAME", begin))
    else:
        try:
            location.require_project()
        except KochiError as error:
            lines += [f"{error.message[:1].upper()}{error.message[1:]}.", error.hint]
        lines.append(how_to_describe("NAME"))
    return "\n".join(filter(None, [*lines, "Then type:", _DEFAULT.format("NAME")]))


def _is_outside() -> bool:
    try:
        return repository(Path.cwd()) is None
    except KochiError:  # there is no git, for example
        return True


def _refusal() -> str | None:
    """Why this host's scheduler, of which the commands are here, tells nothing of itself."""
    if (scheduler := installed_system()) is not None:
        try:
            scheduler.cluster_name()
        except KochiError as error:
            return f"The commands of {scheduler.TITLE} are installed here, but: {error.sentences}"
    return None


# ---- where nothing is configured


def location_of_run(
    wanted: str | None, logger: LoggerExecutorInterface, is_served: bool = False
) -> Location:
    """The current location, for a run with `--kochi-where` (one of WHERE) or without.

    `is_served`: its workers are started by somebody else. Tells the user what was not requested and
    may be unexpected. Raises KochiError.
    """
    location = find_location(asks=wanted != HERE)
    if is_served:
        return location
    if check_where(wanted, location) == ALLOCATIONS and is_found(location.machine):
        name, title = location.machine.name, system_of_host().TITLE
        logger.info(
            f"No machine is configured. This run uses machine {name}, the cluster of {title}, "
            f"with {title}'s default partition and account. KOCHI_ROOT is "
            f"{location.root.directory}. To write the machine into kochi.yaml, type: kochi init "
            "--machine"
        )
    elif wanted is None and (unused := unused_scheduler(location)):
        logger.warning(unused)
    return location


def unused_scheduler(location: Location) -> str:
    """One line about a scheduler that a run on this computer does not use, or "".

    It is for a user whose jobs run on this computer only by default, and who gets it once.
    """
    # Within an allocation, the user requested this computer.
    if not location.is_left_to_host() or own_allocation(os.environ):
        return ""
    host = socket.gethostname()
    told = Root.find().told_on_host(host)
    if told.exists() or (scheduler := installed_system()) is None or not scheduler.is_there():
        return ""
    Root.find().secure(told.parent)
    write_atomically(told, b"")
    others = [each for each in location.machines.values() if each.has_allocations]
    if others:
        name, file = others[0].name, next(iter(others[0].files), "kochi.yaml")
        how = f"write into {file}: machines: {name}: hosts: {host}"
    else:
        how = "type: kochi init --machine"
    return (
        f"Jobs run on this computer, although {scheduler.TITLE} is installed here, because the "
        f"host {host} belongs to no machine. To run in allocations from now on, {how}. This is "
        "said once."
    )
